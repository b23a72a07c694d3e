"""A scheduling policy out of somebody's own Python file: any of the four functions, the others are the paper's.

NAME = "mine"                                    # optional; else the name of the file
def assign_prefill(snapshot, limits): ...        # -> PrefillDecision
def spread_to_groups(turns, groups, *, rotation=0): ...      # -> tuple[GroupPlacement, ...]
def assign_decode(snapshot, limits): ...         # -> DecodeDecision
def choose_read_side(pe_node, de_node, read_queue_tokens, *, hit_tokens, rotation=0): ...   # -> ReadSideDecision

The file is imported, so it is run: load only what you would run yourself.
"""

import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from dualpath.model.errors import Rejected
from dualpath.scheduler.policy.registry import DUALPATH, POLICIES, Policy

NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# How each function is called by the scheduler: a call with the rotation and one without it.
CALLS: Mapping[str, str] = {
    "assign_prefill": "(snapshot, limits)",
    "spread_to_groups": "(turns, groups, *, rotation=0)",
    "assign_decode": "(snapshot, limits)",
    "choose_read_side": "(pe_node, de_node, read_queue_tokens, *, hit_tokens, rotation=0)",
}
_POSITIONAL = {"assign_prefill": 2, "spread_to_groups": 2, "assign_decode": 2, "choose_read_side": 3}
_KEYWORDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "assign_prefill": ((),),
    "spread_to_groups": ((), ("rotation",)),
    "assign_decode": ((),),
    "choose_read_side": (("hit_tokens",), ("hit_tokens", "rotation")),
}


def find_policy(name_or_file: str) -> Policy:
    """One of ours by its name, else the file of that path; raises Rejected, naming what there is."""
    if name_or_file in POLICIES:
        return POLICIES[name_or_file]
    path = Path(name_or_file)
    if not path.exists() and not path.suffix and path.name == name_or_file:
        raise _rejected(f"policy {name_or_file!r} is no file and none of {', '.join(sorted(POLICIES))}")
    return load_policy(path)


def load_policy(path: Path) -> Policy:
    """Import the file and put its functions in the place of the paper's.

    raises Rejected (field "policy") if it cannot be imported, defines none of the four, or one that cannot be called
    """
    module = _import(path)
    functions = {name: getattr(module, name) for name in CALLS if hasattr(module, name)}
    if not functions:
        raise _rejected(f"{path} defines {_defined(module)}; wanted at least one of {', '.join(CALLS)}")
    for name, function in functions.items():
        _check_call(path, name, function)
    return replace(DUALPATH, name=_name(path, module), **functions)


def own_functions(policy: Policy) -> tuple[str, ...]:
    """The functions in which a policy differs from the paper's."""
    return tuple(name for name in CALLS if getattr(policy, name) is not getattr(DUALPATH, name))


class _Loader(SourceFileLoader):
    """Reads the source each time and leaves no __pycache__ beside somebody's file."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import(path: Path) -> ModuleType:
    if not path.exists():
        raise _rejected(f"{path} is not there, wanted a Python file with a policy")
    if not path.is_file():
        raise _rejected(f"{path} is not a file, wanted a Python file with a policy")
    # A name of its own per path: two files of one name must not be taken for each other, nor for a package.
    name = f"dualpath_policy_{sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None and spec.loader is not None, "a loader was given"
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise _rejected(f"{_place(path, error)} {_said(error)}") from error
        raise
    return module


def _place(path: Path, error: BaseException) -> str:
    """The file, and the line of it that failed."""
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        return f"{path}, line {error.lineno}:"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}:" if lines else f"{path}:"


def _said(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_call(path: Path, name: str, function: object) -> None:
    """raises Rejected unless the scheduler's calls fit the parameters"""
    wanted = f"wanted {name}{CALLS[name]}"
    if not callable(function):
        raise _rejected(f"{path}: {name} is {_kind(function)}, which cannot be called; {wanted}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        kind = "a coroutine" if inspect.iscoroutinefunction(function) else "a generator"
        raise _rejected(f"{path}: {name} is {kind} function, which answers later; wanted a plain function")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise _rejected(f"{path}: {name} does not tell its parameters ({error}); {wanted}") from error
    for keywords in _KEYWORDS[name]:
        try:
            signature.bind(*range(_POSITIONAL[name]), **dict.fromkeys(keywords, 0))
        except TypeError as error:
            raise _rejected(
                f"{path}: {name}{_parameters(signature)} has wrong parameters, {error}; {wanted}"
            ) from error


def _parameters(signature: inspect.Signature) -> str:
    """The parameters without their annotations."""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _name(path: Path, module: ModuleType) -> str:
    name = getattr(module, "NAME", path.stem)
    whence = "NAME" if hasattr(module, "NAME") else "the name of the file"
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise _rejected(f"{path}: {whence} is {name!r}, wanted 1 to 64 letters, digits, dots, _ or -; set NAME")
    if name in POLICIES:
        raise _rejected(f"{path}: {whence} is {name!r}, which is a policy of ours; set NAME to another one")
    return name


def _defined(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    own = [name for name in names if getattr(getattr(module, name), "__module__", None) == module.__name__]
    return ", ".join(own) if own else "no functions"


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:60]


def _rejected(message: str) -> Rejected:
    return Rejected(message, field="policy", reason="POLICY_FILE")
