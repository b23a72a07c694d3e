"""One run as a value: profile, system, cluster, workload and changes of them. Equal cases give equal results."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from dualpath.client.traces import TraceCounts
from dualpath.engine_agent.batch import quota
from dualpath.model.errors import Rejected
from dualpath.scheduler.policy import registry
from dualpath.scheduler.policy.snapshot import Classify, PolicyLimits
from dualpath.simulator.machine.shape import NO_STRAGGLERS, Costs, Shape, Stragglers
from dualpath.simulator.observe import Summary
from dualpath.simulator.policy_file import find_policy
from dualpath.simulator.profiles.architecture import model_file
from dualpath.simulator.profiles.profile import load_profile, parse_shape
from dualpath.simulator.scenario import SYSTEMS, Scenario, System, simulate
from dualpath.simulator.workload.arrivals import offline, poisson, sessions_until
from dualpath.simulator.workload.generator import PAPER_SEED, paper_sessions
from dualpath.simulator.workload.sessions import Session, cut_at
from dualpath.simulator.workload.traces import TraceWorkload, trace_sessions

Changes = tuple[tuple[str, float | str], ...]
Progress = Callable[[int, int], None]

ARRIVAL_SEED = 7
SHOWS_ONLY = ("commands", "laws", "reproduce", "runs", "command.py", "policy_command.py")

Changing = TypeVar("Changing")


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions and when they come. Without `trace` the paper's sets (§7) are generated.

    tokens_max  MaxLen: sessions are cut there; 0 leaves a trace as it is
    sessions    how many; 0 with `aps`: as many as come until `until_s`; 0 with a trace: all of it
    aps         sessions arriving per second (Poisson); 0: all at once, or a trace's recorded starts with `as_recorded`
    pauses      keep the pauses of a trace between turns
    until_s     stop then, finished or not; 0: when all sessions have ended
    warm_up_s   turns submitted before do not count for latencies
    """

    tokens_max: int = 65_536
    sessions: int = 512
    append_scale: float = 1.0
    gen_scale: float = 1.0
    seed: int = PAPER_SEED
    trace: str = ""
    trace_scale: float = 1.0
    pauses: bool = True
    as_recorded: bool = False
    aps: float = 0.0
    arrival_seed: int = ARRIVAL_SEED
    until_s: float = 0.0
    warm_up_s: float = 0.0

    @property
    def is_online(self) -> bool:
        """Sessions come over time: what counts is TTFT, not JCT."""
        return bool(self.aps) or self.as_recorded

    @property
    def recorded(self) -> TraceCounts | None:
        """The trace's own counts; None for generated sessions."""
        return _read(self.trace, self.trace_scale).counts if self.trace else None

    def build(self) -> tuple[Sequence[Session], Sequence[float]]:
        """Sessions and their starts; raises Rejected for a workload that is empty."""
        count = self.sessions
        if self.aps and not count and not self.trace:
            if not self.until_s:
                raise Rejected("sessions are 0 and until_s is 0: an endless workload", field="until_s")
            count = sessions_until(self.until_s, self.aps)
        if self.trace:
            sessions, recorded = _from_trace(self.trace, self.trace_scale, self.tokens_max, self.pauses)
            sessions, recorded = sessions[: count or None], recorded[: count or None]
        else:
            if count < 1:
                raise Rejected(f"sessions are {count}, wanted at least 1", field="sessions")
            sessions, recorded = _generated(self.tokens_max, count, self.seed, self.append_scale, self.gen_scale), ()
        if self.aps:
            return sessions, poisson(len(sessions), sessions_per_s=self.aps, seed=self.arrival_seed)
        if self.as_recorded and recorded:
            return sessions, recorded
        return sessions, offline(len(sessions))


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    system      of `SYSTEMS`; `policy` (a name or a file of yours) takes the place of its policy
    costs, limits, modes  changes by field name; limits know alpha_s too (seconds of a storage NIC's reading)
    slow_nics, slow_gpus  stragglers: node number, factor
    """

    profile: str
    system: str
    shape: str
    workload: Workload = field(default_factory=Workload)
    policy: str = ""
    costs: Changes = ()
    limits: Changes = ()
    modes: Changes = ()
    slow_nics: tuple[tuple[int, float], ...] = ()
    slow_gpus: tuple[tuple[int, float], ...] = ()

    def scenario(self) -> Scenario:
        """Everything that the run needs; raises Rejected naming the field that is wrong."""
        profile = load_profile(self.profile)
        sessions, starts_s = self.workload.build()
        costs = _changed(profile.costs, self.costs, "costs")
        stragglers = NO_STRAGGLERS
        shape = parse_shape(self.shape)
        if self.slow_nics or self.slow_gpus:
            stragglers = Stragglers(
                _slow(self.slow_nics, shape, "slow_nics"), _slow(self.slow_gpus, shape, "slow_gpus")
            )
        return Scenario(
            system=self._system(),
            shape=replace(shape, engines_per_node=profile.shape.engines_per_node),
            costs=costs,
            limits=_limits(profile.limits, self.limits, costs),
            sessions=sessions,
            starts_s=starts_s,
            until_s=self.workload.until_s or None,
            warm_up_s=self.workload.warm_up_s,
            stragglers=stragglers,
        )

    def _system(self) -> System:
        try:
            system = SYSTEMS[self.system]
        except KeyError as error:
            message = f"system {self.system!r} is unknown, wanted one of {', '.join(SYSTEMS)}"
            raise Rejected(message, field="system") from error
        if self.modes:
            system = replace(system, modes=_changed(system.modes, self.modes, "modes"))
        return replace(system, policy=find_policy(self.policy)) if self.policy else system

    @property
    def key(self) -> str:
        """Names the result: of the case, of every file that it reads, and of the code that runs it."""
        parts = [json.dumps(asdict(self), sort_keys=True), code_digest(), _digest(model_file(self.profile))]
        if self.workload.trace:
            parts.append(_digest(Path(self.workload.trace)))
        if self.policy and self.policy not in registry.POLICIES:
            parts.append(_digest(Path(self.policy)))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    @property
    def title(self) -> str:
        """For progress and messages."""
        load = self.workload
        amount = f"{load.aps:g} APS" if load.aps else f"{load.sessions} sessions"
        what = Path(load.trace).name if load.trace else f"{load.tokens_max // 1024}K"
        return f"{self.profile} {self.shape} {what} {amount} {self.policy or self.system}"


def run_case(case: Case, *, progress: Progress | None = None, with_service: bool = False) -> Summary:
    """Simulate; raises as `simulate` and `Case.scenario`."""
    return simulate(case.scenario(), progress=progress, with_service=with_service)


@cache
def code_digest() -> str:
    """Of every source a result depends on: results of other code are not taken for ours.

    What shows results, and what says which runs to make, is left out: a new plot needs no new runs.
    """
    import dualpath.simulator as simulator

    digest = hashlib.sha256(Path(__file__).read_bytes())
    folders = [*simulator.__path__, str(Path(registry.__file__).parent), str(Path(quota.__file__).parent)]
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            if path.relative_to(folder).parts[0] not in SHOWS_ONLY:
                digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=4)
def _generated(tokens_max: int, count: int, seed: int, append_scale: float, gen_scale: float) -> Sequence[Session]:
    return paper_sessions(tokens_max, count, seed=seed, append_scale=append_scale, gen_scale=gen_scale)


@lru_cache(maxsize=1)
def _read(path: str, scale: float) -> TraceWorkload:
    return trace_sessions(Path(path), scale=scale)


@lru_cache(maxsize=1)
def _from_trace(path: str, scale: float, tokens_max: int, pauses: bool) -> tuple[Sequence[Session], Sequence[float]]:
    workload = _read(path, scale)
    sessions = workload.sessions
    if tokens_max:
        sessions = tuple(cut_at(session, tokens_max) for session in sessions)
    if not pauses:
        sessions = tuple(replace(session, pauses_s=()) for session in sessions)
    return sessions, workload.starts_s


def _limits(limits: PolicyLimits, changes: Changes, costs: Costs) -> PolicyLimits:
    plain = tuple(
        ("alpha_tokens", float(value) * costs.snic_tokens_per_s) if name == "alpha_s" else (name, value)
        for name, value in changes
    )
    return _changed(limits, plain, "limits")


def _changed(value: Changing, changes: Changes, what: str) -> Changing:
    """A dataclass with some fields changed, each to the kind of number it is."""
    known = {entry.name for entry in fields(value)}  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for name, change in changes:
        if name not in known:
            raise Rejected(f"{what} {name!r} is unknown, wanted one of {', '.join(sorted(known))}", field=name)
        found = getattr(value, name)
        try:
            made[name] = _like(found, change)
        except ValueError as error:
            message = f"{what} {name} is {change!r}, wanted a value such as {found!r}"
            raise Rejected(message, field=name) from error
    return replace(value, **made)  # type: ignore[type-var]


def _like(found: object, change: float | str) -> object:
    """`change` as the kind of value that `found` is."""
    if isinstance(found, Classify):
        return Classify(str(change))
    if isinstance(found, bool):
        return bool(float(change))
    return round(float(change)) if isinstance(found, int) else float(change)


def _slow(pairs: tuple[tuple[int, float], ...], shape: Shape, what: str) -> dict[int, float]:
    nodes = shape.prefill_nodes + shape.decode_nodes
    for node, factor in pairs:
        if not 0 <= node < nodes:
            raise Rejected(f"{what} names node {node}, wanted 0 to {nodes - 1}", field=what)
        if not 0 < factor < 1e6:
            raise Rejected(f"{what} slows node {node} by {factor}, wanted a factor above 0", field=what)
    return dict(pairs)


def _digest(path: Traversable) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error.strerror}", field="path") from error
