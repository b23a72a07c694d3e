"""Shape and weights of the reference model: Qwen2-style, from a seed or from a safetensors file."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from dualpath.engine_agent.ports import Floats
from dualpath.model.errors import Rejected

WEIGHT_STD = 0.08  # at 0.02 even a zeroed KV block would not change greedy tokens, and tests would prove nothing


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Numbers of a decoder-only transformer with grouped-query attention; names as in Hugging Face's Qwen2 config."""

    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    vocab_size: int = 2048
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32_768
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            message = (
                f"{self.num_attention_heads} attention heads over {self.num_key_value_heads} key/value heads, "
                "wanted a multiple"
            )
            raise Rejected(message, field="num_key_value_heads", reason="MODEL_CONFIG")
        if self.head_dim % 2:
            raise Rejected(f"head_dim is {self.head_dim}, wanted even", field="head_dim", reason="MODEL_CONFIG")

    @property
    def kv_size(self) -> int:
        """Floats of K (or V) per token and layer."""
        return self.num_key_value_heads * self.head_dim

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @classmethod
    def from_json(cls, path: Path) -> "ModelConfig":
        """Read the fields we know from a Hugging Face config.json; others are ignored."""
        raw = json.loads(path.read_text())
        known = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
        known.setdefault("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
        return cls(**known)


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


def loaded_weights(config: ModelConfig, path: Path) -> Weights:
    """float32 weights of a safetensors file with Hugging Face's Qwen2 names; raises Rejected for a missing tensor."""
    tensors = load_file(path)

    def take(name: str, *shape: int) -> Floats:
        if name not in tensors:
            raise Rejected(f"{path.name} has no tensor {name}", field="weights", reason="MODEL_WEIGHTS")
        tensor = np.asarray(tensors[name], np.float32)
        if tensor.shape != shape:
            message = f"{path.name}: {name} has shape {tensor.shape}, wanted {shape}"
            raise Rejected(message, field="weights", reason="MODEL_WEIGHTS")
        return tensor

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
