"""Engines by name: what `--engine` and `--engine-options` mean."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from dualpath.engine_agent.engines.emulated import TOKENS_MAX, EmulatedCost, EmulatedEngine
from dualpath.engine_agent.engines.model_config import ModelConfig
from dualpath.engine_agent.engines.reference import ReferenceEngine
from dualpath.engine_agent.ports import ComputeEngine
from dualpath.model.errors import Rejected
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout

# The options of a kind with their defaults; a value must be of its default's type.
REFERENCE_OPTIONS: Mapping[str, Any] = {
    "seed": 0,
    "folder": "",
    **{one.name: one.default for one in fields(ModelConfig) if one.default is not MISSING},
}
EMULATED_OPTIONS: Mapping[str, Any] = {
    "seed": 0,
    "num_layers": 4,
    "bytes_per_token_layer": 512,
    "vocab_size": 32_000,
    "tokens_max": TOKENS_MAX,
    "check_bytes": False,
    **{one.name: one.default for one in fields(EmulatedCost) if one.default is not MISSING},
}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """kind "reference": seed and any field of ModelConfig, or folder (config.json, model.safetensors) alone.
    kind "emulated": any of EMULATED_OPTIONS, which has the fields of EmulatedCost too."""

    kind: str
    options: Mapping[str, Any]


def build_engine(spec: EngineSpec) -> ComputeEngine:
    """raises Rejected for an unknown kind, an unknown option or a wrong value, naming what is wanted"""
    match spec.kind:
        case "reference":
            _check(spec.options, REFERENCE_OPTIONS)
            return _reference(dict(spec.options))
        case "emulated":
            _check(spec.options, EMULATED_OPTIONS)
            return _emulated({**EMULATED_OPTIONS, **spec.options})
        case other:
            message = f"engine {other!r} is unknown, wanted reference or emulated"
            raise Rejected(message, field="engine", reason="UNKNOWN_ENGINE")


def _reference(options: dict[str, Any]) -> ReferenceEngine:
    folder = options.pop("folder", "")
    if folder and options:
        raise _bad(f"engine option {min(options)!r} next to folder, which brings its own")
    if folder:
        return ReferenceEngine.from_safetensors(Path(folder))
    seed = options.pop("seed", 0)
    if seed < 0:
        raise _bad(f"engine option seed is {seed}, wanted at least 0")
    return ReferenceEngine.seeded(ModelConfig(**options), seed=seed)


def _emulated(options: dict[str, Any]) -> EmulatedEngine:
    layout = BlockLayout(options.pop("num_layers"), BLOCK_TOKENS, options.pop("bytes_per_token_layer"))
    cost = EmulatedCost(**{one.name: options.pop(one.name) for one in fields(EmulatedCost)})
    return EmulatedEngine(layout, cost, **options)


def _check(options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in known:
            raise _bad(f"engine option {name!r} is unknown, wanted some of {', '.join(known)}")
        wanted = type(known[name])
        # a whole number is fine where a fraction is; True is no number, though Python takes it for 1
        fits = type(value) is wanted or (wanted is float and type(value) is int)
        if not fits:
            raise _bad(f"engine option {name} is {value!r}, wanted {wanted.__name__}")


def _bad(message: str) -> Rejected:
    return Rejected(message, field="engine_options", reason="ENGINE_OPTIONS")
