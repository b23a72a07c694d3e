"""The bottleneck-free range of P/D (paper §4.2), out of the traffic of both read paths and nothing else.

P prefill and D decode nodes, load balanced, every SNIC saturated: it reads snic_ratio x B bytes per second of hit KV.
Each byte then takes the arrows of its path (Fig. 4). What an arrow uses is in TRAFFIC; each inequality of §4.2 is one
resource's sum over that table. Miss KV (1.3 % of prompt tokens) and what a decode persists are left out, as there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from dualpath.model.errors import Rejected
from dualpath.model.turn import ReadSide


class Resource(StrEnum):
    """What can be a bottleneck: of a node its SNIC and memory (half duplex), of an engine its CNIC (full duplex)."""

    PE_SNIC = "pe_snic"
    PE_MEMORY = "pe_memory"
    PE_CNIC_READ = "pe_cnic_read"
    PE_CNIC_WRITE = "pe_cnic_write"
    DE_SNIC = "de_snic"
    DE_MEMORY = "de_memory"
    DE_CNIC_READ = "de_cnic_read"
    DE_CNIC_WRITE = "de_cnic_write"

    @property
    def side(self) -> ReadSide:
        return ReadSide(self.value.partition("_")[0])


@dataclass(frozen=True, slots=True)
class Arrow:
    """One move of a byte of hit KV, and the resources that carry it once each.

    A CNIC reads from what it takes bytes out of (host memory or HBM) and writes to where they go; a copy between a
    GPU and its own host passes the GPU's CNIC too (paper §5).
    """

    what: str
    uses: tuple[Resource, ...]


TRAFFIC: Mapping[ReadSide, tuple[Arrow, ...]] = {
    ReadSide.PE: (
        Arrow("1, 2: storage -> PE buffer", (Resource.PE_SNIC, Resource.PE_MEMORY)),
        Arrow("3, 4: PE buffer -> PE HBM", (Resource.PE_MEMORY, Resource.PE_CNIC_READ, Resource.PE_CNIC_WRITE)),
        Arrow("5-7: PE HBM -> DE buffer", (Resource.PE_CNIC_READ, Resource.DE_CNIC_WRITE, Resource.DE_MEMORY)),
        Arrow("decode: DE buffer -> DE HBM", (Resource.DE_MEMORY, Resource.DE_CNIC_READ, Resource.DE_CNIC_WRITE)),
    ),
    ReadSide.DE: (
        Arrow("1, 2: storage -> DE buffer", (Resource.DE_SNIC, Resource.DE_MEMORY)),
        Arrow("3-5: DE buffer -> PE HBM", (Resource.DE_MEMORY, Resource.DE_CNIC_READ, Resource.PE_CNIC_WRITE)),
        Arrow("decode: DE buffer -> DE HBM", (Resource.DE_MEMORY, Resource.DE_CNIC_READ, Resource.DE_CNIC_WRITE)),
    ),
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """A node: g engines with one CNIC each (B per direction), an SNIC of s x B, memory of M (paper §4.2)."""

    engines_per_node: int = 8
    snic_ratio: float | Fraction = 1
    cnic_bytes_per_s: float | Fraction = 50e9
    memory_bytes_per_s: float | Fraction = 500e9

    def __post_init__(self) -> None:
        _check_count("engines_per_node", self.engines_per_node)
        for name in ("snic_ratio", "cnic_bytes_per_s", "memory_bytes_per_s"):
            found = getattr(self, name)
            if not (0 < found < math.inf):
                raise Rejected(f"{name} is {found}, wanted a finite number above 0", field=name)
        if self.snic_ratio > Fraction(self.engines_per_node, 2):
            # Else the PE path alone overloads the CNICs of a PE, which read each byte twice.
            wanted = f"at most half of engines_per_node, {self.engines_per_node}"
            raise Rejected(f"snic_ratio is {self.snic_ratio}, wanted {wanted}", field="snic_ratio")


@dataclass(frozen=True, slots=True)
class FreeRange:
    """P/D from `low` to `high`, where nothing but storage limits; the resources of an end overload just outside it.

    Empty if low > high. low is infinite, or high at most 0, if its resources are overloaded at any P/D.
    """

    low: Fraction | float
    high: Fraction | float
    low_limits: tuple[Resource, ...]
    high_limits: tuple[Resource, ...]

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    def holds(self, prefill_nodes: int, decode_nodes: int) -> bool:
        """Whether this many nodes lie in the range, its ends included."""
        return self.low <= Fraction(prefill_nodes, decode_nodes) <= self.high


def loads(prefill_nodes: int, decode_nodes: int, hardware: Hardware) -> Mapping[Resource, float]:
    """Fraction of each resource's capacity in use when all SNICs are saturated; above 1 it is a bottleneck.

    raises  Rejected for less than one node of either role
    """
    _check_count("prefill_nodes", prefill_nodes)
    _check_count("decode_nodes", decode_nodes)
    ratio = Fraction(prefill_nodes, decode_nodes)
    found = {}
    for resource in Resource:
        own, other = _parts(resource, hardware)
        found[resource] = float(own + other * (ratio if resource.side is ReadSide.DE else 1 / ratio))
    return found


def free_range(hardware: Hardware) -> FreeRange:
    """Where no load is above 1, for all P and D at once: each load is own + other x D/P (or x P/D), solved for P/D."""
    lows = {one: _bound(one, hardware) for one in Resource if one.side is ReadSide.PE}
    highs = {one: _bound(one, hardware) for one in Resource if one.side is ReadSide.DE}
    low, high = max(lows.values()), min(highs.values())
    return FreeRange(
        low,
        high,
        low_limits=tuple(one for one, bound in lows.items() if bound == low),
        high_limits=tuple(one for one, bound in highs.items() if bound == high),
    )


def _bound(resource: Resource, hardware: Hardware) -> Fraction | float:
    """The least P/D that a PE's resource bears, or the greatest that a DE's does."""
    own, other = _parts(resource, hardware)
    is_lower = resource.side is ReadSide.PE
    if other == 0:  # the load does not depend on P/D: it bears all or none
        return Fraction(0) if is_lower == (own <= 1) else math.inf
    if is_lower:  # own + other / (P/D) <= 1
        return other / (1 - own) if own < 1 else math.inf
    return (1 - own) / other  # own + other x P/D <= 1


def _parts(resource: Resource, hardware: Hardware) -> tuple[Fraction, Fraction]:
    """Load of a resource by the read path of its own side, and by that of the other side if P equals D.

    A path carries snic_ratio x B for each node of the side that reads. The nodes of a role share all that comes to it,
    so the own path brings each of them exactly that, and the other path as much times the ratio of the nodes.
    """
    side = resource.side
    other_side = ReadSide.PE if side is ReadSide.DE else ReadSide.DE
    load = Fraction(hardware.snic_ratio) * Fraction(hardware.cnic_bytes_per_s) / _node_capacity(resource, hardware)
    return load * _uses(side, resource), load * _uses(other_side, resource)


def _uses(path: ReadSide, resource: Resource) -> int:
    return sum(arrow.uses.count(resource) for arrow in TRAFFIC[path])


def _node_capacity(resource: Resource, hardware: Hardware) -> Fraction:
    """Bytes per second of one node, all its engines' CNICs together."""
    cnic = Fraction(hardware.cnic_bytes_per_s)
    match resource:
        case Resource.PE_SNIC | Resource.DE_SNIC:
            return Fraction(hardware.snic_ratio) * cnic
        case Resource.PE_MEMORY | Resource.DE_MEMORY:
            return Fraction(hardware.memory_bytes_per_s)
        case _:
            return hardware.engines_per_node * cnic


def _check_count(name: str, found: int) -> None:
    if type(found) is not int or found < 1:
        raise Rejected(f"{name} is {found!r}, wanted a whole number of at least 1", field=name)
