"""The figures of all parts as one JSON object and as a table.

open.<rate>           achieved, accept, assign, plan, commit, turn (p50 and p99, ms), CPU us per turn, cores
closed, closed_by_engines.<engines>      turns_per_s and the same; `closed` is the largest cell
decision_us.<pe|pe_of_8|de>.<engines>.<waiting>      with parts in decision_parts
peers.<name>, ours    turns_per_core_s; ours counts the scheduler and its Redis
"""

import os
import platform
from collections.abc import Mapping

COMPARED_ENGINES = "64"  # the cell that the peers get too, see peers.ENGINES

SPANS = ("accept", "assign", "commit")

Run = Mapping[str, object]


def assemble(
    open_runs: Mapping[str, Run],
    closed_runs: Mapping[str, Run],
    decided: Mapping[str, object],
    peers: Mapping[str, Run],
    *,
    blocks: int,
) -> dict[str, object]:
    """One report of what was run; parts that were not are left out."""
    found: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "blocks": blocks,
    }
    errors = [
        f"{name}: {error}"
        for runs in (open_runs, closed_runs)
        for name, run in runs.items()
        for error in _list(run.get("errors"))
    ]
    if open_runs:
        found["open"] = {rate: _counted(run) for rate, run in open_runs.items()}
    if closed_runs:
        by_engines = {engines: _counted(run, achieved="turns_per_s") for engines, run in closed_runs.items()}
        found["closed"] = by_engines[max(by_engines, key=int)]
        found["closed_by_engines"] = by_engines
        found["ours"] = _ours(by_engines.get(COMPARED_ENGINES) or by_engines[max(by_engines, key=int)])
    found |= decided
    if peers:
        found["peers"] = dict(peers)
    return found | {"errors": errors}


def _counted(run: Run, *, achieved: str = "achieved") -> dict[str, object]:
    """A run with the number of its errors in place of their texts."""
    found = {achieved if name == "achieved" else name: value for name, value in run.items() if name != "load"}
    return found | {"errors": len(_list(run.get("errors")))}


def _ours(run: Run) -> dict[str, object]:
    """Turns per core second, every core second of scheduler and Redis counted."""
    scheduler, redis = _number(run, "scheduler_cpu_us_per_turn"), _number(run, "redis_cpu_us_per_turn")
    if not scheduler:
        return {"turns_per_core_s": None}
    return {
        "turns_per_core_s": round(1e6 / (scheduler + redis), 1),
        "turns_per_scheduler_core_s": round(1e6 / scheduler, 1),
        "turns_per_s": run.get("turns_per_s"),
    }


def table(found: Mapping[str, object]) -> str:
    """For people."""
    lines = []
    runs = [(f"open {rate}/s", run, "achieved") for rate, run in _runs(found, "open")]
    runs += [(f"closed, {engines} engines", run, "turns_per_s") for engines, run in _runs(found, "closed_by_engines")]
    if runs:
        spans = "".join(f"{span} ms".rjust(16) for span in SPANS)
        lines.append(f"{'':22}{'turns/s':>9}{spans}{'scheduler':>11}{'redis':>8}{'cores':>7}{'errors':>8}")
    for name, run, achieved in runs:
        spans = "".join(f"{_text(run, f'{span}_p50_ms')} / {_text(run, f'{span}_p99_ms')}".rjust(16) for span in SPANS)
        lines.append(
            f"{name:22}{_text(run, achieved):>9}{spans}{_text(run, 'scheduler_cpu_us_per_turn'):>8} us"
            f"{_text(run, 'redis_cpu_us_per_turn'):>5} us{_text(run, 'cores'):>7}{_text(run, 'errors'):>8}"
        )
    for kind, by_engines in _runs(found, "decision_us"):
        cells = ", ".join(
            f"{engines}: {' / '.join(f'{value}' for value in _dict(waiting).values())}"
            for engines, waiting in by_engines.items()
        )
        lines.append(f"{kind + ' decision':22} us by engines, 0 / 50,000 waiting: {cells}")
    for name, peer in [*_runs(found, "peers"), *([("ours", _dict(found["ours"]))] if "ours" in found else [])]:
        why = f"  ({peer['error']})" if peer.get("error") else ""
        lines.append(f"{name:26}{_text(peer, 'turns_per_core_s'):>10} turns per core second{why}")
    return "\n".join(lines)


def _runs(found: Mapping[str, object], part: str) -> list[tuple[str, dict[str, object]]]:
    return [(name, _dict(run)) for name, run in _dict(found.get(part)).items()]


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(run: Run, name: str) -> float:
    value = run.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _text(run: Run, name: str) -> str:
    value = run.get(name)
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, float) and value >= 100 else f"{value}"
