"""KV bytes and FLOPs per token of a model, by formula from its config (models of paper §A.2; names of Hugging Face).

Counted are the matrix products of the layers at two FLOPs per multiply-add. Not counted: LM head, embeddings, norms,
biases, softmax. Our reading for latent attention (MLA): queries and values work on the latent itself, in prefill too.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from dualpath.model.errors import Rejected
from dualpath.model.layout import BLOCK_TOKENS

BASIC = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
GROUPED = ("num_key_value_heads", "head_dim")
LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_latent_bytes")
DENSE_LAYERS = "first_k_dense_replace"  # of a model with experts: layers before the first that has them
EXPERTS = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", DENSE_LAYERS)
INDEXER = ("index_n_heads", "index_head_dim", "index_topk")
# Ours, as kv_latent_bytes is. active_parameters, the weights that one token meets, replaces the linear formula.
OURS = ("kv_bytes_per_element", "active_parameters")
KNOWN = (*BASIC, *GROUPED, *LATENT, *EXPERTS, *INDEXER, *OURS)
MAY_BE_ZERO = ("n_shared_experts", DENSE_LAYERS)
FIELD_MAX = 10**15
AT_MOST = {
    "num_key_value_heads": "num_attention_heads",
    "num_experts_per_tok": "n_routed_experts",
    DENSE_LAYERS: "num_hidden_layers",
}

FP8_GROUP, SCALE_BYTES, ROPE_BYTES = 128, 4, 2  # FP8 KV: an FP32 scale per 128 elements, the rotary part in BF16
MISS_TOKENS = 429  # mean append of a turn of the 64K trace (paper §7): what is computed for the context that is read

# Families whose config.json says all that the formulas need; others hide what changes the cost (windows, linear layers)
MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "llama", "qwen2", "qwen3")
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of one token: projections and MLPs; attention to the context; choice of the top-k keys."""

    linear: float
    attention: float
    indexer: float

    @property
    def total(self) -> float:
        return self.linear + self.attention + self.indexer


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the simulator needs to know of a model.

    kv_bytes_per_token_layer     without the indexer's keys
    index_bytes_per_token_layer  the indexer's key; 0 without an indexer
    linear_parameters            weights that one token meets, all layers together
    attention_flops_per_key      of one token with one token of its context in one layer; index_flops_per_key alike
    index_topk                   tokens that the main attention looks at; None: all of them
    """

    name: str
    source: str
    num_hidden_layers: int
    kv_bytes_per_token_layer: int
    index_bytes_per_token_layer: int
    linear_parameters: int
    attention_flops_per_key: int
    index_flops_per_key: int
    index_topk: int | None

    @classmethod
    def from_config(cls, config: Mapping[str, object], *, name: str, source: str, where: str) -> "Architecture":
        """Apply the formulas to a config; null counts as absent, `where` is its file in messages.

        raises  Rejected for a field that is unknown, out of range, or missing where a formula wants it
        """
        given = _Fields(config, where)
        latent, indexer = given.has(LATENT), given.has(INDEXER)
        if indexer and not latent:
            raise given.rejected("kv_lora_rank", "missing, wanted because the indexer needs latent attention")
        # Elements of one key and one value as a query head meets them.
        key_and_value = 2 * given["kv_lora_rank"] + given["qk_rope_head_dim"] if latent else 2 * _head_dim(given)
        return cls(
            name=name,
            source=source,
            num_hidden_layers=given["num_hidden_layers"],
            kv_bytes_per_token_layer=_kv_bytes(given),
            index_bytes_per_token_layer=_fp8_bytes(given["index_head_dim"]) if indexer else 0,
            linear_parameters=given.get("active_parameters") or _linear_parameters(given),
            attention_flops_per_key=2 * given["num_attention_heads"] * key_and_value,
            index_flops_per_key=2 * given["index_n_heads"] * given["index_head_dim"] if indexer else 0,
            index_topk=given["index_topk"] if indexer else None,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token over all layers, the indexer's keys included."""
        return self.num_hidden_layers * (self.kv_bytes_per_token_layer + self.index_bytes_per_token_layer)

    def full_block_bytes(self, block_tokens: int = BLOCK_TOKENS) -> int:
        """Bytes of one stored block (paper §A.5)."""
        return block_tokens * self.kv_bytes_per_token

    def flops_per_token(self, context: float) -> Flops:
        """FLOPs of one token at `context` tokens of context; the main attention sees at most the top-k of them."""
        seen = context if self.index_topk is None else min(context, self.index_topk)
        return Flops(
            linear=2.0 * self.linear_parameters,
            attention=float(self.attention_flops_per_key * self.num_hidden_layers * seen),
            indexer=float(self.index_flops_per_key * self.num_hidden_layers * context),
        )

    def cache_compute_ratio_gb_per_pflop(self, context: float, *, index_keys: bool = True) -> float:
        """GB of KV read per PFLOP computed, for a turn that hits `context` tokens and computes MISS_TOKENS.

        index_keys  False leaves the indexer's keys out of the bytes (its FLOPs stay): so the paper's numbers come out
        """
        index_bytes = self.index_bytes_per_token_layer if index_keys else 0
        kv_bytes = context * self.num_hidden_layers * (self.kv_bytes_per_token_layer + index_bytes)
        return kv_bytes / 1e9 / (MISS_TOKENS * self.flops_per_token(context).total / 1e15)


def load_architecture(name_or_path: str | Path) -> Architecture:
    """A built-in model by name, a .toml of yours with a table [config], or a Hugging Face config.json.

    A config.json has no word on the format of the KV: its dtype counts, unless you add kv_bytes_per_element.
    raises  Rejected naming the file, the field, what was found and what was wanted
    """
    where = str(name_or_path)
    table = read_table(where)
    if where.endswith(".json"):
        table = {"config": _of_hugging_face(table, where)}
    return architecture_of(table, where)


def architecture_of(table: Mapping[str, object], where: str) -> Architecture:
    """The model of a file that was read: its table [config]; raises Rejected as load_architecture does."""
    config, name, source = table.get("config"), table.get("name", Path(where).stem), table.get("source", where)
    if not isinstance(config, dict):
        raise Rejected(f"{where}: config is {config!r:.80}, wanted a table [config]", field="config")
    if not isinstance(name, str) or not isinstance(source, str):
        raise Rejected(f"{where}: name is {name!r}, source is {source!r}, wanted two texts", field="name")
    return Architecture.from_config(config, name=name, source=source, where=where)


class _Fields(dict[str, int]):
    """The fields of a config that are there, each known and in range; asking for a missing one raises Rejected."""

    def __init__(self, config: Mapping[str, object], where: str) -> None:
        super().__init__()
        self.where = where
        for name, found in config.items():
            least = 0 if name in MAY_BE_ZERO else 1
            if name not in KNOWN:
                raise self.rejected(name, f"unknown, wanted one of {', '.join(KNOWN)}")
            if found is not None:
                if type(found) is not int or not least <= found <= FIELD_MAX:
                    raise self.rejected(name, f"{found!r:.80}, wanted a whole number from {least} to {FIELD_MAX}")
                self[name] = found
        for less, more in AT_MOST.items():
            if self.get(less, 0) > self.get(more, FIELD_MAX):
                raise self.rejected(less, f"{self[less]}, wanted at most {more}, which is {self[more]}")

    def __missing__(self, name: str) -> int:
        raise self.rejected(name, "missing, wanted a whole number")

    def has(self, names: tuple[str, ...]) -> bool:
        """Whether one of a family's fields is there; the formulas then ask for those that they need."""
        return not self.keys().isdisjoint(names)

    def rejected(self, name: str, found: str) -> Rejected:
        return Rejected(f"{self.where}: config.{name} is {found}", field=f"config.{name}")


def _kv_bytes(given: _Fields) -> int:
    """Keys and values of the KV heads, or the latent and the rotary key; V3.2 in FP8: 512 + 4 x 4 + 64 x 2 = 656."""
    if "kv_latent_bytes" in given:
        return given["kv_latent_bytes"]
    element = given["kv_bytes_per_element"]
    if not given.has(LATENT):
        return element * 2 * given["num_key_value_heads"] * _head_dim(given)
    latent, rope = given["kv_lora_rank"], given["qk_rope_head_dim"]
    return _fp8_bytes(latent) + ROPE_BYTES * rope if element == 1 else element * (latent + rope)


def _fp8_bytes(elements: int) -> int:
    """Elements with their scales; an indexer's key is always kept so: 128 + 4 = 132."""
    return elements + SCALE_BYTES * -(-elements // FP8_GROUP)


def _head_dim(given: _Fields) -> int:
    if "head_dim" not in given and given["hidden_size"] % given["num_attention_heads"]:
        raise given.rejected("head_dim", "missing, wanted because hidden_size is no multiple of num_attention_heads")
    return given.get("head_dim") or given["hidden_size"] // given["num_attention_heads"]


def _linear_parameters(given: _Fields) -> int:
    hidden, layers = given["hidden_size"], given["num_hidden_layers"]
    attention = _latent_projections(given) if given.has(LATENT) else _grouped_projections(given)
    if given.has(INDEXER):  # query of each index head from the query's latent, one key, one weight per head
        heads, dim = given["index_n_heads"], given["index_head_dim"]
        attention += given.get("q_lora_rank", hidden) * heads * dim + hidden * (dim + heads)
    dense = given.get(DENSE_LAYERS, 0) if given.has(EXPERTS) else layers
    total = layers * attention
    if dense:  # gate, up and down
        total += dense * 3 * hidden * given["intermediate_size"]
    if dense < layers:  # the same of each chosen and each shared expert, and the router
        chosen = 3 * (given["num_experts_per_tok"] + given.get("n_shared_experts", 0)) * given["moe_intermediate_size"]
        total += (layers - dense) * hidden * (chosen + given["n_routed_experts"])
    return total


def _grouped_projections(given: _Fields) -> int:
    """Query and output of all heads, key and value of the KV heads."""
    return 2 * given["hidden_size"] * (given["num_attention_heads"] + given["num_key_value_heads"]) * _head_dim(given)


def _latent_projections(given: _Fields) -> int:
    """Query down and up (at once without a rank); latent down, and up to keys and values; output."""
    hidden, heads, latent = given["hidden_size"], given["num_attention_heads"], given["kv_lora_rank"]
    nope, rope, value = given["qk_nope_head_dim"], given["qk_rope_head_dim"], given["v_head_dim"]
    query, rank = heads * (nope + rope), given.get("q_lora_rank")
    queries = hidden * query if rank is None else rank * (hidden + query)
    return queries + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden


def _of_hugging_face(table: Mapping[str, object], where: str) -> dict[str, object]:
    """Our fields out of a config.json; for these families the rest of it has no say in the cost."""
    if table.get("model_type") not in MODEL_TYPES or table.get("use_sliding_window"):
        wanted = f"one of {', '.join(MODEL_TYPES)} without a sliding window, or a .toml"
        raise Rejected(f"{where}: model_type is {table.get('model_type')!r}, wanted {wanted}", field="model_type")
    element = ELEMENT_BYTES.get(str(table.get("dtype", table.get("torch_dtype"))))
    return {"kv_bytes_per_element": element} | {name: table[name] for name in KNOWN if name in table}


def model_names() -> list[str]:
    """The built-in models."""
    entries = (resources.files(__package__) / "models").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))


def model_file(name_or_path: str) -> Traversable:
    """A built-in model's file by its name, else the file of that path, there or not."""
    if name_or_path in model_names():
        return resources.files(__package__) / "models" / f"{name_or_path}.toml"
    return Path(name_or_path)


def read_table(name_or_path: str) -> Mapping[str, object]:
    """All of a model's file, a built-in one by its name; raises Rejected if there is none or it cannot be parsed."""
    try:
        text = model_file(name_or_path).read_text(encoding="utf-8")
        table = json.loads(text) if name_or_path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:  # both parsers' errors and bad UTF-8 are ValueErrors
        wanted = f"one of {', '.join(model_names())}, or the path of a .toml or config.json"
        found = getattr(error, "strerror", None) or error
        raise Rejected(f"model {name_or_path!r}: {found}; wanted {wanted}", field="model") from error
    return table if isinstance(table, dict) else {}
