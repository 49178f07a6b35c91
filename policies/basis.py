"""What the functions of a policy are made of: their text and every value that they read, wherever it is kept.

Compiled code freezes all of it. So a kernel is named by it, and a result of a policy of one's own says which it was.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from .policy import HOOKS, Policy

_KNOWN = {"numpy", "numba", "llvmlite", *sys.stdlib_module_names}  # their versions stand for what they hold


@cache
def basis(policy: type[Policy]) -> dict[tuple[str, str], str]:
    """{(module, name): text or value} of the policy's file, its functions, what they call and the constants they read.

    Read once for a class: what is compiled later is what was named then.
    """
    module = sys.modules[policy.__module__]
    found = {(module.__name__, ""): getattr(module, "__text__", None) or inspect.getsource(module)}
    for name in HOOKS:
        function = getattr(policy, name)
        found[function.__module__, f"hook {function.__qualname__}"] = _text(function)
        _read(function, found)
    return found


def outside(policy: type[Policy]) -> str:
    """The part of `basis` that neither the policy's own file nor this package holds."""
    file = policy.__module__, ""
    parts = {at: text for at, text in basis(policy).items() if at[0].split(".")[0] != "slotwise" and at != file}
    return "\0".join(f"{module}.{name}={text}" for (module, name), text in sorted(parts.items()))


def _read(function: FunctionType, found: dict[tuple[str, str], str]) -> None:
    """Adds what the function reads, and what the functions that it calls read."""
    names = set(_names(function.__code__))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, value in [(name, function.__globals__.get(name)) for name in names] + [
        (f"{function.__qualname__}.{name}", cell.cell_contents) for name, cell in cells
    ]:
        _note(function.__module__, name, value, names, found)


def _note(module: str, name: str, value: Any, names: set[str], found: dict[tuple[str, str], str]) -> None:
    value = getattr(value, "py_func", value)
    if isinstance(value, (int, float, complex, str, bytes, tuple, np.generic)):
        found[module, name] = repr(value)
    elif isinstance(value, np.ndarray):
        found[module, name] = f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, ModuleType) and _foreign(value.__name__):
        if (value.__name__, "") not in found:
            found[value.__name__, ""] = _source(value)
            for each in names & set(vars(value)):  # `helper.CONST`: the name is read here, the value is kept there
                _note(value.__name__, each, vars(value)[each], names, found)
    elif isinstance(value, type) and _foreign(value.__module__):
        found[value.__module__, ""] = _source(sys.modules[value.__module__])
    elif inspect.isfunction(value) and _foreign(value.__module__):
        at = value.__module__, value.__qualname__
        if at not in found:
            found[at] = _text(value)
            _read(value, found)


def _foreign(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] not in _KNOWN


def _names(code: CodeType) -> Iterator[str]:
    """Globals and attributes that the code names, functions written inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _text(function: FunctionType) -> str:
    """A function as it was loaded: its source (a user's file has its whole text here already) and its code."""
    code = function.__code__
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    source = "" if "__text__" in function.__globals__ else inspect.getsource(function)
    return f"{source}{code.co_code.hex()}{code.co_names}{constants}{function.__defaults__}"


def _source(module: ModuleType) -> str:
    if "__text__" in vars(module):
        return module.__dict__["__text__"]
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):  # compiled, or made by hand: what is read of it is there by value
        return ""
