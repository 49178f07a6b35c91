"""How policies are written down: `lfru(half_life=16)+guard(warm=2)`, or `./mine.py:MyPolicy(x=1)+guard`.

A file with one policy may be named without the class: `./mine.py+guard`.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from dataclasses import dataclass, fields
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from .basis import outside
from .errors import BadPolicy
from .modifiers import MODIFIERS, Gate, Guard, Pin, settings
from .own import check_source
from .policy import Policy
from .profile import read_bytes

MOST = 2**31  # parameters count steps, demands or experts; a seed has 64 bits


@dataclass(frozen=True)
class PolicySpec:
    """An eviction order with what was added to it. `str()` gives the canonical spelling: defaults are left out."""

    policy: Policy
    label: str
    guard: Guard | None = None
    gate: Gate | None = None
    pin: Pin | None = None

    @property
    def family(self) -> str:
        """Its order and what was added, without parameters or folders: policies that take much the same time."""
        label = self.label.rpartition("/")[2] if ".py:" in self.label else self.label
        return "+".join([label, *(part.name for part in (self.guard, self.gate, self.pin) if part)])

    @cached_property
    def profiles(self) -> dict[str, bytes]:
        """What the profiles named in the spelling hold, by path: read once, so what is replayed is what is hashed."""
        paths = filter(None, (getattr(part, "profile", "") for part in (self.policy, self.pin)))
        return {path: read_bytes(path) for path in paths}

    @cached_property
    def files_sha256(self) -> str | None:
        """What the policy's own file (as it was loaded, with what it imports) and profiles hold; None without any."""
        program = getattr(sys.modules[type(self.policy).__module__], "__bytes__", None)
        parts = [] if program is None else [program, outside(type(self.policy)).encode()]
        parts += self.profiles.values()
        return sha256(b"\0".join(parts)).hexdigest() if parts else None

    def __str__(self) -> str:
        parts = [_spelt(self.label, self.policy.settings())]
        parts += [_spelt(m.name, settings(m)) for m in (self.guard, self.gate, self.pin) if m]
        return "+".join(parts)


def parse_policy(text: str | PolicySpec) -> PolicySpec:
    """Reads a spelling. Raises BadPolicy naming what is wrong and the nearest right name."""
    if isinstance(text, PolicySpec):
        return text
    if not isinstance(text, str):
        raise BadPolicy(f"a policy is text, such as 'lfru(half_life=16)+guard', not {type(text).__name__}")
    # a file's name may hold any character
    path = re.match(r"\s*(.+\.py:[A-Za-z_]\w*)", text) or re.match(r"\s*(.+?\.py)(?=\s*([(+]|$))", text)
    first, *rest = _parts(text[path.end() :].strip() if path else text.strip(), "+")
    label, values = _call((_with_class(path[1]) if path else "") + first)
    kind = _from_file(label) if path else _known(label, text)
    policy = _build(kind, label, values)
    added: dict[str, Any] = {}
    for part in rest:
        name, values = _call(part)
        if name not in MODIFIERS:
            raise BadPolicy(_unknown("addition", name, MODIFIERS, text))
        if name in added:
            raise BadPolicy(f"{text!r} says +{name} twice")
        added[name] = _build(MODIFIERS[name], name, values)
    return PolicySpec(policy, label, **added)


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """`noisy(recall=0.8, seed=0)` -> ("noisy", {"recall": 0.8, "seed": 0})."""
    name, raw = _call(text)
    return name, {key: _value(value) for key, value in raw.items()}


def _call(text: str) -> tuple[str, dict[str, str]]:
    """Name and values as they are written."""
    match = re.fullmatch(r"\s*(.+\.py:\w+|.+?)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not match:
        raise BadPolicy(f"cannot read {text!r}; write name or name(parameter=value, ...)")
    values: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in _parts(match[2] or "", ","))):
        name, equals, value = item.partition("=")
        if not equals or not name.strip().isidentifier():
            raise BadPolicy(f"cannot read {item!r} in {text!r}; write parameter=value")
        if name.strip() in values:
            raise BadPolicy(f"{text!r} gives {name.strip()} twice")
        values[name.strip()] = value.strip()
    return match[1], values


@cache
def installed() -> dict[str, type[Policy]]:
    """The policies found in this folder, by name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("policy_*.py")):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Policy) and kind.__module__ == module.__name__:
                found[kind.name] = kind
    return found


def list_policies() -> list[dict[str, Any]]:
    """One row for each installed policy and addition: name, what it does, source, parameters with their defaults."""
    rows = []
    for name, kind in [*installed().items(), *(("+" + n, m) for n, m in MODIFIERS.items())]:
        parameters = {f.name: f.default for f in fields(kind)}
        rows.append({
            "name": name,
            "description": (kind.__doc__ or "").strip(),
            "source": kind.source,
            "parameters": parameters,
            "needs_future": getattr(kind, "needs_future", False),
        })  # fmt: skip
    return rows


def _parts(text: str, separator: str) -> list[str]:
    """Splits where the separator stands outside quotes and parentheses."""
    parts, depth, quote = [""], 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"" and text[:i].rstrip().endswith("="):
            quote = c
        else:
            depth += (c == "(") - (c == ")")
        addition = separator != "+" or re.match(r"\+\s*[A-Za-z_]+\s*(\(|\+|$)", text[i:])
        if c == separator and depth == 0 and not quote and addition:
            parts.append("")
        else:
            parts[-1] += c
    if depth or quote:
        raise BadPolicy(f"unbalanced {'quotes' if quote else 'parentheses'} in {text!r}")
    return parts


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _value(text: str) -> Any:
    """A number, true or false where it reads as one; else text, with its quotes taken off."""
    if _unquoted(text) != text:
        return _unquoted(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.lower() == "true" if text.lower() in ("true", "false") else text


def _spelt(name: str, values: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{k}={_written(v)}' for k, v in values.items())})" if values else name


def _balanced(text: str) -> bool:
    return text.count("(") == text.count(")") and (")" not in text or text.find("(") < text.find(")"))


def _written(value: Any) -> str:
    """A value as `_value` reads it back."""
    if not isinstance(value, str) or (
        value and _value(value) == value and not re.search(r"^\s|[,'\"]|\s$", value) and _balanced(value)
    ):
        return str(value)
    quote = "'" if '"' in value else '"'
    return f"{quote}{value}{quote}"


def _build(kind: Any, label: str, written: dict[str, str]) -> Any:
    """The policy or addition with these parameters, each read as the type of its default."""
    known = {f.name: f.default for f in fields(kind)}
    values: dict[str, Any] = {}
    for name, text in written.items():
        if name not in known:
            raise BadPolicy(_unknown(f"parameter of {label}", name, known, f"{label}({name}={text})"))
        value, default = _value(text), known[name]
        if isinstance(default, str):
            value = _unquoted(text)
        elif isinstance(default, float) and type(value) is int:
            value = float(text)
        if type(value) is not type(default):
            kind_of = type(default).__name__
            raise BadPolicy(f"{label}({name}={text}): {name} is of type {kind_of}, such as {name}={default}")
        most = 2**63 if name == "seed" else MOST
        if isinstance(value, int) and not -most <= value < most:
            raise BadPolicy(f"{label}({name}={value}): a parameter is below {most}")
        values[name] = value
    built = kind(**values)
    built.check()
    return built


def _known(name: str, text: str) -> type[Policy]:
    if name not in installed():
        raise BadPolicy(_unknown("policy", name, installed(), text))
    return installed()[name]


def _unknown(what: str, name: str, known: Any, text: str) -> str:
    near = difflib.get_close_matches(name.lower(), list(known), 1)
    hint = f" Did you mean {text.replace(name, near[0], 1)!r}?" if near else ""
    return f"no {what} named {name!r} in {text!r}; known: {', '.join(known) or 'none'}.{hint}"


def _with_class(where: str) -> str:
    """`mine.py` -> `mine.py:Twice`, if the file holds one policy."""
    if not where.endswith(".py"):
        return where
    here = _policies_in(_module(where, where))
    if not here:
        raise BadPolicy(f"{where!r} holds no Policy class; the README shows one, under 'Your own policy'")
    if len(here) > 1:
        raise BadPolicy(f"{where!r} holds {', '.join(here)}; write which, as in '{where}:{here[0]}'")
    return f"{where}:{here[0]}"


def _policies_in(module: ModuleType) -> list[str]:
    """The policies that the file itself writes, not those that it imports."""
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, Policy)}
    return [name for name, kind in kinds.items() if kind.__module__ == module.__name__]


def _from_file(label: str) -> type[Policy]:
    """A user's own policy: `path/to/file.py:ClassName`."""
    where, _, name = label.rpartition(":")
    module = _module(where, label)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        here = ", ".join(_policies_in(module)) or "none"
        raise BadPolicy(f"{label!r}: {where} has no Policy class {name!r}; it has: {here}")
    bare = [f.name for f in fields(kind) if not isinstance(f.default, (int, float, str))]
    if bare or len(fields(kind)) > 8:
        raise BadPolicy(f"{label!r}: at most 8 parameters, each with a number or text as its default; see {bare}")
    if kind.priority is Policy.priority and not kind.keeps_order:
        raise BadPolicy(f"{label!r}: {name} has no `priority(p, key, at)`, so it ranks nobody; see 'slotwise policies'")
    check_source(label, kind)
    outside(kind)  # what it imports is taken down now, as it was loaded
    return kind


def _module(where: str, label: str) -> ModuleType:
    """The file as a module of its own, under a name that its text decides."""
    path = Path(where)
    if not path.is_file():
        raise BadPolicy(f"{label!r}: there is no file {where!r}")
    text = path.read_bytes()
    module_name = f"slotwise_file_{sha256(text).hexdigest()[:16]}"
    if module_name not in sys.modules:
        module = ModuleType(module_name)
        module.__dict__.update(__file__=str(path), __text__=text.decode(errors="replace"), __bytes__=text)
        sys.modules[module_name] = module
        try:
            # not by the import system: its .pyc tells one edit from the next by the second
            exec(compile(text, str(path), "exec"), module.__dict__)
        except (Exception, SystemExit) as error:  # a user's file may raise anything
            del sys.modules[module_name]
            raise BadPolicy(f"{label!r}: {where} does not load: {type(error).__name__}: {error}") from error
    return sys.modules[module_name]
