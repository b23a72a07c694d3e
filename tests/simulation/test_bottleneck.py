"""The bottleneck-free range (§4.2): what the traffic table gives is what the closed formulas say."""

import itertools
import math
from fractions import Fraction

import pytest

from dualpath.model.errors import Rejected
from dualpath.model.turn import ReadSide
from dualpath.simulator.profiles.bottleneck import TRAFFIC, Hardware, Resource, free_range, loads

B = 50 * 10**9
SHAPES = ((1, 1), (1, 2), (2, 1), (2, 4), (1, 7), (1, 8), (7, 2), (4, 1), (48, 96), (3, 50))
NODES = [
    Hardware(engines_per_node=g, snic_ratio=s, cnic_bytes_per_s=B, memory_bytes_per_s=m * 10**9)
    for g, s, m in itertools.product((2, 4, 8, 16), map(Fraction, ("1/2", "1", "2", "4")), (120, 200, 500, 1000))
    if 2 * s <= g
]


def test_the_paper_s_hardware_is_free_from_one_seventh_to_seven_halves() -> None:
    """§4.2: g = 8, s = 1, M = 500 GB/s, B s = 50 GB/s."""
    found = free_range(Hardware())

    assert (found.low, found.high) == (Fraction(1, 7), Fraction(7, 2))
    assert found.low_limits == (Resource.PE_CNIC_WRITE,)
    assert found.high_limits == (Resource.DE_MEMORY, Resource.DE_CNIC_WRITE)


@pytest.mark.parametrize("hardware", NODES, ids=str)
def test_the_loads_are_those_of_the_traffic_between_pairs(hardware: Hardware) -> None:
    found = {shape: loads(*shape, hardware) for shape in SHAPES}

    assert found == {shape: _loads_by_pairs(*shape, hardware) for shape in SHAPES}


@pytest.mark.parametrize("hardware", NODES, ids=str)
def test_the_loads_are_the_left_sides_of_the_inequalities(hardware: Hardware) -> None:
    """§4.2: each over its capacity."""
    g, s, m = hardware.engines_per_node, float(hardware.snic_ratio), float(hardware.memory_bytes_per_s)

    for p, d in SHAPES:
        found = loads(p, d, hardware)

        assert found[Resource.PE_CNIC_READ] == pytest.approx(2 * s / g)
        assert found[Resource.PE_CNIC_WRITE] == pytest.approx(s / g * (1 + d / p))
        assert found[Resource.DE_CNIC_READ] == pytest.approx(s / g * (p / d + 2))
        assert found[Resource.DE_CNIC_WRITE] == pytest.approx(s / g * (2 * p / d + 1))
        assert found[Resource.DE_MEMORY] == pytest.approx((3 + 2 * p / d) * B * s / m)


@pytest.mark.parametrize("hardware", NODES, ids=str)
def test_the_range_is_that_of_the_closed_formulas(hardware: Hardware) -> None:
    """§4.2: s / (g - s) <= P/D <= min((g - 2s)/s, (g - s)/2s, (M/(B s) - 3)/2)."""
    g, s = hardware.engines_per_node, Fraction(hardware.snic_ratio)
    m = Fraction(hardware.memory_bytes_per_s)
    highs = {
        Resource.DE_CNIC_READ: (g - 2 * s) / s,
        Resource.DE_CNIC_WRITE: (g - s) / (2 * s),
        Resource.DE_MEMORY: (m / (B * s) - 3) / 2,
    }

    found = free_range(hardware)

    assert found.high == min(highs.values())
    assert set(found.high_limits) == {resource for resource, high in highs.items() if high == found.high}
    if 2 * B * s <= m:
        assert (found.low, found.low_limits) == (s / (g - s), (Resource.PE_CNIC_WRITE,))
    else:
        assert (found.low, found.low_limits) == (math.inf, (Resource.PE_MEMORY,))


@pytest.mark.parametrize("hardware", NODES, ids=str)
def test_a_shape_is_in_the_range_exactly_when_nothing_is_overloaded(hardware: Hardware) -> None:
    found = free_range(hardware)

    inside = [shape for shape in SHAPES if found.holds(*shape)]

    assert inside == [shape for shape in SHAPES if max(loads(*shape, hardware).values()) <= 1]


def test_just_outside_an_end_its_limits_are_what_is_overloaded() -> None:
    below = {resource for resource, load in loads(100, 701, Hardware()).items() if load > 1}
    above = {resource for resource, load in loads(701, 200, Hardware()).items() if load > 1}

    assert below == {Resource.PE_CNIC_WRITE}
    assert above == {Resource.DE_MEMORY, Resource.DE_CNIC_WRITE}


def test_a_range_can_be_empty() -> None:
    """DE memory carries at least three times what the SNIC reads: 120 GB/s leave no room beside 150."""
    found = free_range(Hardware(memory_bytes_per_s=120e9))

    assert found.is_empty
    assert found.high_limits == (Resource.DE_MEMORY,)
    assert not found.holds(1, 1)
    assert not free_range(Hardware()).is_empty


@pytest.mark.parametrize("side", list(ReadSide))
def test_only_the_node_that_reads_uses_its_storage_nic(side: ReadSide) -> None:
    """§4.1: the hit KV is read once, on the side of the path."""
    uses = [resource for arrow in TRAFFIC[side] for resource in arrow.uses if resource.value.endswith("snic")]

    assert [resource.side for resource in uses] == [side]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engines_per_node", 0),
        ("snic_ratio", 0),
        ("snic_ratio", 4.5),
        ("snic_ratio", math.nan),
        ("cnic_bytes_per_s", -1.0),
        ("memory_bytes_per_s", math.inf),
    ],
)
def test_hardware_that_cannot_be_is_rejected_by_its_field(field: str, value: float) -> None:
    values = {"engines_per_node": 8, "snic_ratio": 1, field: value}

    with pytest.raises(Rejected, match=f"{field} is {value}, wanted") as caught:
        Hardware(**values)  # type: ignore[arg-type]  # a wrong value is the point

    assert caught.value.field == field


def test_both_roles_need_a_node() -> None:
    with pytest.raises(Rejected, match="prefill_nodes is 0, wanted a whole number of at least 1"):
        loads(0, 1, Hardware())
    with pytest.raises(Rejected, match="decode_nodes is -1, wanted a whole number of at least 1"):
        loads(1, -1, Hardware())


def _loads_by_pairs(p: int, d: int, hardware: Hardware) -> dict[Resource, float]:
    """§4.2: a pair of engines carries T_p = B s / (D g^2) on the PE path and T_c = B s / (P g^2) on the DE path."""
    g, snic = hardware.engines_per_node, Fraction(hardware.snic_ratio) * B
    t_p, t_c = snic / (d * g**2), snic / (p * g**2)
    pairs_of_pe, pairs_of_de = d * g, p * g
    memory = Fraction(hardware.memory_bytes_per_s)
    loads_by_pairs = {
        Resource.PE_SNIC: g * pairs_of_pe * t_p / snic,
        Resource.PE_MEMORY: g * pairs_of_pe * 2 * t_p / memory,
        Resource.PE_CNIC_READ: pairs_of_pe * 2 * t_p / B,
        Resource.PE_CNIC_WRITE: pairs_of_pe * (t_p + t_c) / B,
        Resource.DE_SNIC: g * pairs_of_de * t_c / snic,
        Resource.DE_MEMORY: g * pairs_of_de * (2 * t_p + 3 * t_c) / memory,
        Resource.DE_CNIC_READ: pairs_of_de * (t_p + 2 * t_c) / B,
        Resource.DE_CNIC_WRITE: pairs_of_de * (2 * t_p + t_c) / B,
    }
    return {resource: float(load) for resource, load in loads_by_pairs.items()}
