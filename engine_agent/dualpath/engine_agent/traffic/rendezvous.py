"""Where a DE's attempt and its PE meet: the plan and the PE's Want come by different ways, in any order."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from dualpath.engine_agent.plan.notes import AttemptKey, PeerAbort, PrefillDone
from dualpath.engine_agent.ports import OfferLink
from dualpath.model.errors import Refused

MEETINGS_MAX = 16384  # Wants of plans that have not come yet, and running attempts


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class _Meeting:
    link: "asyncio.Future[OfferLink]" = field(default_factory=_future)
    outcome: "asyncio.Future[PrefillDone | PeerAbort]" = field(default_factory=_future)


class Rendezvous:
    """Meetings by attempt. The link side calls want/prefill_done/peer_abort/link_lost, the runner waits."""

    def __init__(self) -> None:
        self._meetings: OrderedDict[AttemptKey, _Meeting] = OrderedDict()

    # from the PE's link

    def want(self, key: AttemptKey, link: OfferLink) -> None:
        meeting = self._meeting(key)
        if not meeting.link.done():
            meeting.link.set_result(link)

    def prefill_done(self, done: PrefillDone) -> None:
        self._end(done.key, done)

    def peer_abort(self, abort: PeerAbort) -> None:
        self._end(abort.key, abort)

    def link_lost(self, link: OfferLink, message: str) -> None:
        """The PE's node is gone: every attempt that met it ends as lost."""
        for key, meeting in list(self._meetings.items()):
            if meeting.link.done() and not meeting.link.cancelled() and meeting.link.result() is link:
                if not meeting.outcome.done():
                    lost = Refused(f"PE node lost: {message}", retry_after_s=0.5, reason="PEER_LOST")
                    meeting.outcome.set_exception(lost)
                    meeting.outcome.exception()  # seen: nobody may be waiting yet
                self._meetings.move_to_end(key)

    # from the DE's runner

    async def wanted(self, key: AttemptKey) -> OfferLink:
        """The PE's link, once it has asked. An abort that came first ends the wait too."""
        meeting = self._meeting(key)
        either: set[asyncio.Future[Any]] = {meeting.link, meeting.outcome}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if meeting.link.done():
            return meeting.link.result()
        outcome = meeting.outcome.result()
        raise Refused(f"PE gave up before it asked: {outcome}", retry_after_s=0.5, reason="PEER_LOST")

    async def outcome(self, key: AttemptKey) -> PrefillDone | PeerAbort:
        return await asyncio.shield(self._meeting(key).outcome)

    def abort(self, abort: PeerAbort) -> None:
        """Tell the PE that the DE goes no further; without a link yet, its Want will be answered so."""
        meeting = self._meeting(abort.key)
        if meeting.link.done() and not meeting.link.cancelled():
            meeting.link.result().abort(abort)

    def forget(self, key: AttemptKey) -> None:
        self._meetings.pop(key, None)

    def _meeting(self, key: AttemptKey) -> _Meeting:
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = _Meeting()
            while len(self._meetings) > MEETINGS_MAX:
                self._meetings.popitem(last=False)
        return meeting

    def _end(self, key: AttemptKey, outcome: PrefillDone | PeerAbort) -> None:
        meeting = self._meeting(key)
        if not meeting.outcome.done():
            meeting.outcome.set_result(outcome)
