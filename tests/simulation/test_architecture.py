"""Bytes and FLOPs of the three models by formula, against the numbers known of the paper's models (§A.2)."""

import json
from pathlib import Path

import pytest

from dualpath.model.errors import Rejected
from dualpath.simulator.profiles.architecture import Architecture, load_architecture

GIGA = 1e9
DENSE = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "kv_bytes_per_element": 2,
}
LATENT = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
    "kv_bytes_per_element": 2,
}
EXPERTS = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10}


@pytest.mark.parametrize(
    ("model", "kv_bytes", "full_block_megabytes"),
    [("ds-660b", 61 * (656 + 132), 3.08), ("ds-27b", 30 * (656 + 68), 1.39), ("qwen-32b", 64 * 2 * 8 * 128 * 2, 16.8)],
)
def test_a_token_has_the_kv_bytes_of_the_paper_s_model(model: str, kv_bytes: int, full_block_megabytes: float) -> None:
    """§A.2 and §A.5: 48,068, 21,720 and 262,144 bytes; blocks of 64 tokens."""
    found = load_architecture(model)

    assert found.kv_bytes_per_token == kv_bytes
    assert found.full_block_bytes(64) == 64 * kv_bytes
    assert found.full_block_bytes() / 1e6 == pytest.approx(full_block_megabytes, rel=0.002)


@pytest.mark.parametrize(
    ("model", "linear", "attention", "indexer_per_key"),
    [("ds-660b", 73.1, 34.8, 0.9994e-3), ("ds-27b", 7.92, 2.14, 0.1229e-3), ("qwen-32b", 62.4, 1.311e-3, 0)],
)
@pytest.mark.parametrize("context", [16_384, 65_536])
def test_a_token_costs_the_flops_of_the_paper_s_model(
    model: str, linear: float, attention: float, indexer_per_key: float, context: int
) -> None:
    """In GFLOP; the main attention of the sparse models sees 2,048 tokens, that of Qwen all of them."""
    found = load_architecture(model).flops_per_token(context)

    assert found.linear / GIGA == pytest.approx(linear, rel=0.001)
    assert found.attention / GIGA == pytest.approx(attention * (context if model == "qwen-32b" else 1), rel=0.001)
    assert found.indexer / GIGA == pytest.approx(indexer_per_key * context, rel=0.001)
    assert found.total == found.linear + found.attention + found.indexer


@pytest.mark.parametrize(("context", "ratio"), [(16_384, 12.3), (32_700, 21.7), (65_536, 35.2)])
def test_the_cache_compute_ratio_is_the_paper_s_without_the_indexer_s_keys(context: int, ratio: float) -> None:
    """The paper has 13 to 36 GB per PFLOP for V3.2, and about 22 for the mean context of its 64K trace."""
    found = load_architecture("ds-660b")

    assert found.cache_compute_ratio_gb_per_pflop(context, index_keys=False) == pytest.approx(ratio, rel=0.003)


def test_the_indexer_s_keys_add_their_share_to_the_ratio() -> None:
    found = load_architecture("ds-660b")

    with_and_without = [found.cache_compute_ratio_gb_per_pflop(32_768, index_keys=keys) for keys in (True, False)]

    assert with_and_without[0] / with_and_without[1] == pytest.approx((656 + 132) / 656)


def test_a_context_below_the_top_k_is_seen_whole() -> None:
    found = load_architecture("ds-660b")

    assert found.flops_per_token(1_024).attention == found.flops_per_token(2_048).attention / 2
    assert found.flops_per_token(4_096).attention == found.flops_per_token(2_048).attention


def test_a_dense_model_is_counted_by_hand() -> None:
    """Heads of 2: query and output 2 x 8 x 8, key and value 2 x 8 x 4, MLP 3 x 8 x 16; two layers."""
    found = _from(DENSE)

    assert found.linear_parameters == 2 * (128 + 64 + 384)
    assert found.kv_bytes_per_token == 2 * (2 * 2 * 2 * 2)
    assert found.flops_per_token(10).attention == 2 * 10 * (2 * 2 * 4 * 2)


def test_a_latent_model_is_counted_by_hand() -> None:
    """Query 8 x 2 x 5, latent down 8 x 6 and up 4 x 2 x 8, output 2 x 5 x 8, MLP 3 x 8 x 16; three layers."""
    found = _from(LATENT)

    assert found.linear_parameters == 3 * (80 + 48 + 64 + 80 + 384)
    assert found.kv_bytes_per_token == 3 * 2 * 6
    assert found.flops_per_token(10).attention == 3 * 10 * (2 * 2 * (4 + 2 + 4))


def test_a_query_with_a_rank_goes_down_and_up() -> None:
    """8 x 7 + 7 x 10 in place of 8 x 10, in each of three layers."""
    added = _from(LATENT | {"q_lora_rank": 7}).linear_parameters - _from(LATENT).linear_parameters

    assert added == 3 * (56 + 70 - 80)


def test_experts_take_the_place_of_the_mlp_after_the_dense_layers() -> None:
    """One dense layer; two layers of 2 + 1 experts of 3 x 8 x 10 and a router of 8 x 6 in place of 3 x 8 x 16."""
    experts = EXPERTS | {"n_shared_experts": 1, "first_k_dense_replace": 1}

    added = _from(LATENT | experts).linear_parameters - _from(LATENT).linear_parameters

    assert added == 2 * (3 * 240 + 48 - 384)


def test_a_model_of_experts_alone_needs_no_dense_width() -> None:
    found = _from({name: value for name, value in (LATENT | EXPERTS).items() if name != "intermediate_size"})

    assert found.linear_parameters == 3 * (80 + 48 + 64 + 80 + 2 * 240 + 48)


def test_stated_parameters_and_bytes_go_before_the_formulas() -> None:
    found = _from(LATENT | {"active_parameters": 1_000, "kv_latent_bytes": 7})

    assert found.flops_per_token(0).total == 2_000
    assert found.kv_bytes_per_token == 3 * 7


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"hiden_size": 8}, "hiden_size", "is unknown, wanted one of hidden_size, "),
        ({"num_hidden_layers": None}, "num_hidden_layers", "is missing, wanted a whole number"),
        ({"num_key_value_heads": None}, "num_key_value_heads", "is missing, wanted a whole number"),
        ({"kv_bytes_per_element": None}, "kv_bytes_per_element", "is missing, wanted a whole number"),
        ({"hidden_size": 0}, "hidden_size", "is 0, wanted a whole number from 1 to "),
        ({"hidden_size": "8"}, "hidden_size", "is '8', wanted a whole number from 1 to "),
        ({"hidden_size": 8.0}, "hidden_size", "is 8.0, wanted a whole number from 1 to "),
        ({"hidden_size": True}, "hidden_size", "is True, wanted a whole number from 1 to "),
        ({"hidden_size": 10**16}, "hidden_size", "is 10000000000000000, wanted a whole number from 1 to "),
        ({"hidden_size": 9}, "head_dim", "is missing, wanted because hidden_size is no multiple of"),
        ({"num_key_value_heads": 5}, "num_key_value_heads", "is 5, wanted at most num_attention_heads, which is 4"),
        ({"n_shared_experts": -1}, "n_shared_experts", "is -1, wanted a whole number from 0 to "),
        (EXPERTS | {"first_k_dense_replace": 3}, "first_k_dense_replace", "is 3, wanted at most num_hidden_layers"),
        (EXPERTS | {"num_experts_per_tok": 7}, "num_experts_per_tok", "is 7, wanted at most n_routed_experts"),
        ({"first_k_dense_replace": 1}, "num_experts_per_tok", "is missing, wanted a whole number"),
        ({"kv_lora_rank": 4}, "qk_rope_head_dim", "is missing, wanted a whole number"),
        ({"index_topk": 4}, "kv_lora_rank", "is missing, wanted because the indexer needs latent attention"),
    ],
)
def test_a_config_that_says_nothing_sure_is_rejected(changes: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(Rejected) as caught:
        _from(DENSE | changes)

    assert str(caught.value).startswith(f"some.toml: config.{field} {message}")
    assert caught.value.field == f"config.{field}"


def test_a_profile_of_the_user_s_own_is_read_and_its_other_tables_are_not(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    lines = "\n".join(f"{name} = {value}" for name, value in DENSE.items())
    path.write_text(f'source = "made up"\nshape = "1P1D"\n[config]\n{lines}\n[costs]\nanything = "goes"\n')

    found = load_architecture(path)

    assert (found.name, found.source) == ("tiny", "made up")
    assert found.linear_parameters == _from(DENSE).linear_parameters


def test_a_config_json_of_a_known_family_is_read(tmp_path: Path) -> None:
    """Qwen2.5-32B as it is published: no head_dim, a window that is switched off, fields that do not matter."""
    found = load_architecture(_config_json(tmp_path))

    ours = load_architecture("qwen-32b")
    assert found.kv_bytes_per_token == ours.kv_bytes_per_token
    assert found.flops_per_token(1_000) == ours.flops_per_token(1_000)


def test_the_format_of_the_kv_can_be_added_to_a_config_json(tmp_path: Path) -> None:
    found = load_architecture(_config_json(tmp_path, kv_bytes_per_element=1))

    assert found.kv_bytes_per_token == load_architecture("qwen-32b").kv_bytes_per_token / 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral', wanted one of deepseek_v2, "),
        ({"model_type": None}, "model_type is None, wanted one of deepseek_v2, "),
        ({"use_sliding_window": True}, "model_type is 'qwen2', wanted .* without a sliding window"),
        ({"torch_dtype": "auto"}, "config.kv_bytes_per_element is missing"),
    ],
)
def test_a_config_json_whose_cost_is_not_known_is_rejected(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(Rejected, match=message):
        load_architecture(_config_json(tmp_path, **changes))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken.toml", "= 1", "broken.toml.*; wanted one of ds-27b, ds-660b, qwen-32b, or the path"),
        ("broken.json", "{", "broken.json.*; wanted one of ds-27b, ds-660b, qwen-32b, or the path"),
        ("list.json", "[]", "list.json: model_type is None, wanted one of "),
        ("empty.toml", "", r"empty.toml: config is None, wanted a table \[config\]"),
        ("number.toml", "config = 1", r"number.toml: config is 1, wanted a table \[config\]"),
        ("name.toml", "name = 1\n[config]", "name.toml: name is 1, source is .*, wanted two texts"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(Rejected, match=message):
        load_architecture(tmp_path / name)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(Rejected, match=r"model 'ds-66b': No such file .*; wanted one of ds-27b, ds-660b, qwen-32b"):
        load_architecture("ds-66b")


def _from(config: dict[str, object] | dict[str, int]) -> Architecture:
    return Architecture.from_config(config, name="some", source="a test", where="some.toml")


def _config_json(folder: Path, **changes: object) -> Path:
    published: dict[str, object] = {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "model_type": "qwen2",
        "num_attention_heads": 40,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "sliding_window": 131072,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 152064,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(published | changes))
    return path
