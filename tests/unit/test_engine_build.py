"""Engines by name and options; whatever is wrong is one clear error."""

from pathlib import Path
from typing import Any

import pytest

from dualpath.engine_agent.engines.build import EngineSpec, build_engine
from dualpath.engine_agent.engines.emulated import EmulatedEngine
from dualpath.engine_agent.engines.reference import ReferenceEngine
from dualpath.model.errors import Rejected
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout


def test_the_default_reference_engine_has_the_documented_layout() -> None:
    engine = build_engine(EngineSpec("reference", {}))

    assert isinstance(engine, ReferenceEngine)
    assert engine.layout == BlockLayout(4, BLOCK_TOKENS, 512)
    assert (engine.model_name, engine.dtype, engine.tokens_max) == ("reference", "float32", 32_768)


def test_options_reach_the_reference_model_and_its_revision() -> None:
    one = build_engine(EngineSpec("reference", {"seed": 3, "num_hidden_layers": 2, "rope_theta": 1000}))
    other = build_engine(EngineSpec("reference", {"seed": 3, "num_hidden_layers": 2}))

    assert one.layout.num_layers == 2
    assert one.model_revision != other.model_revision


def test_options_reach_the_emulated_model_and_its_cost() -> None:
    options = {"num_layers": 61, "bytes_per_token_layer": 788, "vocab_size": 100, "decode_s_per_step": 1, "seed": 4}

    engine = build_engine(EngineSpec("emulated", {**options, "check_bytes": True}))

    assert isinstance(engine, EmulatedEngine)
    assert engine.layout == BlockLayout(61, BLOCK_TOKENS, 788)
    assert (engine.vocab_size, engine.cost.decode_s_per_step, engine.seed, engine.check_bytes) == (100, 1, 4, True)


def test_the_same_spec_builds_the_same_model() -> None:
    for kind in ("reference", "emulated"):
        one, other = (build_engine(EngineSpec(kind, {"seed": 5})) for _ in range(2))

        assert one.model_revision == other.model_revision
        assert isinstance(one, ReferenceEngine | EmulatedEngine) and isinstance(other, ReferenceEngine | EmulatedEngine)
        assert one.recompute([1, 2, 3], 4)[0] == other.recompute([1, 2, 3], 4)[0]


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(Rejected, match="'vllm' is unknown, wanted reference or emulated") as raised:
        build_engine(EngineSpec("vllm", {}))

    assert raised.value.reason == "UNKNOWN_ENGINE"


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("reference", {"layers": 4}, "'layers' is unknown"),
        ("reference", {"num_layers": 4}, "'num_layers' is unknown"),
        ("emulated", {"hidden_size": 4}, "'hidden_size' is unknown"),
        ("reference", {"hidden_size": "128"}, "hidden_size is '128', wanted int"),
        ("reference", {"seed": 1.5}, "seed is 1.5, wanted int"),
        ("reference", {"seed": True}, "seed is True, wanted int"),
        ("reference", {"seed": -1}, "seed is -1"),
        ("reference", {"folder": "x", "seed": 1}, "next to folder"),
        ("emulated", {"decode_s_per_step": "fast"}, "wanted float"),
        ("emulated", {"check_bytes": 1}, "wanted bool"),
        ("emulated", {"vocab_size": None}, "vocab_size is None, wanted int"),
        ("emulated", {"vocab_size": 0}, "vocab_size is 0"),
        ("emulated", {"tokens_max": -5}, "tokens_max is -5"),
        ("emulated", {"seed": -1}, "seed is -1"),
        ("emulated", {"num_layers": 0}, "num_layers is 0"),
        ("emulated", {"prefill_s_per_token": -0.1}, "prefill_s_per_token is -0.1"),
        ("reference", {"num_attention_heads": 3}, "wanted a multiple"),
    ],
)
def test_bad_options_are_rejected_and_named(kind: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(Rejected, match=named):
        build_engine(EngineSpec(kind, options))


def test_a_folder_that_is_not_there_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"cannot read config\.json"):
        build_engine(EngineSpec("reference", {"folder": str(tmp_path / "none")}))
