"""What may be added to an eviction order: `+guard`, `+gate`, `+pin`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .errors import BadPolicy


@dataclass(frozen=True)
class Guard:
    """Protects victim v from prediction p iff heat[v] >= warm and score(v) * (1 + ratio) + counts * 256 > score(p)."""

    name: ClassVar[str] = "guard"
    source: ClassVar[str] = "the guard of speculative fills in llama.cpp expert caches"

    warm: int = 2
    ratio: float = 0.25
    counts: int = 4

    def check(self) -> None:
        for name, value, most in (
            ("warm", self.warm, 2**31),
            ("ratio", self.ratio, 1e6),
            ("counts", self.counts, 2**31),
        ):
            if not 0 <= value <= most:
                raise BadPolicy(f"guard({name}={value}): {name} is a number from 0 to {most:.0f}")


@dataclass(frozen=True)
class Gate:
    """Admits an expert once it has missed `admit` times; counts are halved every `window` steps (0: never)."""

    name: ClassVar[str] = "gate"
    source: ClassVar[str] = "admission after repeated misses, as in TinyLFU"

    window: int = 16
    admit: int = 3

    def check(self) -> None:
        if self.window < 0 or self.admit < 1:
            raise BadPolicy(f"gate(window={self.window}, admit={self.admit}): window is at least 0, admit at least 1")


@dataclass(frozen=True)
class Pin:
    """Keeps the top n experts of a profile in each pool from the start; they are never victims."""

    name: ClassVar[str] = "pin"
    source: ClassVar[str] = "offline placement, as in KTransformers"

    profile: str = ""
    n: int = 0

    def check(self) -> None:
        if not self.profile or self.n < 1:
            raise BadPolicy(
                "pin needs a profile and how many: pin(profile=FILE, n=N) with a file from 'slotwise trace profile'"
            )


MODIFIERS = {m.name: m for m in (Guard, Gate, Pin)}


def settings(modifier: Any) -> dict[str, Any]:
    """The parameters that differ from their defaults."""
    return {f.name: getattr(modifier, f.name) for f in fields(modifier) if getattr(modifier, f.name) != f.default}
