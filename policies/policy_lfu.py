"""Least frequently used, with the heat halved every so many steps if asked for."""

from dataclasses import dataclass
from typing import ClassVar

from .policy import Policy, check_at_least


@dataclass(frozen=True)
class Lfu(Policy):
    """Evicts the expert with the fewest demands, then the oldest; half_life=N halves all counts every N steps."""

    name: ClassVar[str] = "lfu"
    source: ClassVar[str] = "textbook; ageing by halving as in csantiago78's llama.cpp cache (#27861)"
    stack: ClassVar[bool] = True

    half_life: int = 0

    def check(self) -> None:
        check_at_least(self, "half_life", 0)

    @staticmethod
    def priority(p, key, at):
        return p.heat[key]

    @staticmethod
    def then(p, key, at):
        return p.demanded[key]
