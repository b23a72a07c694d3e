"""Tables and progress on a terminal; nothing here decides anything."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dualpath.v1 import admin_pb2, agents_pb2, turns_pb2

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False)


@contextmanager
def progress_bar(label: str, *, total: int, quiet: bool) -> Iterator["ProgressLine"]:
    """A bar on stderr; on something that is no terminal a line now and then; nothing when quiet."""
    if quiet:
        yield ProgressLine(None, label, total)
        return
    if not errors.is_terminal:
        yield ProgressLine(None, label, total, lines=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        yield ProgressLine(progress, label, total)


class ProgressLine:
    """Takes (done, total)."""

    def __init__(self, progress: Progress | None, label: str, total: int, *, lines: bool = False) -> None:
        self._progress = progress
        self._label = label
        self._lines = lines
        self._tenth = 0
        self._task = progress.add_task(label, total=total) if progress else None

    def __call__(self, done: int, total: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)
        elif self._lines and total and 10 * done // total > self._tenth:
            self._tenth = 10 * done // total
            print(f"{self._label}: {done}/{total}", file=sys.stderr, flush=True)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2), flush=True)


def replay_table(figures: Mapping[str, Mapping[str, object]]) -> Table:
    """One column per policy, so that it fits a terminal of 80 columns with any number of nodes."""
    table = Table(header_style="bold")
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    rows = list(figures.values())
    table.add_row("turns", *(str(row["turns"]) for row in rows))
    table.add_row(
        "tokens, prompt + generated", *(f"{row['prompt_tokens']} + {row['generated_tokens']}" for row in rows)
    )
    table.add_row("JCT", *(f"{row['jct_s']:.2f} s" for row in rows))
    table.add_row("TTFT p50", *(f"{row['ttft_p50_s']:.3f} s" for row in rows))
    table.add_row("TTFT p99", *(f"{row['ttft_p99_s']:.3f} s" for row in rows))
    for node in sorted(_snic_bytes(rows[0])):
        table.add_row(
            f"read by the storage NIC of {node}", *(human_bytes(_snic_bytes(row).get(node, 0)) for row in rows)
        )
    table.add_row("storage NICs max/avg", *(f"{row['snic_max_over_avg']:.2f}" for row in rows))
    table.add_row("share of DE-side reads", *(f"{100 * float(str(row['de_read_share'])):.0f} %" for row in rows))
    return table


def _snic_bytes(row: Mapping[str, object]) -> dict[str, int]:
    nics = row["snic_bytes"]
    assert isinstance(nics, dict), "figures carry bytes by node"
    return nics


def status_table(status: admin_pb2.CellStatus) -> Group:
    """A cell at a glance: what waits, then one row per engine and one per node."""
    queues = status.queues
    lines = (
        f"cell {status.cell}, policy {status.policy}, epoch {status.scheduler_epoch}, {status.store}\n"
        f"waiting {status.waiting}: prefill FIFO {queues.prefill_fifo}, decode queue {queues.decode_queue}, "
        f"group queues {sum(queues.group_queues.values())}; oldest {queues.oldest_wait_s:.1f} s\n"
        f"accepted {status.accepted} = committed {status.committed} + failed {status.failed} + cancelled "
        f"{status.cancelled}\n           + waiting {status.waiting} + running {status.running}"
    )
    engines, nodes = Table(header_style="bold"), Table(header_style="bold")
    for head in ("engine", "role", "state", "open turns", "open tokens", "free HBM"):
        engines.add_column(head, justify="left" if head in ("engine", "role", "state") else "right")
    for head in ("node", "read queue", "storage read", "written", "network sent", "received"):
        nodes.add_column(head, justify="left" if head == "node" else "right")
    for group in sorted(status.groups, key=lambda group: (group.role, group.group_id)):
        role = agents_pb2.Role.Name(group.role).removeprefix("ROLE_").lower()
        for engine in group.engines:
            numbers = (engine.open_turns, engine.open_tokens, engine.free_hbm_tokens)
            engines.add_row(engine.engine_id, role, group.state, *(str(number) for number in numbers))
        for node in group.nodes:
            load = node.load
            counts = (
                load.snic_read_bytes,
                load.snic_written_bytes,
                load.cnic_sent_bytes,
                load.cnic_received_bytes,
            )
            moved = (human_bytes(count) for count in counts)
            nodes.add_row(node.info.node_id, f"{load.read_queue_tokens} tok", *moved)
    return Group(lines, engines, nodes)


def explanation_lines(explanation: turns_pb2.Explanation) -> list[str]:
    """The life of a turn so far, one line per decision."""
    turn = explanation.turn
    state = turns_pb2.TurnState.Name(turn.state).removeprefix("TURN_STATE_").lower()
    lines = [
        f"turn {turn.turn_id}  {state}, attempt {turn.attempt}",
        f"  prompt {turn.hit_tokens} hit + {turn.miss_tokens} miss tokens, at most {turn.max_new_tokens} new",
    ]
    if explanation.place_in_line:
        lines.append(f"  place {explanation.place_in_line} in line; waits for {explanation.waits_for}")
    elif not turn.HasField("result"):
        lines.append(f"  waits for {explanation.waits_for}")
    for decision in explanation.decisions:
        seen = ", ".join(f"{name} {value:g}" for name, value in sorted(decision.inputs.items()))
        lines.append(f"  +{decision.after_s:9.4f} s  attempt {decision.attempt}  {decision.step:<9} {decision.choice}")
        lines.append(f"                {decision.sentence}" + (f"  ({seen})" if seen else ""))
    if turn.HasField("result"):
        lines.append(
            f"  ended: {turn.result.end_reason}, {len(turn.result.tokens)} tokens {turn.result.message}".rstrip()
        )
    return lines


def human_bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
