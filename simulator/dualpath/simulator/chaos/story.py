"""A run as a story: what was planned to go wrong, then line by line what happened, then what should not have."""

from collections.abc import Callable, Iterator

from dualpath.simulator.chaos.checker import LAWS, Verdict
from dualpath.simulator.chaos.history import Event, Run
from dualpath.simulator.chaos.weather import Weather

QUIET = (Event.LOOKED,)  # nothing to tell
WAITING_SHOWN = 6


def story(weather: Weather, run: Run, verdict: Verdict) -> Iterator[str]:
    """Lines to print."""
    yield from _forecast(weather)
    yield ""
    for entry in run.entries:
        if entry[1] not in QUIET:
            yield f"{entry[0]:9.4f}  {_TELLERS[entry[1]](*entry[2:])}"
    yield ""
    for stored in run.stored.values():
        why = f" ({stored.message})" if stored.message else ""
        end = f"{stored.state}, {stored.reason}, attempt {stored.attempt}{why}"
        yield f"stored: {stored.turn_id} of {stored.key}, {end}"
    yield ""
    for name, text in verdict.breaches:
        yield f"BROKEN {name} ({LAWS[name]}): {text}"
    yield f"history {run.trace_hash()[:16]}, {sum(verdict.facts.values())} facts, {len(verdict.breaches)} broken"


def _forecast(weather: Weather) -> Iterator[str]:
    groups = f"{weather.prefill_groups} PE and {weather.decode_groups} DE groups"
    yield f"seed {weather.seed}: {weather.turns} turns, {groups}"
    if weather.calm:
        yield "  calm: no faults, one turn at a time"
        return
    yield f"  each frame lost, twice, late, overtaken: {weather.frame_p:.0%} each"
    wait_ms = weather.store_wait_s * 1000
    yield f"  store: up to {wait_ms:g} ms per call, refuses or loses its answer {weather.store_p:.0%} each"
    yield f"  reads one bit wrong {weather.damage_p:.0%}; {weather.commit_max} turns per write at most"
    yield f"  the schedulers' clocks make {weather.clock_rate:g} s per second; rare ways {weather.rare_p:.0%}"
    for at_s, fault, _, lasts_s in weather.planned:
        yield f"  planned at {at_s:.3f} s: {fault}, for {lasts_s:.3f} s"
    yield f"  from {weather.heal_s:.3f} s on nothing new goes wrong"


def _written(epoch: int, opened: tuple[tuple[str, int], ...], first: tuple[str, ...], ended: tuple[str, ...]) -> str:
    parts = [f"new {', '.join(first)}"] if first else []
    parts += [f"end of {', '.join(ended)}"] if ended else []
    parts += [f"{name} {'closed' if amount < 0 else amount}" for name, amount in opened]
    return f"store    takes a write of epoch {epoch}: {'; '.join(parts) or 'no records'}"


def _placed(line: str, waiting: tuple[tuple[int, str], ...], placed: tuple[tuple[str, str], ...]) -> str:
    stood = ", ".join(turn_id for _, turn_id in waiting[:WAITING_SHOWN])
    more = f" and {len(waiting) - WAITING_SHOWN} more" if len(waiting) > WAITING_SHOWN else ""
    given = ", ".join(f"{turn_id} -> {engine}" for turn_id, engine in placed)
    return f"decides  {line}: {given}; {stood}{more} waited"


_TELLERS: dict[Event, Callable[..., str]] = {
    Event.SUBMITTED: lambda key: f"client   {key} wants its turn",
    Event.ACCEPTED: lambda key, turn, arrival, epoch: (
        f"says     to {key}: {turn} accepted, arrival {arrival}, epoch {epoch}"
    ),
    Event.EPOCH: lambda epoch: f"store    belongs to epoch {epoch}",
    Event.OPENED: lambda epoch, bad: f"epoch {epoch}  serves{', from a damaged record' if bad else ''}",
    Event.WRITTEN: _written,
    Event.ANSWER_LOST: lambda epoch: f"store    its answer to epoch {epoch} is lost",
    Event.REFUSED_STALE: lambda epoch: f"store    turns epoch {epoch} away",
    Event.PLAN_TOLD: lambda group, turn, n, arrival, epoch: f"says     to {group}: plan of {turn}/{n}, epoch {epoch}",
    Event.PLAN_TAKEN: lambda group, epoch, turn, n: f"{group:8} works on {turn}/{n}",
    Event.PLAN_LEFT: lambda group, epoch, turn, n: f"{group:8} lets go of {turn}/{n}",
    Event.COMMIT_SENT: lambda group, epoch, turn, n, mark: f"{group:8} commits {turn}/{n} with mark {mark}",
    Event.ACK_TOLD: lambda group, turn, n: f"says     to {group}: {turn}/{n} is taken",
    Event.NEWS: lambda key, turn, n, state, why, mark: f"client   {key} hears: {turn}/{n} {state}, {why}, mark {mark}",
    Event.CANCEL_TOLD: lambda key, state: f"says     to {key}: asked to cancel, it is {state}",
    Event.LINK: lambda group, linked: f"{group:8} {'can hear and be heard' if linked else 'is cut off'}",
    Event.PLACED: _placed,
    Event.LEASE_ENDED: lambda group, epoch: f"epoch {epoch}  gives {group} up: its lease has ended",
    Event.FAULT: lambda fault, phase: f"!        {fault}{f' ({phase})' if phase else ''}",
    Event.THAWED: lambda: "!        the frozen scheduler goes on",
    Event.BREACH: lambda name, text: f"BROKEN   {name}: {text}",
    Event.HEALED: lambda: "         nothing new goes wrong from here on",
    Event.IDLE: lambda: "         nothing is open any more",
}
