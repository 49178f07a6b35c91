"""Frequency first, recency within it: the tier score of colibri."""

from dataclasses import dataclass
from typing import ClassVar

from .errors import BadPolicy
from .layout import NEVER
from .policy import Policy, check_at_least


@dataclass(frozen=True)
class Lfru(Policy):
    """Evicts the lowest heat * 256 + max(0, 255 - age). half_life=N halves heat every N steps; clock=access counts age in demands."""

    name: ClassVar[str] = "lfru"
    source: ClassVar[str] = "colibri's expert tier"
    stack: ClassVar[bool] = True

    half_life: int = 0
    clock: str = "step"

    def check(self) -> None:
        check_at_least(self, "half_life", 0)
        if self.clock not in ("step", "access"):
            raise BadPolicy(f"lfru(clock={self.clock}): the clock is 'step' or 'access'")

    @staticmethod
    def priority(p, key, at):
        if p.last[key] == NEVER:
            return 0
        return p.heat[key] * 256 + max(0, 255 - (at.clock - p.last[key]))
