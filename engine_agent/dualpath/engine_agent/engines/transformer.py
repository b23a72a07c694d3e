"""The arithmetic of one Qwen2-style layer in NumPy: RMSNorm, rotary, grouped-query attention, SwiGLU. No state."""

import numpy as np
import numpy.typing as npt

from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.engines.weights import LayerWeights, Weights
from dualpath.engine_agent.ports import Floats

Positions = npt.NDArray[np.int64]
ATTENTION_ROWS = 64  # query rows whose scores are held at once: a long prompt needs no square matrix, caches are hit
_CAUSAL = np.triu(np.full((ATTENTION_ROWS, ATTENTION_ROWS), -np.inf, np.float32), k=1)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    scale = 1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    normed: Floats = x * scale * weight
    return normed


class Rotary:
    """Cosines and sines of the positions up to `tokens_max`, rotate-half convention."""

    def __init__(self, config: ModelConfig) -> None:
        half = config.head_dim // 2
        frequencies = 1.0 / config.rope_theta ** (np.arange(half, dtype=np.float64) / half)
        angles = np.outer(np.arange(config.max_position_embeddings), frequencies)
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)
        self._half = half

    def apply(self, x: Floats, positions: Positions) -> Floats:
        """x [tokens, heads, head_dim] turned to its positions [tokens]."""
        cos, sin = self._cos[positions][:, None, :], self._sin[positions][:, None, :]
        first, second = x[..., : self._half], x[..., self._half :]
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def project_qkv(
    x: Floats,
    weights: LayerWeights,
    config: ModelConfig,
    rotary: Rotary,
    positions: Positions,
) -> tuple[Floats, Floats]:
    """Queries [tokens, heads, head_dim] and KV rows [tokens, 2 x kv_size] of x [tokens, hidden], both rotated."""
    joined = rms_norm(x, weights.input_norm, config.rms_norm_eps) @ weights.qkv + weights.qkv_bias
    tokens, query, kv = len(x), config.query_size, config.kv_size
    q = rotary.apply(joined[:, :query].reshape(tokens, -1, config.head_dim), positions)
    k = rotary.apply(joined[:, query : query + kv].reshape(tokens, -1, config.head_dim), positions)
    rows = np.empty((tokens, 2 * kv), np.float32)
    rows[:, :kv] = k.reshape(tokens, kv)
    rows[:, kv:] = joined[:, query + kv :]
    return q, rows


def attend(q: Floats, rows: Floats, config: ModelConfig, *, first: int) -> Floats:
    """Causal attention of queries at positions first, first+1, ... over the KV rows of positions 0, 1, ...

    q     [tokens, heads, head_dim]
    rows  [first + tokens, 2 x kv_size]: K after rotary, then V
    return [tokens, heads x head_dim]
    """
    kv_heads, dim = config.num_key_value_heads, config.head_dim
    share = config.num_attention_heads // kv_heads
    keys = rows[:, : config.kv_size].reshape(len(rows), kv_heads, dim).transpose(1, 2, 0)  # [kv_heads, dim, seen]
    values = rows[:, config.kv_size :].reshape(len(rows), kv_heads, dim).transpose(1, 0, 2)  # [kv_heads, seen, dim]
    out = np.empty((len(q), config.num_attention_heads * dim), np.float32)
    scale = np.float32(1.0 / np.sqrt(dim))
    for start in range(0, len(q), ATTENTION_ROWS):
        part = q[start : start + ATTENTION_ROWS]
        count, seen = len(part), first + start + len(part)
        # one matrix product per KV head: its `share` query heads are stacked as rows
        stacked = part.reshape(count, kv_heads, share, dim).transpose(1, 2, 0, 3).reshape(kv_heads, share * count, dim)
        scores = (stacked * scale) @ keys[:, :, :seen]
        if count > 1:  # only the part's own square has anything to hide; all earlier columns are visible
            scores.reshape(kv_heads, share, count, seen)[..., seen - count :] += _CAUSAL[:count, :count]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        # dividing after the product touches head_dim columns instead of all seen ones
        mixed = (scores @ values[:, :seen]) / scores.sum(axis=-1, keepdims=True)
        out[start : start + count] = mixed.reshape(kv_heads, share, count, dim).transpose(2, 0, 1, 3).reshape(count, -1)
    return out


def finish_layer(x: Floats, attended: Floats, weights: LayerWeights, config: ModelConfig) -> Floats:
    """Output projection and SwiGLU with their residuals; x and the result are [tokens, hidden]."""
    x = x + attended @ weights.output
    joined = rms_norm(x, weights.post_norm, config.rms_norm_eps) @ weights.gate_up
    gate, up = joined[:, : config.intermediate_size], joined[:, config.intermediate_size :]
    with np.errstate(over="ignore"):  # exp of a large number is inf, and gate / inf is the 0 that SiLU wants
        y: Floats = x + (gate / (1.0 + np.exp(-gate)) * up) @ weights.down
    return y


def logits_of(x: Floats, weights: Weights, config: ModelConfig) -> Floats:
    """The head: [tokens, vocab_size] of the last layer's output [tokens, hidden]."""
    logits: Floats = rms_norm(x, weights.final_norm, config.rms_norm_eps) @ weights.head
    return logits
