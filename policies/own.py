"""What a policy in a file of one's own gets wrong, by its line: seen in the source, or read out of numba's words."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from dataclasses import fields
from functools import cache
from typing import Any

from .errors import BadPolicy
from .layout import FIELDS
from .policy import HOOKS, Policy

DOCUMENTED = "touch demanded fill heat last next known unused gated slot ints floats".split()
OF_POOL = {name for name, _, _ in FIELDS} | {"shared", "ratio", "ints", "floats", "row_bytes"}
OF_MOMENT = "now tick clock layer base key_offset".split()
NOT_WHOLE = (("none", "nothing"), ("float", "a fraction"), ("unicode", "text"), ("Literal[str]", "text"))


@cache
def check_source(label: str, kind: type[Policy]) -> None:
    """Raises BadPolicy for what would not compile, or would compile and mean nothing. Reads only the user's file."""
    text = _text(kind)
    if text is None:
        return
    tree = ast.parse(text)
    for function, node, kinds in _functions(kind, tree):
        where = f"{label}, line {{}}"
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in kinds:
                _check_name(where.format(part.lineno), kind, part, kinds[part.value.id])
            if isinstance(part, ast.Subscript):
                _check_field(where.format(part.lineno), kind, part, kinds)
        if function.__name__ == "priority" and _falls_through(node.body):
            raise BadPolicy(
                f"{where.format(node.lineno)}: priority may end without `return`; every way through it returns a whole "
                "number, such as p.touch[key]"
            )


def _text(kind: type[Policy]) -> str | None:
    """The file that the class is from; None for a class of ours."""
    return next((h.__globals__["__text__"] for h in _hooks(kind) if "__text__" in h.__globals__), None)


def _hooks(kind: type[Policy]) -> list[Any]:
    return [getattr(kind, name) for name in HOOKS]


def _functions(kind: type[Policy], tree: ast.Module) -> list[tuple[Any, ast.FunctionDef, dict[str, str]]]:
    """The hooks of the class that its file writes and what they call in it, with the names of their pool and moment."""
    nodes = {
        min([node.lineno, *(d.lineno for d in node.decorator_list)]): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    todo = [(hook, getattr(Policy, hook.__name__, hook)) for hook in _hooks(kind)]
    found, seen = [], set()
    while todo:
        function, model = todo.pop(0)
        if function in seen or "__text__" not in function.__globals__:
            continue
        seen.add(function)
        node = nodes.get(function.__code__.co_firstlineno)
        if node is not None:
            mine, theirs = (f.__code__.co_varnames[: f.__code__.co_argcount] for f in (function, model))
            kinds = {name: called for name, called in zip(mine, theirs, strict=False) if called in ("p", "at")}
            found.append((function, node, kinds))
        called = (function.__globals__.get(name) for name in function.__code__.co_names)
        plain = (getattr(one, "py_func", one) for one in called)  # of one that is compiled already
        todo += [(one, one) for one in plain if inspect.isfunction(one)]
    return found


def _check_name(where: str, kind: type[Policy], part: ast.Attribute, of: str) -> None:
    known = OF_POOL if of == "p" else set(OF_MOMENT)
    if part.attr not in known:
        raise BadPolicy(f"{where}: {unknown_name(ast.unparse(part.value), part.attr, of)}")
    if of == "p" and part.attr == "next" and not kind.needs_future:
        raise BadPolicy(
            f"{where}: p.next is kept only for a policy with `needs_future: ClassVar[bool] = True`, which can be "
            "replayed but not run; add that line to the class, or rank by something else"
        )


def _check_field(where: str, kind: type[Policy], part: ast.Subscript, kinds: dict[str, str]) -> None:
    """`p.ints[2]`: is there a field number 2, and of that type?"""
    array, index = part.value, part.slice
    if not (isinstance(array, ast.Attribute) and array.attr in ("ints", "floats")):
        return
    ours = isinstance(array.value, ast.Name) and kinds.get(array.value.id) == "p"
    if not ours or not isinstance(index, ast.Constant) or not isinstance(index.value, int):
        return
    here, at = fields(kind), index.value
    if not 0 <= at < len(here):
        named = ", ".join(f"{i} {field.name}" for i, field in enumerate(here)) or "none"
        raise BadPolicy(f"{where}: p.{array.attr}[{at}] is no parameter; the class has {named}")
    default = here[at].default
    right = "floats" if isinstance(default, float) else "ints" if isinstance(default, int) else ""
    if right != array.attr:
        way = f"read p.{right}[{at}]" if right else "compiled code cannot read it"
        raise BadPolicy(
            f"{where}: p.{array.attr}[{at}] is the parameter {here[at].name}={default!r}, of type "
            f"{type(default).__name__}; {way}"
        )


def unknown_name(name: str, attribute: str, of: str) -> str:
    """`p.tuch` -> what there is, and what was meant."""
    known = DOCUMENTED if of == "p" else OF_MOMENT
    near = difflib.get_close_matches(attribute, known, 1)
    hint = f". Did you mean {name}.{near[0]}?" if near else ""
    return f"{name}.{attribute} is not there; {name} has {', '.join(known)}{hint}"


def _falls_through(body: list[ast.stmt]) -> bool:
    """Whether the end of these statements can be reached without a `return`."""
    last = body[-1]
    if isinstance(last, ast.If):
        return not last.orelse or _falls_through(last.body) or _falls_through(last.orelse)
    if isinstance(last, ast.While):
        return not (isinstance(last.test, ast.Constant) and last.test.value)
    if isinstance(last, (ast.With, ast.Try, ast.Match)):
        return False  # rare, and numba says
    return not isinstance(last, (ast.Return, ast.Raise))


def blame(spec: Any, error: Exception) -> None:
    """Raises BadPolicy where a policy of one's own does not compile, or failed while it ran; else it does nothing."""
    kind = type(spec.policy)
    if isinstance(error, (BadPolicy, MemoryError)) or _text(kind) is None:
        return
    if not type(error).__module__.startswith("numba."):
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise BadPolicy(f"{spec} failed while it ranked an expert: {what}; look at its priority and hooks") from error
    raise BadPolicy(f"{spec} does not compile: {_told(kind, str(error))}") from error


def _told(kind: type[Policy], text: str) -> str:
    """What numba says, cut down to the line that helps."""
    if match := re.search(r">>> whole_priority\((.*)\)", text):
        said = next((words for start, words in NOT_WHOLE if match[1].startswith(start)), match[1])
        return (
            f"its priority{_returns(kind)} returns {said} ({match[1]}), but must return a whole number; "
            "int(...) or // make one of a fraction"
        )
    if match := re.search(r"Unknown attribute '(\w+)' of type (SlotwisePool|Moment)", text):
        of = "p" if match[2] == "SlotwisePool" else "at"
        return unknown_name(of, match[1], of) + _line(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = ("NameError", "Untyped", "Cannot unify", "Use of unsupported", "Invalid use", "No impl", "Unsupported")
    line = next((line for line in lines if any(word in line for word in telling)), "")
    line = line or next((line for line in lines if "Failed in nopython" not in line), lines[0] if lines else "")
    return f"{line}{_line(text)}; numba compiles numbers, branches and the names in the README, under 'Your own policy'"


def _line(text: str) -> str:
    """The last line of a user's file that numba points to."""
    found = re.findall(r'\.py"?,? (?:line |\()(\d+)', text)
    return f" (line {found[-1]})" if found else ""


def _returns(kind: type[Policy]) -> str:
    """The lines of the `return`s of the priority."""
    tree = ast.parse(_text(kind) or "")
    lines = [
        str(part.lineno)
        for function, node, _ in _functions(kind, tree)
        if function.__name__ == "priority"
        for part in ast.walk(node)
        if isinstance(part, ast.Return)
    ]
    return f", line {' or '.join(lines)}," if lines else ""
