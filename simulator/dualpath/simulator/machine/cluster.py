"""The machine: what happens to a planned turn, from its place in the buffer to its last token (paper §2, §8).

plan -> gate (DE buffer, or PE HBM without layerwise prefill) -> storage read on the chosen node's NIC
     -> prefill in the PE group's steps -> handover to the DE -> decode -> end
"""

from typing import Protocol

from dualpath.model.turn import ReadSide
from dualpath.simulator.machine.decode import DecodeEngine
from dualpath.simulator.machine.gate import Gate
from dualpath.simulator.machine.prefill import PrefillCost, PrefillUnit
from dualpath.simulator.machine.shape import NO_STRAGGLERS, Costs, Modes, Shape, Stragglers
from dualpath.simulator.machine.storage_nic import StorageNic
from dualpath.simulator.machine.timeline import Timeline
from dualpath.simulator.machine.turns import SimTurn


class ControlPlane(Protocol):
    """The scheduler as the machine sees it. Groups and engines are numbers, PE groups first."""

    def fetch(self, group: int) -> None: ...

    def close_fetch(self, group: int) -> None: ...

    def read_done(self, turn: SimTurn) -> None: ...

    def prefill_done(self, turn: SimTurn) -> None: ...

    def commit(self, turn: SimTurn) -> None: ...


class Machine:
    def __init__(
        self, shape: Shape, costs: Costs, modes: Modes, timeline: Timeline, stragglers: Stragglers = NO_STRAGGLERS
    ) -> None:
        self.shape, self.costs, self.modes = shape, costs, modes
        self.timeline = timeline
        self.control: ControlPlane
        self.notify_reads = False  # True: the control plane hears of each read's end; False: it looks at the NICs
        per_node = shape.engines_per_node
        per_group = per_node * shape.nodes_per_group
        nodes = shape.prefill_nodes + shape.decode_nodes
        self.nics = [
            StorageNic(
                costs.snic_tokens_per_s
                * (1.0 if node < shape.prefill_nodes else costs.snic_decode_share)
                / stragglers.nics.get(node, 1.0),
                costs.snic_latency_s,
                costs.snic_latency_token_s,
                window_s=modes.balance_window_s,
            )
            for node in range(nodes)
        ]
        self.prefill_engines = shape.prefill_nodes * per_node
        self.engines = nodes * per_node
        self.node_of = [engine // per_node for engine in range(self.engines)]
        self.group_of = [engine // per_group for engine in range(self.engines)]
        self.prefill_groups = shape.prefill_nodes // shape.nodes_per_group
        self.groups = nodes // shape.nodes_per_group
        slowness = [stragglers.gpus.get(node, 1.0) for node in self.node_of]
        cost = PrefillCost(
            costs.attention,
            costs.ffn_turn_s,
            costs.ffn_token_s,
            costs.step_s,
            costs.quota_s,
            costs.cnic_tokens_per_s if modes.transfers else float("inf"),
        )
        self._handover_s = costs.handover_s if modes.transfers else 0.0
        self._handover_token_s = 1.0 / costs.cnic_tokens_per_s if modes.transfers else 0.0
        unit = self._unit = per_group if costs.lockstep else 1
        self.prefill = [
            PrefillUnit(
                self.group_of[first],
                first,
                slowness[first : first + unit],
                timeline,
                cost,
                prefilled=self._prefilled,
                fetch=self._fetch,
                step_begins=self._step_begins,
            )
            for first in range(0, self.prefill_engines, unit)
        ]
        self.decode = [
            DecodeEngine(
                number,
                timeline,
                self._finished,
                base_s=costs.tpot_base_s * slowness[number],
                per_turn_s=costs.tpot_turn_s * slowness[number],
                per_token_s=costs.tpot_token_s * slowness[number],
            )
            for number in range(self.prefill_engines, self.engines)
        ]
        self.gates = (
            [Gate(costs.buffer_tokens, self._granted) for _ in range(nodes)]
            if modes.layerwise
            else [Gate(costs.pe_hbm_tokens, self._granted) for _ in range(self.prefill_engines)]
        )

    def start(self) -> None:
        for group in range(self.groups):
            self.control.fetch(group)

    def served(self, group: int) -> None:
        """A group's fetch brought turns and is closed: when will it ask again?"""
        if group >= self.prefill_groups:
            self.timeline.at(self.timeline.now_s + self.modes.decode_fetch_s, self._fetch, group)
        elif self.modes.event_driven or self._is_idle(group):
            self.timeline.at(self.timeline.now_s, self._fetch, group)

    def begin(self, turn: SimTurn) -> None:
        """The plan is there: pair and read side are known."""
        if self.modes.layerwise:
            self.gates[self.node_of[turn.de]].enter(turn)
        else:
            self.gates[turn.pe].enter(turn)

    def _is_idle(self, group: int) -> bool:
        per_group = self.shape.engines_per_node * self.shape.nodes_per_group // self._unit
        return all(unit.is_idle for unit in self.prefill[group * per_group : (group + 1) * per_group])

    def _fetch(self, group: int) -> None:
        self.control.fetch(group)

    def _step_begins(self, group: int) -> None:
        if not self.modes.event_driven:
            self.control.close_fetch(group)

    def _granted(self, turn: SimTurn) -> None:
        now = turn.granted_at_s = self.timeline.now_s
        ready = now
        if turn.hit_tokens and self.modes.transfers:
            node, other = self.node_of[turn.pe], self.node_of[turn.de]
            if turn.side is not ReadSide.PE:
                node, other = other, node
            ready = self.nics[node].read(now, turn.hit_tokens - turn.split_tokens)
            if turn.split_tokens:
                ready = max(ready, self.nics[other].read(now, turn.split_tokens))
            if self.notify_reads:
                self.timeline.at(ready, self.control.read_done, turn)
        turn.ready_at_s = ready
        self.prefill[turn.pe // self._unit].enqueue(turn, ready)

    def _prefilled(self, turns: list[SimTurn]) -> None:
        """A step of a PE group has ended these prefills."""
        now = self.timeline.now_s
        at, handed_over = self.timeline.at, self._handed_over
        for turn in turns:
            turn.prefilled_at_s = now
            self.control.prefill_done(turn)
            at(now + self._handover_s + turn.prompt_tokens * self._handover_token_s, handed_over, turn)
        if not self.modes.layerwise:
            at(now + self.costs.pe_hbm_hold_s, self._let_go, turns)

    def _let_go(self, turns: list[SimTurn]) -> None:
        """Without layerwise prefill a turn's KV stays in PE HBM until the DE has it."""
        for turn in turns:
            self.gates[turn.pe].leave(turn)

    def _handed_over(self, turn: SimTurn) -> None:
        """The prompt's KV is in the decode engine's HBM."""
        turn.decoding_at_s = self.timeline.now_s
        if self.modes.layerwise:
            self.gates[self.node_of[turn.de]].leave(turn)
        self.decode[turn.de - self.prefill_engines].start(turn)

    def _finished(self, turn: SimTurn) -> None:
        self.control.commit(turn)
