"""Weights of the reference model: random from a seed, or from a safetensors file with Hugging Face's Qwen2 names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.ports import Floats
from dualpath.model.errors import Rejected

WEIGHT_STD = 0.08  # at 0.02 even a zeroed KV block would not change greedy tokens, and tests would prove nothing


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; matrices are [in, out], so that activations stand on the left. qkv and gate_up are joined."""

    input_norm: Floats
    qkv: Floats
    qkv_bias: Floats
    output: Floats
    post_norm: Floats
    gate_up: Floats
    down: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Floats  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Floats
    head: Floats  # [hidden, vocab]


def seeded_weights(config: ModelConfig, seed: int) -> Weights:
    """Random weights, the same for one seed everywhere."""
    rng = np.random.Generator(np.random.PCG64(seed))

    def normal(*shape: int) -> Floats:
        return (rng.standard_normal(shape) * WEIGHT_STD).astype(np.float32)

    hidden, kv, query = config.hidden_size, config.kv_size, config.query_size
    ones = np.ones(hidden, np.float32)
    layers = tuple(
        LayerWeights(
            input_norm=ones,
            qkv=normal(hidden, query + 2 * kv),
            qkv_bias=normal(query + 2 * kv),
            output=normal(query, hidden),
            post_norm=ones,
            gate_up=normal(hidden, 2 * config.intermediate_size),
            down=normal(config.intermediate_size, hidden),
        )
        for _ in range(config.num_hidden_layers)
    )
    embedding = normal(config.vocab_size, hidden)
    head = embedding.T.copy() if config.tie_word_embeddings else normal(hidden, config.vocab_size)
    return Weights(embedding, layers, ones, head)


def loaded_weights(config: ModelConfig, content: bytes, *, name: str) -> Weights:
    """float32 weights from the bytes of a safetensors file (F32, F16 or BF16).

    raises  Rejected for a damaged file, a missing tensor, a wrong shape or another type of numbers
    """
    tensors = _tensors(content, name)

    def take(tensor: str, *shape: int) -> Floats:
        if tensor not in tensors:
            raise _bad(f"{name} has no tensor {tensor}")
        found = _as_float32(tensors[tensor], f"{name}: {tensor}")
        if found.shape != shape:
            raise _bad(f"{name}: {tensor} has shape {found.shape}, wanted {shape}")
        return found

    hidden, kv, query, inner = config.hidden_size, config.kv_size, config.query_size, config.intermediate_size
    layers = []
    for number in range(config.num_hidden_layers):
        at = f"model.layers.{number}."
        attention = f"{at}self_attn."
        parts = (("q_proj", query), ("k_proj", kv), ("v_proj", kv))
        layers.append(
            LayerWeights(
                input_norm=take(f"{at}input_layernorm.weight", hidden),
                qkv=np.concatenate([take(f"{attention}{n}.weight", size, hidden) for n, size in parts]).T.copy(),
                qkv_bias=np.concatenate([take(f"{attention}{n}.bias", size) for n, size in parts]),
                output=take(f"{attention}o_proj.weight", hidden, query).T.copy(),
                post_norm=take(f"{at}post_attention_layernorm.weight", hidden),
                gate_up=np.concatenate(
                    [take(f"{at}mlp.{n}.weight", inner, hidden) for n in ("gate_proj", "up_proj")]
                ).T.copy(),
                down=take(f"{at}mlp.down_proj.weight", hidden, inner).T.copy(),
            )
        )
    embedding = take("model.embed_tokens.weight", config.vocab_size, hidden)
    tied = config.tie_word_embeddings
    head = embedding if tied else take("lm_head.weight", config.vocab_size, hidden)
    return Weights(embedding, tuple(layers), take("model.norm.weight", hidden), head.T.copy())


def read_bytes(path: Path) -> bytes:
    """raises Rejected, naming the file, if it cannot be read"""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _bad(f"cannot read {path.name} of the model folder: {error.strerror}") from error


def _tensors(content: bytes, name: str) -> dict[str, Mapping[str, Any]]:
    try:
        return dict(deserialize(content))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise _bad(f"{name} is not a safetensors file: {error}") from error


def _as_float32(view: Mapping[str, Any], what: str) -> Floats:
    # By hand: safetensors' own NumPy reader does not know bfloat16, which most checkpoints use.
    match view["dtype"]:
        case "F32":
            flat = np.frombuffer(view["data"], "<f4").astype(np.float32)
        case "F16":
            flat = np.frombuffer(view["data"], "<f2").astype(np.float32)
        case "BF16":
            flat = (np.frombuffer(view["data"], "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case other:
            raise _bad(f"{what} is {other}, wanted F32, F16 or BF16")
    return flat.reshape(tuple(view["shape"]))


def _bad(message: str) -> Rejected:
    return Rejected(message, field="weights", reason="MODEL_WEIGHTS")
