"""Tables and progress on a terminal; nothing here decides anything."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
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


def status_table(status: admin_pb2.CellStatus) -> Table:
    """A cell at a glance: one row per engine, with its node's NICs."""
    queues = status.queues
    waiting = queues.prefill_fifo + queues.decode_queue + sum(queues.group_queues.values())
    title = (
        f"cell {status.cell}  policy {status.policy}  epoch {status.scheduler_epoch}\n"
        f"waiting {waiting} (prefill FIFO {queues.prefill_fifo}, decode queue {queues.decode_queue}, "
        f"group queues {sum(queues.group_queues.values())})  running {status.running}\n"
        f"accepted {status.accepted} = committed {status.committed} + failed {status.failed} "
        f"+ cancelled {status.cancelled} + waiting {status.waiting} + running {status.running}"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    for head in (
        "group",
        "state",
        "engine",
        "open turns",
        "open tokens",
        "free HBM",
        "read queue",
        "storage read",
        "NIC sent",
    ):
        table.add_column(head, justify="left" if head in ("group", "state", "engine") else "right")
    for group in status.groups:
        nodes = {node.info.node_id: node for node in group.nodes}
        for engine in group.engines:
            load = nodes[engine.node_id].load
            table.add_row(
                f"{group.group_id} ({agents_pb2.Role.Name(group.role).removeprefix('ROLE_').lower()})",
                group.state,
                engine.engine_id,
                str(engine.open_turns),
                str(engine.open_tokens),
                str(engine.free_hbm_tokens),
                str(load.read_queue_tokens),
                human_bytes(load.snic_read_bytes),
                human_bytes(load.cnic_sent_bytes),
            )
    return table


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
