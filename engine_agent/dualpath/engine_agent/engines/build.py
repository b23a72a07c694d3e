"""Engines by name: what `--engine` and `--engine-options` mean."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dualpath.engine_agent.engines.emulated import EmulatedCost, EmulatedEngine
from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.engines.reference import ReferenceEngine
from dualpath.engine_agent.ports import ComputeEngine
from dualpath.model.errors import Rejected
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """kind "reference": seed, folder (safetensors), and any field of ModelConfig.
    kind "emulated": num_layers, bytes_per_token_layer, vocab_size, tokens_max, and any field of EmulatedCost."""

    kind: str
    options: Mapping[str, Any]


def build_engine(spec: EngineSpec) -> ComputeEngine:
    """raises Rejected for an unknown kind or option, naming those there are"""
    match spec.kind:
        case "reference":
            return _reference(dict(spec.options))
        case "emulated":
            return _emulated(dict(spec.options))
        case other:
            message = f"engine {other!r} is unknown, wanted reference or emulated"
            raise Rejected(message, field="engine", reason="UNKNOWN_ENGINE")


def _reference(options: dict[str, Any]) -> ReferenceEngine:
    folder = options.pop("folder", None)
    seed = options.pop("seed", 0)
    if folder is not None:
        _none_left(options, ("folder", "seed"))
        return ReferenceEngine.from_safetensors(Path(folder))
    names = [field.name for field in fields(ModelConfig)]
    config = {name: options.pop(name) for name in names if name in options}
    _none_left(options, ("folder", "seed", *names))
    return ReferenceEngine.seeded(ModelConfig(**config), seed=seed)


def _emulated(options: dict[str, Any]) -> EmulatedEngine:
    layout = BlockLayout(options.pop("num_layers", 4), BLOCK_TOKENS, options.pop("bytes_per_token_layer", 512))
    costs = [field.name for field in fields(EmulatedCost)]
    cost = EmulatedCost(**{name: options.pop(name) for name in costs if name in options})
    others = {name: options.pop(name) for name in ("vocab_size", "tokens_max") if name in options}
    _none_left(options, ("num_layers", "bytes_per_token_layer", "vocab_size", "tokens_max", *costs))
    return EmulatedEngine(layout, cost, **others)


def _none_left(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if options:
        message = f"engine option {sorted(options)[0]!r} is unknown, wanted some of {', '.join(known)}"
        raise Rejected(message, field="engine_options", reason="ENGINE_OPTIONS")
