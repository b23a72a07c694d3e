"""Tables of the reports on a terminal."""

from rich.table import Table as Printed

from dualpath.simulator.reproduce.figures import Table


def printed(table: Table) -> Printed:
    """Left-aligned names, right-aligned numbers."""
    made = Printed(title=table.title, title_justify="left", caption=table.note or None, caption_justify="left")
    for at, name in enumerate(table.header):
        made.add_column(name, justify="left" if at == 0 else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*row)
    return made
