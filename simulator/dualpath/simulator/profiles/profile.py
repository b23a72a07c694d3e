"""A profile: one model on one kind of hardware, as a data file (TOML) with its costs, limits and default shape.

name, shape
[costs]             fields of `Costs`; buffer_bytes and cnic_bytes_per_s may stand for the amounts in tokens
[costs.attention]   fields of `AttentionCost`
[limits]            alpha_s (seconds of reading), beta_tokens, high_mark_factor
[config]            the model's architecture, for bytes and FLOPs by formula
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from dualpath.engine_agent.batch.quota import AttentionCost
from dualpath.model.errors import Rejected
from dualpath.model.layout import BLOCK_TOKENS
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.simulator.machine.shape import Costs, Shape
from dualpath.simulator.profiles.architecture import Architecture, architecture_of, read_table

WHOLE = ("hbm_tokens", "buffer_tokens", "pe_hbm_tokens")
IN_BYTES = ("buffer_bytes", "cnic_bytes_per_s", "snic_bytes_per_s", "snic_block_s", "snic_stream_bytes_per_s")
ABOVE_ZERO = (
    *WHOLE,
    "snic_tokens_per_s",
    "quota_s",
    "cnic_tokens_per_s",
    "tpot_base_s",
    *(name for name in IN_BYTES if name != "snic_block_s"),
)
LIMITS = ("alpha_s", "beta_tokens", "high_mark_factor")


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs and limits of one model on one kind of hardware."""

    name: str
    architecture: Architecture
    costs: Costs
    limits: PolicyLimits
    shape: Shape


def load_profile(name_or_path: str) -> Profile:
    """A built-in profile by name, or a file of yours.

    raises  Rejected naming the file, the field, what was found and what was wanted
    """
    where, table = name_or_path, read_table(name_or_path)
    architecture = architecture_of(table, where)
    costs = _costs(where, _table(where, table, "costs"), architecture)
    limits = _table(where, table, "limits")
    _check_known(where, limits, LIMITS, "limits")
    return Profile(
        name=str(table.get("name", Path(name_or_path).stem)),
        architecture=architecture,
        costs=costs,
        limits=PolicyLimits(
            alpha_tokens=round(_number(where, limits, "limits.alpha_s", 3.0) * costs.snic_tokens_per_s),
            beta_tokens=round(_number(where, limits, "limits.beta_tokens")),
            high_mark_factor=_number(where, limits, "limits.high_mark_factor", 1.05),
        ),
        shape=parse_shape(str(table.get("shape", "1P1D"))),
    )


def parse_shape(text: str) -> Shape:
    """2P4D: two prefill and four decode nodes of eight engines. raises Rejected for anything else"""
    match = re.fullmatch(r"(\d{1,4})P(\d{1,4})D", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0 or int(match[2]) == 0:
        raise Rejected(
            f"shape is {text!r}, wanted prefill and decode nodes such as 2P4D, at least one of each", field="shape"
        )
    return Shape(int(match[1]), int(match[2]))


def _costs(where: str, table: Mapping[str, Any], architecture: Architecture) -> Costs:
    given = dict(table)
    attention = given.pop("attention", {})
    lockstep = bool(given.pop("lockstep", True))
    names = tuple(field.name for field in fields(Costs) if field.name not in ("attention", "lockstep"))
    _check_known(where, given, (*names, *IN_BYTES), "costs")
    _check_known(where, attention, [field.name for field in fields(AttentionCost)], "costs.attention")
    values: dict[str, Any] = {name: _number(where, given, f"costs.{name}") for name in given}
    for name in ABOVE_ZERO:
        if name in values and not values[name] > 0:
            raise Rejected(f"{where}: costs.{name} is {values[name]}, wanted more than 0", field=f"costs.{name}")
    values = _in_tokens(values, architecture)
    for field in fields(Costs):
        if field.default is MISSING and field.name != "attention" and field.name not in values:
            raise Rejected(f"{where}: costs.{field.name} is missing", field=f"costs.{field.name}")
    return Costs(
        attention=AttentionCost(**{name: _number(where, attention, f"costs.attention.{name}") for name in attention}),
        lockstep=lockstep,
        **{name: int(value) if name in WHOLE else value for name, value in values.items()},
    )


def _in_tokens(values: Mapping[str, float], architecture: Architecture) -> dict[str, Any]:
    """What was given in bytes, as the amounts in tokens that it stands for."""
    left = dict(values)
    kv_bytes = architecture.kv_bytes_per_token
    for in_bytes, in_tokens in (("buffer_bytes", "buffer_tokens"), ("cnic_bytes_per_s", "cnic_tokens_per_s")):
        if in_bytes in left:
            left[in_tokens] = left.pop(in_bytes) / kv_bytes
    block_s = left.pop("snic_block_s", 0.0)
    if "snic_bytes_per_s" in left:  # the NIC's own rate, and what each full block costs beyond its bytes
        seconds = architecture.full_block_bytes(BLOCK_TOKENS) / left.pop("snic_bytes_per_s") + block_s
        left["snic_tokens_per_s"] = BLOCK_TOKENS / seconds
    if "snic_stream_bytes_per_s" in left:
        left["snic_latency_token_s"] = kv_bytes / left.pop("snic_stream_bytes_per_s")
    return left


def _check_known(where: str, table: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
    wanted = sorted(known)
    for name in table:
        if name not in wanted:
            raise Rejected(
                f"{where}: {prefix}.{name} is unknown, wanted one of {', '.join(wanted)}", field=f"{prefix}.{name}"
            )


def _table(where: str, table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    if not isinstance(found, dict):
        raise Rejected(f"{where}: wanted a table [{name}]", field=name)
    return found


def _number(where: str, table: Mapping[str, Any], field: str, default: float | None = None) -> float:
    found = table.get(field.rpartition(".")[2], default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e18:
        raise Rejected(f"{where}: {field} is {found!r}, wanted a number of at least 0", field=field)
    return float(found)
