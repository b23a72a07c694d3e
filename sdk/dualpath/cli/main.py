"""Entry of `dualpath`: each part registers its own commands, so none needs to be installed for the others."""

import sys
from importlib.metadata import entry_points

import typer

from dualpath.model.errors import DualPathError, Refused, Rejected

GROUP = "dualpath.commands"
EPILOG = """Start here:

  dualpath demo                       # a small cell, real turns, every token checked

  dualpath up                         # a cell on this machine; then, in another terminal:

  dualpath submit --random 300        # one turn

  dualpath status --watch             # what is going on
"""
EXIT_REFUSED, EXIT_REJECTED, EXIT_OTHER = 75, 65, 70  # as sysexits.h: try again, wrong data, our fault


def build() -> typer.Typer:
    """The command with every part that is installed; one that is not shows what to install."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        help="DualPath: schedule agent turns and load their KV-Cache through both sides.",
        epilog=EPILOG,
    )
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            register = point.load()
        except ImportError as error:
            _register_missing(app, point.name, str(error))
        else:
            register(app)
    return app


def _register_missing(app: typer.Typer, name: str, why: str) -> None:
    def missing() -> None:
        print(f"error: this part is not installed ({why}); install dualpath[{name}]", file=sys.stderr)
        raise typer.Exit(EXIT_OTHER)

    app.command(name, help=f"(not installed: install dualpath[{name}])")(missing)


def main() -> None:
    try:
        build()()
    except DualPathError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def exit_code(error: DualPathError) -> int:
    match error:
        case Refused():
            return EXIT_REFUSED
        case Rejected():
            return EXIT_REJECTED
        case _:
            return EXIT_OTHER
