"""Profiles: the built-in ones load, and a wrong field is named with the file, the value found and the value wanted."""

from pathlib import Path

import pytest

from dualpath.model.errors import Rejected
from dualpath.simulator.profiles.architecture import model_file, model_names
from dualpath.simulator.profiles.profile import load_profile, parse_shape

TEXT = model_file("ds-27b").read_text()


@pytest.mark.parametrize("name", model_names())
def test_a_built_in_profile_loads(name: str) -> None:
    profile = load_profile(name)

    assert profile.name == name
    assert profile.limits.alpha_tokens == pytest.approx(3 * profile.costs.snic_tokens_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        ("handover_s", "hand_over_s", "costs.hand_over_s is unknown, wanted one of"),
        ("snic_latency_s = 0.1", "snic_latency_s = -1", "costs.snic_latency_s is -1, wanted a number of at least 0"),
        ("snic_latency_s = 0.1", 'snic_latency_s = "slow"', "costs.snic_latency_s is 'slow'"),
        ("tpot_base_s", "# tpot_base_s", "costs.tpot_base_s is missing"),
        ('shape = "1P1D"', 'shape = "0P1D"', "shape is '0P1D', wanted prefill and decode nodes such as 2P4D"),
        ("[limits]", "[limit]", r"wanted a table \[limits\]"),
        ("[costs]", "[costs", "wanted one of ds-27b, ds-660b, qwen-32b, or the path"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, found: str, put: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    assert found in TEXT
    file.write_text(TEXT.replace(found, put, 1))

    with pytest.raises(Rejected, match=message) as caught:
        load_profile(str(file))
    assert str(file) in str(caught.value) or "shape" in message


def test_a_profile_of_ones_own_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        TEXT.replace('name = "ds-27b"', 'name = "mine"').replace("tpot_base_s = 0.0118", "tpot_base_s = 0.02")
    )

    assert load_profile(str(file)).name == "mine"
    assert load_profile(str(file)).costs.tpot_base_s == 0.02


@pytest.mark.parametrize("text", ["", "2P", "P4D", "2P4D1", "-1P2D", "2p4", "99999P1D"])
def test_a_shape_is_nodes_of_both_roles(text: str) -> None:
    with pytest.raises(Rejected, match="wanted prefill and decode nodes"):
        parse_shape(text)
