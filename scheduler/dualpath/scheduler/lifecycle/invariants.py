"""The laws of docs/invariants.md that can be checked on the ledger at any step."""

from dualpath.model.errors import Broken
from dualpath.scheduler.lifecycle.ledger import Ledger


def check(ledger: Ledger) -> None:
    """raises Broken naming the first law that does not hold"""
    counts = ledger.counts
    ended = counts.committed + counts.failed + counts.cancelled
    if counts.accepted != ended + ledger.open_count:
        raise Broken(f"I1: accepted {counts.accepted}, ended {ended}, open {ledger.open_count}", reason="I1")
    if ledger.counters() != ledger.recount():
        raise Broken("I2: counters differ from a recount of the records", reason="I2")
    if any(amount < 0 for amount in ledger.records.values()):
        raise Broken("I2: a record is negative", reason="I2")
    if ledger.open_count == 0 and ledger.records:
        raise Broken(f"I2: nothing is open, yet {len(ledger.records)} records are", reason="I2")
    standing: dict[str, int] = {}
    for line in ledger.lines():
        for turn_id in line:
            standing[turn_id] = standing.get(turn_id, 0) + 1
    for entry in ledger.open_turns():
        turn_id = entry.turn.turn_id
        wanted = 0 if entry.state.is_running else 1
        if standing.pop(turn_id, 0) != wanted:
            raise Broken(f"I5: turn {turn_id} in state {entry.state} stands in a wrong number of lines", reason="I5")
    if standing:
        raise Broken(f"I5: {len(standing)} turns stand in a line and are not open", reason="I5")
