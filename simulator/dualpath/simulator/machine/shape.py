"""What a simulated cluster is made of: counts, rates and capacities, all in tokens of one model's KV."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dualpath.engine_agent.batch.quota import AttentionCost


@dataclass(frozen=True, slots=True)
class Shape:
    """P prefill and D decode nodes of `engines_per_node` GPUs; a group is `nodes_per_group` nodes of one role."""

    prefill_nodes: int
    decode_nodes: int
    engines_per_node: int = 8
    nodes_per_group: int = 1

    @property
    def name(self) -> str:
        return f"{self.prefill_nodes}P{self.decode_nodes}D"


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds and capacities of one model on one kind of hardware (paper §8); see profiles/ for the values.

    snic_*            a node's storage NIC: goodput, latency of a read and per token of it, both overlapping with
                      other reads; decode_share: goodput of a decode node's NIC over a prefill node's: it also persists
    attention         of a forward on one GPU; ffn_* and step_s: the rest of the forward
    cnic_tokens_per_s KV that a GPU's compute NIC moves per second in its own traffic class
    handover_s        from the end of a prefill to the first decode step, besides the copy to HBM by the compute NIC
    tpot_*            a decode step: base, per turn of the batch, per token of their contexts
    hbm_tokens        KV that fits a decode engine's HBM; buffer_tokens: a node's DE buffer
    pe_hbm_*          without layerwise prefill: KV that fits a PE's HBM, and how long it stays after the prefill
    lockstep          expert parallelism: all engines of a PE group step together
    """

    snic_tokens_per_s: float
    snic_latency_s: float
    snic_latency_token_s: float
    attention: AttentionCost
    ffn_turn_s: float
    ffn_token_s: float
    step_s: float
    handover_s: float
    tpot_base_s: float
    tpot_turn_s: float
    tpot_token_s: float
    hbm_tokens: int
    buffer_tokens: int
    pe_hbm_tokens: int
    pe_hbm_hold_s: float
    quota_s: float = 0.3
    cnic_tokens_per_s: float = float("inf")
    snic_decode_share: float = 1.0
    lockstep: bool = True


@dataclass(frozen=True, slots=True)
class Modes:
    """How the machine works: what the paper's variants switch.

    layerwise         one layer of the batch in PE HBM; without it a turn's whole prompt sits there (paper: Basic)
    transfers         False: reads and copies of KV cost nothing and take no time (paper: Oracle)
    event_driven      a PE group's fetch stays open during its steps; without, it asks only between steps (paper)
    weigh_nics        read queues are compared in seconds of each NIC's goodput, not in tokens
    split_reads       a turn's hit KV is read on both sides, so much on each that both are done at once
    joint_choice      the DE group is chosen with its read side in mind: what its storage NIC has to read counts as load
    decode_fetch_s    how often a DE group asks
    balance_window_s  over which the traffic of the storage NICs is compared
    """

    layerwise: bool = True
    transfers: bool = True
    event_driven: bool = False
    weigh_nics: bool = False
    split_reads: bool = False
    joint_choice: bool = False
    decode_fetch_s: float = 0.04
    balance_window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Nodes that are slower than the others, by number (prefill nodes first): 2.0 takes twice as long.

    nics  storage NICs; gpus: all engines of the node
    """

    nics: Mapping[int, float] = field(default_factory=dict)
    gpus: Mapping[int, float] = field(default_factory=dict)


NO_STRAGGLERS = Stragglers()
