"""What all parts of the service share: the ledger, the journal, the policy, and the way to say things."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dualpath.model.ids import GroupId, NodeId
from dualpath.model.turn import TurnState
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.lifecycle.records import NO_INPUTS, DecisionNote, TurnEntry
from dualpath.scheduler.policy.registry import Policy
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.scheduler.ports import Clock, IdSource, Tenure
from dualpath.scheduler.service.bounds import ServiceBounds
from dualpath.scheduler.service.events import EventHub
from dualpath.scheduler.service.journal import Journal
from dualpath.scheduler.service.messages import AttemptKey, GroupLink, GroupMessage, TurnNews


@dataclass(slots=True)
class Core:
    """One active scheduler's state. `wake` asks dispatch to look again."""

    cell: str
    ledger: Ledger
    journal: Journal
    tenure: Tenure
    clock: Clock
    ids: IdSource
    policy: Policy
    limits: PolicyLimits
    bounds: ServiceBounds
    hub: EventHub
    links: dict[GroupId, GroupLink] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    # each stage has a rotation of its own: one for all would move in step with itself and always hit the same engine
    rotations: Counter[str] = field(default_factory=Counter)

    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def tell(self, group_id: GroupId | None, message: GroupMessage) -> None:
        """Say something to a group; one whose stream is down hears it at its next Hello, or loses the turn."""
        link = self.links.get(group_id) if group_id is not None else None
        if link is not None:
            link.send(message)

    def note(
        self, entry: TurnEntry, step: str, choice: str, reason: str, inputs: Mapping[str, float] = NO_INPUTS
    ) -> DecisionNote:
        after_s = round(self.clock.monotonic_s() - entry.accepted_at_s, 6)
        return DecisionNote(entry.attempt, after_s, step, choice, reason, inputs)

    def news(self, entry: TurnEntry, *, first_token: bool = False) -> TurnNews:
        de_address = ""
        if entry.de is not None and entry.state is TurnState.DECODING:
            de_address = self.address_of(entry.de.group_id, entry.de.node_id)
        return TurnNews(
            turn_id=entry.turn.turn_id,
            idempotency_key=entry.turn.idempotency_key,
            attempt=entry.attempt,
            state=entry.state,
            first_token=first_token,
            pe=entry.pe.engine_id if entry.pe else "",
            de=entry.de.engine_id if entry.de else "",
            de_address=de_address,
            read_side=entry.read_side,
            result=entry.result,
        )

    def address_of(self, group_id: str, node_id: str) -> str:
        group = self.ledger.groups.get(GroupId(group_id))
        return "" if group is None else group.address_of.get(NodeId(node_id), "")

    @staticmethod
    def key(entry: TurnEntry) -> AttemptKey:
        return AttemptKey(entry.turn.turn_id, entry.attempt)
