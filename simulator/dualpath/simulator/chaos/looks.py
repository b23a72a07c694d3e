"""A look at a living ledger: do its turns, lines, records and counters keep the laws? Every number is added up here.

Nothing of the ledger's own checks is used: only what it holds, turn by turn and record by record.
"""

from collections import Counter

from dualpath.model.turn import TurnState
from dualpath.scheduler.lifecycle.ledger import Ledger
from dualpath.scheduler.lifecycle.records import TurnEntry

Breaches = list[tuple[str, str]]

RUNNING = (TurnState.PLANNED, TurnState.READING, TurnState.PREFILLING, TurnState.DECODING)
ENDED = (TurnState.COMMITTED, TurnState.FAILED, TurnState.CANCELLED)


def look(ledger: Ledger, *, settled: bool) -> tuple[int, Breaches]:
    """Facts compared, and what does not hold.

    settled  the scheduler has been up for longer than a lease: a running turn's groups must be known
    """
    breaches: Breaches = []
    entries = list(ledger.turns.values())
    _conserved(ledger, entries, breaches)
    _recounted(ledger, breaches)
    _owned(ledger, entries, breaches, settled=settled)
    return 3 + len(entries) + len(ledger.records), breaches


def _conserved(ledger: Ledger, entries: list[TurnEntry], breaches: Breaches) -> None:
    """I1, with the turns themselves as the other side of the sum."""
    states = Counter(entry.state for entry in entries)
    counts = ledger.counts
    ended = (counts.committed, counts.failed, counts.cancelled)
    found = tuple(states[state] for state in ENDED)
    open_count = len(entries) - sum(found)
    if ended != found or counts.accepted != len(entries) or ledger.open_count != open_count:
        text = (
            f"counted {counts.accepted} = {ended} + {ledger.open_count}, found {len(entries)} = {found} + {open_count}"
        )
        breaches.append(("turns_are_conserved", text))


def _recounted(ledger: Ledger, breaches: Breaches) -> None:
    """I2: sums and seats per resource and holder, from the records' names."""
    sums: Counter[tuple[str, str]] = Counter()
    seats: Counter[tuple[str, str]] = Counter()
    for name, amount in ledger.records.items():
        _, _, resource, holder = name.split(":", 3)
        sums[resource, holder] += amount
        seats[resource, holder] += 1
        if amount < 0:
            breaches.append(("ledger_adds_up", f"{name} is {amount}"))
    counted = ledger.counters()
    for key in sorted(sums.keys() | counted.keys()):
        if counted.get(key, (0, 0)) != (sums[key], seats[key]):
            text = f"{key}: the counters say {counted.get(key, (0, 0))}, the records {(sums[key], seats[key])}"
            breaches.append(("ledger_adds_up", text))
    for group in ledger.groups.values():
        for engine in group.hello.engines:
            promised = sums["hbm_tokens", engine.engine_id]
            if promised > engine.hbm_tokens:
                text = f"{engine.engine_id}: {promised} of {engine.hbm_tokens}"
                breaches.append(("hbm_is_never_oversold", text))
    if not ledger.open_count and ledger.records:
        breaches.append(("ledger_adds_up", f"idle, and {len(ledger.records)} records are open"))


def _owned(ledger: Ledger, entries: list[TurnEntry], breaches: Breaches, *, settled: bool) -> None:
    """I5: one line, or one running attempt with its reservations; and those are of the right size."""
    standing: dict[str, list[str]] = {}
    for line in ledger.lines():
        for turn_id in line:
            standing.setdefault(turn_id, []).append(line.name)
    expected = 0
    for entry in entries:
        turn_id, lines = entry.turn.turn_id, standing.get(entry.turn.turn_id, [])
        wanted = _line_of(entry)
        if lines != ([wanted] if wanted else []):
            breaches.append(("no_turn_is_orphaned", f"{turn_id} {entry.state} stands in {lines}, wanted {wanted!r}"))
        records = _records_of(entry)
        expected += len(records)
        for name, amount in records.items():
            if ledger.records.get(name) != amount:
                text = f"{turn_id} {entry.state}: {name} is {ledger.records.get(name)}, wanted {amount}"
                breaches.append(("ledger_adds_up", text))
        if settled and entry.state in RUNNING:
            for seat in (entry.pe, entry.de):
                if seat is None or seat.group_id not in ledger.groups:
                    breaches.append(("no_turn_is_orphaned", f"{turn_id} {entry.state} runs on {seat}, which is gone"))


def _line_of(entry: TurnEntry) -> str:
    match entry.state:
        case TurnState.PREFILL_FIFO | TurnState.DECODE_QUEUE:
            return entry.state.value
        case TurnState.GROUP_QUEUE:
            return f"group_queue:{entry.de_group}"
    return ""


def _records_of(entry: TurnEntry) -> dict[str, int]:
    """Records that must be open for sure; what is being read or prefilled may have been given back by now."""
    turn, start = entry.turn, f"{entry.turn.turn_id}:{entry.attempt}:"
    if entry.state in (TurnState.DECODE_QUEUE, TurnState.GROUP_QUEUE) and entry.pe is not None:
        return {f"{start}prefill_tokens:{entry.pe.engine_id}": turn.hit_tokens + len(turn.tokens)}
    if entry.state in RUNNING and entry.de is not None:
        prompt = turn.hit_tokens + len(turn.tokens)
        return {
            f"{start}decode_tokens:{entry.de.engine_id}": prompt,
            f"{start}hbm_tokens:{entry.de.engine_id}": prompt + turn.max_new_tokens,
        }
    return {}
