"""What must hold of the repository as a whole: layout, stubs, lock file, documents, forbidden words."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
SOURCE_ROOTS: tuple[str, ...] = tuple(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["dev-mode-dirs"])
STUBS = REPO / "sdk/dualpath/v1"

LINES_MAX = 600

# Spelled so that this file passes its own tests.
UNFINISHED = re.compile(r"\b(?:TO-?DO|FIX-?ME|X{3})\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w")

# Each can run code that the bytes bring along.
UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_BUILTINS = {"eval", "exec"}
UNSAFE_CALLS = {"yaml.load", "yaml.unsafe_load", "torch.load"}


# ---- layout


def test_no_source_root_closes_the_namespace() -> None:
    closing = [root for root in SOURCE_ROOTS if (REPO / root / "dualpath/__init__.py").exists()]

    assert closing == []


def test_each_package_folder_has_an_init() -> None:
    folders = {
        folder
        for module in _modules()
        for folder in module.parents
        if _is_source(module) and "dualpath" in folder.parts[1:-1]
    }

    assert [str(folder) for folder in sorted(folders) if not (REPO / folder / "__init__.py").exists()] == []


def test_each_module_says_what_it_is() -> None:
    assert [str(module) for module in _modules() if ast.get_docstring(_tree(module)) is None] == []


def test_no_module_outgrows_its_reader() -> None:
    lengths = {str(module): len(_text(module).splitlines()) for module in _modules()}

    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


# ---- stubs


def test_the_stubs_are_those_of_the_protos(tmp_path: Path) -> None:
    protos = [str(path) for path in _files() if path.parts[0] == "proto" and path.suffix == ".proto"]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]

    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *outputs, *protos], cwd=REPO, check=True)

    fresh = {path.name: path.read_text() for path in (tmp_path / "dualpath/v1").iterdir()}
    kept = {path.name: path.read_text() for path in STUBS.glob("*_pb2*.py*")}
    assert fresh.keys() == kept.keys()
    assert [name for name in sorted(fresh) if fresh[name] != kept[name]] == [], "run `make proto`"


# ---- dependencies


def test_the_lock_file_pins_each_dependency_within_its_range() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", _text(Path("requirements.lock")), re.MULTILINE))
    wanted = [Requirement(line) for line in _dependencies()]

    assert [str(one) for one in wanted if canonicalize_name(one.name) not in pins] == []
    assert [str(one) for one in wanted if not one.specifier.contains(pins[canonicalize_name(one.name)])] == []


def test_the_lock_file_has_a_hash_for_each_pin_and_names_no_place() -> None:
    lock = _text(Path("requirements.lock"))
    entries = re.findall(r"^[\w.-]+==.*(?:\n    .*)*", lock, re.MULTILINE)

    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"https?:|file:|--(?:extra-)?index-url|--find-links", lock) == []


# ---- documents


def test_the_readme_opens_with_commands_that_exist() -> None:
    commands = _readme_targets()
    targets = re.findall(r"^([\w-]+):(?!=)", _text(Path("Makefile")), re.MULTILINE)

    assert commands
    assert [command for command in commands if command not in targets] == []


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    last_line = _text(Path(".ci/run")).splitlines()[-1]

    assert last_line == "make test"
    assert "test" in _readme_targets()


def test_each_relative_link_leads_somewhere() -> None:
    broken = [
        f"{document}: {target}"
        for document in _files()
        if document.suffix == ".md"
        for target in _links(_text(document))
        if not _resolves(document, target)
    ]

    assert broken == []


def test_there_is_a_licence_and_a_place_for_the_next_change() -> None:
    assert "Apache License" in _text(Path("LICENSE"))
    assert re.search(r"^## \[?Unreleased", _text(Path("CHANGELOG.md")), re.MULTILINE)


# ---- words


def test_nothing_is_marked_as_unfinished() -> None:
    assert list(_matches(UNFINISHED)) == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert list(_matches(MACHINE_PATH)) == []


def test_no_source_can_run_code_from_the_bytes_it_reads() -> None:
    unsafe = [
        f"{module}:{node.lineno} {name}"
        for module in _modules()
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
        for name in _unsafe_names(node)
    ]

    assert unsafe == []


# ---- helpers


@cache
def _files() -> tuple[Path, ...]:
    """All files that are tracked or could be, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True).stdout.split("\0")
    return tuple(sorted({Path(name) for name in names if name and (REPO / name).is_file()}))


@cache
def _modules() -> tuple[Path, ...]:
    """All Python files but the generated ones."""
    return tuple(path for path in _files() if path.suffix == ".py" and not path.stem.endswith(("_pb2", "_pb2_grpc")))


def _is_source(path: Path) -> bool:
    return path.parts[0] in SOURCE_ROOTS


@cache
def _text(path: Path) -> str:
    return (REPO / path).read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path), filename=str(path))


def _dependencies() -> list[str]:
    project = PYPROJECT["project"]
    return [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *PYPROJECT["build-system"]["requires"],
    ]


def _readme_targets() -> list[str]:
    """The targets of `make` in the first code block of the README."""
    block = re.search(r"^```.*?\n(.*?)^```", _text(Path("README.md")), re.MULTILINE | re.DOTALL)
    return re.findall(r"^(?:\$ )?make ([\w-]+)", block[1], re.MULTILINE) if block else []


def _links(markdown: str) -> list[str]:
    """Targets of inline links and images that point into the repository, outside of code."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`(?!\])", "", markdown, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(<?([^)\s>]+)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def _resolves(document: Path, target: str) -> bool:
    """Whether the file is there, and its line for #L12, its heading for #heading in Markdown."""
    name, _, fragment = target.partition("#")
    path = (REPO / document.parent / name).resolve() if name else REPO / document
    if not path.exists() or not path.is_relative_to(REPO):
        return False
    if lines := re.fullmatch(r"L(\d+)(?:-L\d+)?", fragment):
        return int(lines[1]) <= len(path.read_text().splitlines())
    return not fragment or path.suffix != ".md" or fragment in _anchors(path.read_text())


def _anchors(markdown: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _matches(pattern: re.Pattern[str]) -> Iterator[str]:
    for path in _files():
        try:
            lines = _text(path).splitlines()
        except UnicodeDecodeError:
            continue  # a picture or recorded bytes
        yield from (f"{path}:{number}" for number, line in enumerate(lines, start=1) if pattern.search(line))


def _unsafe_names(node: ast.Import | ast.ImportFrom | ast.Call) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names if alias.name.split(".")[0] in UNSAFE_MODULES]
        case ast.ImportFrom(module=str(module)):
            return [module] if module.split(".")[0] in UNSAFE_MODULES else []
        case ast.Call(func=func, keywords=keywords):
            name = ast.unparse(func)
            pickled = any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in keywords)
            return [name] if name in UNSAFE_BUILTINS | UNSAFE_CALLS or pickled else []
        case _:
            return []
