"""`dualpath policy`: the policies there are, and a check of anybody's against the laws of placement."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dualpath.cli import render
from dualpath.scheduler.policy.registry import POLICIES
from dualpath.simulator.policy_file import find_policy

if TYPE_CHECKING:
    from dualpath.simulator.laws.check import Breach, Checked

EPILOG = """The file defines at least one of assign_prefill, spread_to_groups, assign_decode, choose_read_side;
docs/policies.md has their signatures and the laws. It is imported, so it is run.

  dualpath policy check my_policy.py

  dualpath policy check my_policy.py --examples 2000 --seed 1     # look longer, at other situations

Exit codes: 0 every law holds, 1 a law is broken, 65 not a policy."""

ABOUT = {
    "basic": "round robin over engines, reads on the PE side only: what the paper compares with",
    "dualpath": "the paper's: least loaded engine with a short read queue, reads on the side with the shorter one",
    "roundrobin": "round robin over engines, both sides read in turn: two paths without looking at the load",
}
EXAMPLES = 200  # about two seconds per function

File = Annotated[str, typer.Argument(metavar="POLICY", help="a Python file, or the name of a policy of ours")]
Examples = Annotated[int, typer.Option(help="situations to try per function", min=1, max=1_000_000)]
Seed = Annotated[int, typer.Option(help="of the situations; the same seed gives the same report", min=0)]
Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


def register(app: typer.Typer) -> None:
    """Add `policy` to the one CLI."""
    policy = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Scheduling policies: list them, check one.")
    policy.command("check", help="Try a policy against the laws of placement.", epilog=EPILOG)(check)
    policy.command("list", help="The policies of ours.")(list_policies)
    app.add_typer(policy, name="policy")


def list_policies(as_json: Json = False) -> None:
    if as_json:
        render.print_json({"policies": [{"name": name, "about": ABOUT.get(name, "")} for name in sorted(POLICIES)]})
        return
    width = max(map(len, POLICIES))
    for name in sorted(POLICIES):
        print(f"{name:{width}}  {ABOUT.get(name, '')}")


def check(policy: File, examples: Examples = EXAMPLES, seed: Seed = 0, as_json: Json = False) -> None:
    began_s = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):  # a policy that prints must not spoil the report
        found = find_policy(policy)
        from dualpath.simulator.laws.check import check_policy  # hypothesis takes a while to load

        checked = check_policy(found, examples=examples, seed=seed)
    if as_json:
        render.print_json(_json(checked, examples, seed))
    else:
        print("\n".join(_text(checked, examples, seed)))
        print(f"{time.monotonic() - began_s:.1f} s", file=sys.stderr)
    if checked.breaches:
        raise typer.Exit(1)


def _text(checked: "Checked", examples: int, seed: int) -> list[str]:
    lines = [line for breach in checked.breaches for line in (*_breach_lines(breach), "")]
    for function in checked.functions:
        of_function = [law for asked, law in checked.laws if asked is function]
        broken = [breach.law.name for breach in checked.breaches if breach.function is function]
        verdict = f"breaks {', '.join(broken)}" if broken else f"keeps its {len(of_function)} laws"
        lines.append(f"{function}: {verdict}")
    count = len(checked.breaches)
    end = f"{count} {'law is' if count == 1 else 'laws are'} broken" if count else "no law is broken"
    return [*lines, f"policy {checked.policy}: {end} ({examples} situations per function, seed {seed})"]


def _breach_lines(breach: "Breach") -> list[str]:
    return [
        f"{breach.function} breaks {breach.law.name}",
        f"  law: {breach.law.sentence}",
        f"  found: {breach.found}",
        "",
        *(f"    {line}" for line in breach.situation),
        "    ----",
        *(f"    {line}" for line in breach.answer),
    ]


def _json(checked: "Checked", examples: int, seed: int) -> dict[str, object]:
    broken = {(breach.function, breach.law.name): breach for breach in checked.breaches}
    return {
        "policy": checked.policy,
        "ok": not checked.breaches,
        "examples": examples,
        "seed": seed,
        "laws": [
            {
                "function": function,
                "law": law.name,
                "sentence": law.sentence,
                "holds": (function, law.name) not in broken,
            }
            for function, law in checked.laws
        ],
        "breaches": [
            {
                "function": breach.function,
                "law": breach.law.name,
                "found": breach.found,
                "situation": list(breach.situation),
                "answer": list(breach.answer),
            }
            for breach in checked.breaches
        ],
    }
