"""Shape of the reference model: numbers of a Qwen2-style transformer, given or read from Hugging Face's config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dualpath.model.errors import Rejected


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
        for field in fields(self):
            if field.name != "tie_word_embeddings" and not getattr(self, field.name) > 0:
                raise _bad(f"{field.name} is {getattr(self, field.name)}, wanted more than 0", field=field.name)
        if self.num_attention_heads % self.num_key_value_heads:
            message = (
                f"{self.num_attention_heads} attention heads over {self.num_key_value_heads} key/value heads, "
                "wanted a multiple"
            )
            raise _bad(message, field="num_key_value_heads")
        if self.head_dim % 2:
            raise _bad(f"head_dim is {self.head_dim}, wanted even", field="head_dim")

    @property
    def kv_size(self) -> int:
        """Floats of K (or V) per token and layer."""
        return self.num_key_value_heads * self.head_dim

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @classmethod
    def from_json(cls, content: bytes) -> "ModelConfig":
        """Read a Hugging Face config.json.

        raises  Rejected for another architecture and for variants that we would silently compute wrongly
        """
        try:
            raw = json.loads(content)
            _refuse_variants(raw)
            known = {field.name: raw[field.name] for field in fields(cls) if raw.get(field.name) is not None}
            known.setdefault("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
            if "rope_theta" in (raw.get("rope_parameters") or {}):  # where newer files keep it
                known["rope_theta"] = raw["rope_parameters"]["rope_theta"]
            return cls(**known)
        except (ValueError, TypeError, AttributeError, KeyError, ZeroDivisionError) as error:
            raise _bad(f"config.json cannot be used: {error!r}", field="config.json") from error


def _refuse_variants(raw: Mapping[str, Any]) -> None:
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    found = {
        "model_type": (raw.get("model_type", "qwen2"), "qwen2"),
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "use_sliding_window": (raw.get("use_sliding_window", False), False),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    for name, (value, wanted) in found.items():
        if value != wanted:
            raise _bad(f"config.json: {name} is {value!r}, wanted {wanted!r}", field=name)


def _bad(message: str, *, field: str) -> Rejected:
    return Rejected(message, field=field, reason="MODEL_CONFIG")
