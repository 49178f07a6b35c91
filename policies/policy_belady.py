"""Belady's rule in its published form: every miss is admitted, the farthest next demand leaves."""

from dataclasses import dataclass
from typing import ClassVar

from .policy import Policy


@dataclass(frozen=True)
class Belady(Policy):
    """Evicts the expert whose next demand is farthest away. Admits every miss, so it is not the bound (see opt)."""

    name: ClassVar[str] = "belady"
    source: ClassVar[str] = "L. A. Belady, IBM Systems Journal 5 (1966)"
    stack: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True

    @staticmethod
    def priority(p, key, at):
        return -p.next[key]
