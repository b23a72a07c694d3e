"""One simulated run: a machine, a way to schedule, sessions and when they come; `simulate` gives what was observed."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dualpath.model.errors import Rejected
from dualpath.scheduler.policy.registry import BASIC, DUALPATH, ROUNDROBIN, Policy
from dualpath.scheduler.policy.snapshot import PolicyLimits
from dualpath.simulator.control.direct import DirectControl
from dualpath.simulator.control.service import ServiceControl, run_service
from dualpath.simulator.driver import Driver, EndEarly
from dualpath.simulator.machine.cluster import Machine
from dualpath.simulator.machine.shape import NO_STRAGGLERS, Costs, Modes, Shape, Stragglers
from dualpath.simulator.machine.timeline import Timeline
from dualpath.simulator.observe import Recorder, Summary
from dualpath.simulator.workload.sessions import Session


@dataclass(frozen=True, slots=True)
class System:
    """What a run is called: the policy, and how the machine works under it."""

    name: str
    policy: Policy
    modes: Modes = field(default_factory=Modes)


# The paper's systems (§8): "layerwise" and "alternating" are the steps of its ablation between Basic and DualPath.
# Then what goes beyond it; docs/reproduction.md has the measured effect of each.
SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System("dualpath", DUALPATH),
        System("basic", BASIC, Modes(layerwise=False)),
        System("oracle", DUALPATH, Modes(transfers=False)),
        System("layerwise", BASIC),
        System("alternating", ROUNDROBIN),
        System("event", DUALPATH, Modes(event_driven=True)),
        System("weighted", DUALPATH, Modes(weigh_nics=True)),
        System("split", DUALPATH, Modes(split_reads=True)),
        System("joint", DUALPATH, Modes(joint_choice=True)),
        System("event-split", DUALPATH, Modes(event_driven=True, split_reads=True)),
    )
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides a run.

    starts_s   when each session comes; as many as sessions
    until_s    stop then, finished or not
    warm_up_s  turns submitted before do not count for latencies
    """

    system: System
    shape: Shape
    costs: Costs
    limits: PolicyLimits
    sessions: Sequence[Session]
    starts_s: Sequence[float]
    until_s: float | None = None
    warm_up_s: float = 0.0
    stragglers: Stragglers = NO_STRAGGLERS


def simulate(
    scenario: Scenario, *, progress: Callable[[int, int], None] | None = None, with_service: bool = False
) -> Summary:
    """Run to the end of all sessions, or to `until_s`.

    progress      called now and then with (turns ended, sessions ended); EndEarly from it ends the run there
    with_service  True: the real scheduler in virtual time; False: its policy functions called directly, 50x faster

    raises  Rejected for a machine on which a turn can never run, Broken(DEADLOCK) where all work stops
    """
    check_feasible(scenario)
    timeline = Timeline()
    machine = Machine(scenario.shape, scenario.costs, scenario.system.modes, timeline, scenario.stragglers)
    recorder = Recorder(machine, warm_up_s=scenario.warm_up_s)
    driver = Driver(machine, scenario.sessions, scenario.starts_s, seen=recorder.seen, progress=progress)
    if scenario.until_s is not None:
        timeline.at(scenario.until_s, lambda _: timeline.stop())
    collecting = gc.isenabled()
    gc.disable()  # a run makes no cycles, and millions of objects would be looked at again and again
    try:
        policy, limits = scenario.system.policy, scenario.limits
        if with_service:
            _check_service(scenario.system)
            service = ServiceControl(machine, policy, limits, committed=driver.committed)
            driver.start(service)
            run_service(machine, service, state=driver.state)
        else:
            driver.start(DirectControl(machine, policy, limits, committed=driver.committed))
            machine.start()
            timeline.run()
        driver.check_ended()
    except EndEarly:
        pass
    finally:
        if collecting:
            gc.enable()
    return recorder.summary(ended_sessions=driver.ended_sessions)


def _check_service(system: System) -> None:
    for name in ("weigh_nics", "split_reads", "joint_choice"):
        if getattr(system.modes, name):
            raise Rejected(f"{name} is on; the scheduler does not know it yet, only the fast driver does", field=name)


def check_feasible(scenario: Scenario) -> None:
    """raises Rejected naming the capacity that the largest turn needs more of than there is"""
    shape, costs = scenario.shape, scenario.costs
    for field_name, nodes in (("prefill_nodes", shape.prefill_nodes), ("decode_nodes", shape.decode_nodes)):
        if nodes < 1:
            raise Rejected(f"{field_name} is {nodes}, wanted at least 1", field=field_name)
        if nodes % shape.nodes_per_group:
            raise Rejected(
                f"{field_name} is {nodes}, wanted a multiple of nodes_per_group {shape.nodes_per_group}",
                field=field_name,
            )
    if not scenario.sessions:
        raise Rejected("there are no sessions, wanted at least one", field="sessions")
    if len(scenario.starts_s) != len(scenario.sessions):
        raise Rejected(
            f"{len(scenario.starts_s)} starts for {len(scenario.sessions)} sessions, wanted one each", field="starts_s"
        )
    prompt, total = _largest(scenario.sessions)
    wants = [("hbm_tokens", costs.hbm_tokens, total, "with its generation, the HBM of a decode engine")]
    if scenario.system.modes.layerwise:
        wants.append(("buffer_tokens", costs.buffer_tokens, prompt, "the DE buffer of a node"))
    else:
        wants.append(("pe_hbm_tokens", costs.pe_hbm_tokens, prompt, "the HBM of a prefill engine without layerwise"))
    for field_name, capacity, needed, what in wants:
        if needed > capacity:
            raise Rejected(
                f"the largest turn has {needed} tokens, {field_name} ({what}) holds {capacity}", field=field_name
            )


def _largest(sessions: Sequence[Session]) -> tuple[int, int]:
    """The longest prompt, and the longest prompt with its generation."""
    prompt_max = total_max = 0
    for session in sessions:
        if session.keeps:
            for (_, prompt), gen in zip(session.prompts(), session.gens, strict=True):
                prompt_max = max(prompt_max, prompt)
                total_max = max(total_max, prompt + gen)
        else:  # a context that only grows is longest at its end
            total = session.total_tokens
            total_max = max(total_max, total)
            prompt_max = max(prompt_max, total - session.gens[-1])
    return prompt_max, total_max


def with_modes(system: System, name: str, **changes: object) -> System:
    """The system under another name with some modes changed."""
    return replace(system, name=name, modes=replace(system.modes, **changes))  # type: ignore[arg-type]
