"""What a policy is: a small frozen class that scores experts. It holds no weights, moves nothing and reads no clock.

A ranked policy writes only `priority(p, key, at)`: the resident with the lowest one leaves first. A policy that keeps
an order of its own writes `oldest` as well, with the hooks it needs to keep that order: `touched`, `met` (demanded,
or its heat aged), `filled`, `refused`, `left`. It must choose what its `priority` chooses; the tests hold the two
against each other. All of them are plain functions that numba can compile: `p` has the arrays `heat last touch
demanded fill next slot busy ...` of one pool indexed by key, and the policy's own parameters in `ints` and `floats`
by the position of the field; `at` has `now tick clock layer key_offset`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .errors import BadPolicy
from .layout import NONE


def priority(p, key, at):
    return p.touch[key]  # every policy writes its own


def then(p, key, at):
    return 0


def touched(p, key):
    pass


def met(p, key):
    pass


def filled(p, key):
    pass


def refused(p, key):
    pass


def left(p, key):
    pass


def oldest(p, at):
    return NONE


def choose(p, at, misses):
    pass


KEEPS_ORDER = False  # True: `oldest` answers, without a scan
PLANS_TICKS = False  # True: `choose` decides about all misses of a tick at once
NUMBERS = True  # touches and fills are numbered
FUTURE = False  # True: `p.next` is kept
FULL = LOOK = RECORD = TELL = True  # features of a kernel, see kernel_slots.py


@dataclass(frozen=True)
class Policy:
    """One eviction order. The fields of a subclass are its parameters, spelt `name(field=value)`."""

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""  # who published the rule
    stack: ClassVar[bool] = False  # contents at S slots are always contained in those at S + 1
    needs_future: ClassVar[bool] = False  # replay only
    bound: ClassVar[bool] = False  # not a policy one can run: a limit for those that can
    keeps_order: ClassVar[bool] = False
    plans_ticks: ClassVar[bool] = False

    priority: ClassVar[Any] = staticmethod(priority)
    then: ClassVar[Any] = staticmethod(then)
    touched: ClassVar[Any] = staticmethod(touched)
    met: ClassVar[Any] = staticmethod(met)
    filled: ClassVar[Any] = staticmethod(filled)
    refused: ClassVar[Any] = staticmethod(refused)
    left: ClassVar[Any] = staticmethod(left)
    oldest: ClassVar[Any] = staticmethod(oldest)
    choose: ClassVar[Any] = staticmethod(choose)

    def check(self) -> None:
        """Raises BadPolicy if a parameter has a value that makes no sense."""

    def settings(self) -> dict[str, Any]:
        """The parameters that differ from their defaults, in the order of the fields."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def check_at_least(policy: Policy, field: str, least: int) -> None:
    """Raises BadPolicy unless the field is a whole number of at least `least`."""
    value = getattr(policy, field)
    if not isinstance(value, int) or value < least:
        raise BadPolicy(f"{policy.name}({field}={value}): {field} is a whole number of at least {least}")


HOOKS = ("priority", "then", "touched", "met", "filled", "refused", "left", "oldest", "choose")
