"""The reference transformer: against a naive one in float64, its KV layout, its memory, its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.engines.reference import ReferenceEngine
from dualpath.engine_agent.engines.transformer import ATTENTION_ROWS
from dualpath.engine_agent.engines.weights import Weights
from dualpath.model.errors import Broken, Rejected
from engine_support import (
    KV_TOLERANCE,
    LOGITS_TOLERANCE,
    SMALL,
    HostKv,
    Item,
    admit,
    forward,
    generate,
    prefill,
    random_tokens,
    small_reference,
)

Doubles = npt.NDArray[np.float64]
TINY = ModelConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    intermediate_size=20,
    vocab_size=40,
    max_position_embeddings=128,
)


# ---- arithmetic


def test_logits_are_those_of_a_naive_transformer_in_double_precision() -> None:
    engine = ReferenceEngine.seeded(TINY, seed=3)
    tokens = random_tokens(20, seed=1, vocab_size=40)

    assert np.allclose(engine.logits(tokens), naive_logits(engine, tokens), rtol=0, atol=LOGITS_TOLERANCE)


def naive_logits(engine: ReferenceEngine, tokens: list[int]) -> Doubles:
    """Qwen2 as its papers write it: one token, one head, one key at a time."""
    config, weights = engine.config, engine.weights
    x = weights.embedding[tokens].astype(np.float64)
    for layer in weights.layers:
        normed = naive_norm(x, layer.input_norm, config)
        joined = normed @ layer.qkv.astype(np.float64) + layer.qkv_bias
        q, k, v = np.split(joined, [config.query_size, config.query_size + config.kv_size], axis=1)
        mixed = np.zeros_like(q)
        for head in range(config.num_attention_heads):
            own = slice(head * config.head_dim, (head + 1) * config.head_dim)
            shared = head * config.num_key_value_heads // config.num_attention_heads
            theirs = slice(shared * config.head_dim, (shared + 1) * config.head_dim)
            keys = [naive_rotary(k[at, theirs], at, config) for at in range(len(tokens))]
            for at in range(len(tokens)):
                query = naive_rotary(q[at, own], at, config)
                scores = np.array([query @ key for key in keys[: at + 1]]) / np.sqrt(config.head_dim)
                shares = np.exp(scores) / np.exp(scores).sum()
                mixed[at, own] = shares @ v[: at + 1, theirs]
        x = x + mixed @ layer.output.astype(np.float64)
        normed = naive_norm(x, layer.post_norm, config)
        gate, up = np.split(normed @ layer.gate_up.astype(np.float64), 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down.astype(np.float64)
    logits: Doubles = naive_norm(x, weights.final_norm, config) @ weights.head.astype(np.float64)
    return logits


def naive_norm(x: Doubles, weight: npt.NDArray[np.float32], config: ModelConfig) -> Doubles:
    normed: Doubles = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + config.rms_norm_eps) * weight
    return normed


def naive_rotary(head: Doubles, position: int, config: ModelConfig) -> Doubles:
    """Dimensions i and i + half turn together by position / theta^(i / half)."""
    half, turned = len(head) // 2, np.zeros_like(head)
    for i in range(half):
        angle = position / config.rope_theta ** (2 * i / config.head_dim)
        turned[i] = head[i] * np.cos(angle) - head[i + half] * np.sin(angle)
        turned[i + half] = head[i + half] * np.cos(angle) + head[i] * np.sin(angle)
    return turned


@pytest.mark.parametrize("length", [ATTENTION_ROWS - 1, ATTENTION_ROWS, ATTENTION_ROWS + 1, 3 * ATTENTION_ROWS + 5])
def test_no_position_sees_a_later_one_wherever_attention_is_cut(length: int) -> None:
    engine = small_reference()
    tokens = random_tokens(length, seed=2)
    changed = [*tokens[:-1], (tokens[-1] + 1) % engine.vocab_size]

    before, after = engine.logits(tokens), engine.logits(changed)

    assert np.allclose(before[:-1], after[:-1], rtol=0, atol=LOGITS_TOLERANCE)
    assert not np.allclose(before[-1], after[-1], rtol=0, atol=0.1)


# ---- KV


def test_a_kv_row_is_k_after_rotary_then_v() -> None:
    engine = ReferenceEngine.seeded(TINY, seed=3)
    tokens = random_tokens(9, seed=3, vocab_size=40)
    layer = engine.weights.layers[0]
    normed = naive_norm(engine.weights.embedding[tokens].astype(np.float64), layer.input_norm, TINY)
    joined = normed @ layer.qkv.astype(np.float64) + layer.qkv_bias
    k, v = joined[8, TINY.query_size :][: TINY.kv_size], joined[8, -TINY.kv_size :]
    turned = np.concatenate([naive_rotary(head, 8, TINY) for head in k.reshape(2, 6)])

    host, _ = prefill(engine, tokens)

    row = host.rows(0).view(np.float32)[8]
    assert np.allclose(row, np.concatenate([turned, v]), rtol=0, atol=KV_TOLERANCE)


def test_the_layout_counts_two_floats_per_kv_head_dimension() -> None:
    assert small_reference().layout.bytes_per_token_layer == 2 * SMALL.num_key_value_heads * SMALL.head_dim * 4


def test_other_shapes_have_other_layout_hashes_and_other_weights_have_not() -> None:
    shapes = [
        ModelConfig(),
        ModelConfig(num_hidden_layers=2),
        ModelConfig(head_dim=24),
        ModelConfig(num_key_value_heads=4),
        ModelConfig(num_key_value_heads=1),
    ]
    hashes = [ReferenceEngine.seeded(shape).layout.layout_hash for shape in shapes]

    assert len(set(hashes)) == len(shapes)
    assert small_reference(seed=1).layout.layout_hash == small_reference(seed=2).layout.layout_hash


@pytest.mark.parametrize("damage", ["zeroed", "of another turn", "of another layer"])
def test_a_wrong_cached_block_is_seen_in_the_next_token(damage: str) -> None:
    engine = small_reference()
    prompt = random_tokens(200, seed=4)
    good, _ = prefill(engine, prompt[:192])
    bad = good.copy()
    if damage == "zeroed":
        bad.bytes[1] = 0
    elif damage == "of another turn":
        bad.bytes[1] = prefill(engine, random_tokens(128, seed=99))[0].bytes[1]
    else:
        bad.bytes[1] = good.bytes[1][::-1]

    right, wrong = (forward(engine, [Item(host, prompt[192:])])[0] for host in (good, bad))

    assert right is not None and wrong is not None
    assert right.logits is not None and wrong.logits is not None
    assert np.abs(right.logits - wrong.logits).max() > 1000 * LOGITS_TOLERANCE


def test_two_swapped_blocks_differ_in_bytes_though_hardly_in_logits() -> None:
    """Keys carry their position, so attention gives the same sum in another order: only bytes can tell."""
    engine = small_reference()
    prompt = random_tokens(200, seed=5)
    good, _ = prefill(engine, prompt[:192])
    bad = good.copy()
    bad.bytes[[0, 1]] = good.bytes[[1, 0]]

    right, wrong = (forward(engine, [Item(host, prompt[192:])])[0] for host in (good, bad))

    assert right is not None and wrong is not None
    assert right.logits is not None and wrong.logits is not None
    assert np.allclose(right.logits, wrong.logits, rtol=0, atol=LOGITS_TOLERANCE)
    assert (good.rows(0) != bad.rows(0)).mean() > 0.3


def test_a_zeroed_block_changes_what_decode_generates() -> None:
    engine = small_reference()
    prompt = random_tokens(200, seed=6)
    host, first = prefill(engine, prompt)
    damaged = host.copy()
    damaged.bytes[1] = 0

    good = generate(engine, "good", host, first.token, 20)
    bad = generate(engine, "bad", damaged, first.token, 20)

    assert good != bad
    assert not engine.verify(prompt, bad).equal


def test_kv_that_is_not_a_number_is_broken_and_not_a_token() -> None:
    engine = small_reference()
    host, first = prefill(engine, random_tokens(70, seed=7))
    host.bytes[:] = 0xFF

    with pytest.raises(Broken) as in_prefill:
        forward(engine, [Item(host.copy(), [1])])
    admit(engine, "t", host, first.token, room=5)
    with pytest.raises(Broken) as in_decode:
        engine.decode_step(["t"])

    assert {in_prefill.value.reason, in_decode.value.reason} == {"NOT_FINITE"}


def test_a_forward_holds_one_layer_of_its_batch_at_a_time() -> None:
    """§4.1, layerwise prefill: the peak is one layer's KV of the batch, a num_layers-th of a conventional prefill."""
    engine = small_reference()
    hosts = [prefill(engine, random_tokens(count, seed=count))[0] for count in (192, 128)]
    engine.resident_kv_bytes_peak = 0

    forward(engine, [Item(host, [1, 2, 3]) for host in hosts])

    tokens = 192 + 3 + 128 + 3
    assert engine.resident_kv_bytes_peak == tokens * engine.layout.bytes_per_token_layer
    assert engine.resident_kv_bytes_peak * engine.layout.num_layers == tokens * engine.layout.bytes_per_token


# ---- files


def test_a_model_folder_gives_the_model_it_was_written_from(tmp_path: Path) -> None:
    engine = ReferenceEngine.seeded(TINY, seed=3)
    write_model(tmp_path / "tiny", engine)

    loaded = ReferenceEngine.from_safetensors(tmp_path / "tiny")

    tokens = random_tokens(20, seed=8, vocab_size=40)
    assert loaded.model_name == "tiny"
    assert np.array_equal(loaded.logits(tokens), engine.logits(tokens))


def test_a_tied_model_takes_its_head_from_the_embedding(tmp_path: Path) -> None:
    tied = ModelConfig(hidden_size=16, num_hidden_layers=1, vocab_size=40, tie_word_embeddings=True)
    engine = ReferenceEngine.seeded(tied)
    write_model(tmp_path, engine)

    loaded = ReferenceEngine.from_safetensors(tmp_path)

    assert np.array_equal(loaded.weights.head, loaded.weights.embedding.T)
    assert np.array_equal(loaded.logits([1, 2]), engine.logits([1, 2]))


@pytest.mark.parametrize(("kind", "tolerance"), [("F16", 0.05), ("BF16", 0.3)])
def test_half_precision_files_are_read(tmp_path: Path, kind: str, tolerance: float) -> None:
    engine = ReferenceEngine.seeded(TINY, seed=3)
    write_model(tmp_path, engine, kind=kind)

    loaded = ReferenceEngine.from_safetensors(tmp_path)

    assert np.allclose(loaded.weights.head, engine.weights.head, rtol=0.01, atol=1e-4)
    assert np.allclose(loaded.logits([1, 2, 3]), engine.logits([1, 2, 3]), rtol=0, atol=tolerance)


def test_the_revision_names_weights_and_shape(tmp_path: Path) -> None:
    write_model(tmp_path / "a", ReferenceEngine.seeded(TINY, seed=3))
    write_model(tmp_path / "b", ReferenceEngine.seeded(TINY, seed=4))
    write_model(tmp_path / "c", ReferenceEngine.seeded(TINY, seed=3), changes={"rope_theta": 500.0})

    revisions = {name: ReferenceEngine.from_safetensors(tmp_path / name).model_revision for name in "abc"}

    assert len(set(revisions.values())) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 5}, "even"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": "wide"}, "cannot be used"),
    ],
)
def test_a_config_that_would_be_computed_wrongly_is_rejected(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    write_model(tmp_path, ReferenceEngine.seeded(TINY), changes=change)

    with pytest.raises(Rejected, match=named):
        ReferenceEngine.from_safetensors(tmp_path)


def test_rope_theta_is_found_where_newer_files_keep_it() -> None:
    raw = {"hidden_size": 8, "num_attention_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}

    config = ModelConfig.from_json(json.dumps({**raw, "num_key_value_heads": 1}).encode())

    assert (config.rope_theta, config.head_dim) == (1e6, 4)


@pytest.mark.parametrize(
    "damage", ["no folder", "no weights", "no json", "cut weights", "missing tensor", "shape", "I32"]
)
def test_a_damaged_model_folder_is_rejected(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "model"
    if damage != "no folder":
        write_model(folder, ReferenceEngine.seeded(TINY), damage=damage)
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    if damage == "no json":
        (folder / "config.json").write_text("{")
    if damage == "cut weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-10])

    with pytest.raises(Rejected):
        ReferenceEngine.from_safetensors(folder)


def write_model(
    folder: Path,
    engine: ReferenceEngine,
    *,
    kind: str = "F32",
    damage: str = "",
    changes: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """A model folder as Hugging Face writes it: matrices [out, in], q, k, v and gate, up apart."""
    folder.mkdir(parents=True, exist_ok=True)
    config = engine.config
    names = ModelConfig.__dataclass_fields__
    shape = {name: getattr(config, name) for name in names}
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", **shape, **changes}))
    tensors = hugging_face_tensors(engine.weights, config)
    if damage == "missing tensor":
        del tensors["model.norm.weight"]
    if damage == "shape":
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    stored: dict[str, npt.NDArray[np.generic]] = dict(tensors)
    if damage == "I32":
        stored["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int32)
    if kind == "F16":
        stored = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    if kind == "BF16":
        stored = {name: (tensor.view(np.uint32) >> np.uint32(16)).astype(np.uint16) for name, tensor in tensors.items()}
    path = folder / "model.safetensors"
    save_file(stored, path)
    if kind == "BF16":  # NumPy has no such type: written as U16, renamed in the header, which keeps its length
        content = path.read_bytes()
        header = int.from_bytes(content[:8], "little")
        text = content[8 : 8 + header].replace(b'"U16"', b'"BF16"').rstrip()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + header :])


def hugging_face_tensors(weights: Weights, config: ModelConfig) -> dict[str, npt.NDArray[np.float32]]:
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = weights.head.T
    cuts = [config.query_size, config.query_size + config.kv_size]
    for number, layer in enumerate(weights.layers):
        at = f"model.layers.{number}."
        tensors[f"{at}input_layernorm.weight"] = layer.input_norm
        tensors[f"{at}post_attention_layernorm.weight"] = layer.post_norm
        for name, part in zip("qkv", np.split(layer.qkv.T, cuts), strict=True):
            tensors[f"{at}self_attn.{name}_proj.weight"] = part
        for name, bias in zip("qkv", np.split(layer.qkv_bias, cuts), strict=True):
            tensors[f"{at}self_attn.{name}_proj.bias"] = bias
        tensors[f"{at}self_attn.o_proj.weight"] = layer.output.T
        for name, part in zip(("gate", "up"), np.split(layer.gate_up.T, 2), strict=True):
            tensors[f"{at}mlp.{name}_proj.weight"] = part
        tensors[f"{at}mlp.down_proj.weight"] = layer.down.T
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def test_the_host_memory_of_these_tests_is_laid_out_as_full_blocks() -> None:
    engine = small_reference()

    host, _ = prefill(engine, random_tokens(130, seed=9))

    assert isinstance(host, HostKv)
    assert [block.nbytes for block in host.full_blocks()] == [engine.layout.full_block_bytes] * 3
    assert all(
        bytes(full)[layer * engine.layout.layer_block_bytes :][: engine.layout.layer_block_bytes] == bytes(part)
        for layer in range(3)
        for full, part in zip(host.full_blocks(), host.layer_blocks(layer), strict=True)
    )
