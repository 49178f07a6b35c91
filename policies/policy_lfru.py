"""Frequency first, recency within it: the tier score of colibri."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from .errors import BadPolicy
from .layout import NEVER, NONE
from .names import P
from .policy import Policy, check_at_least

KEY_BITS = 16  # pools of more keys are scanned by `priority`
TAKEN = 1 << 62  # no score reaches it; the largest int64 was tried: it keeps the loop below from becoming vector code
_HIGH = P.high


@njit(forceinline=True)
def keep(p, key, slot):
    """Writes the two words of a slot."""
    heat = np.int64(p.heat[key]) << 8
    last = p.last[key]
    p.low[slot] = (heat << KEY_BITS) | key if last != NEVER else np.int64(key)
    p.high[slot] = ((heat + last) << KEY_BITS) | key if last != NEVER else np.int64(NEVER)


@njit
def lowest(low, high, hold, slots, tick, shift):
    """The lowest word among the slots that are not held; a function of its own, or it is not vectorised."""
    best = np.int64(TAKEN)
    for slot in range(slots):
        score = max(low[slot], high[slot] + shift)
        best = min(best, score if hold[slot] < tick else TAKEN)
    return best


@dataclass(frozen=True)
class Lfru(Policy):
    """Evicts the lowest heat * 256 + max(0, 255 - age); half_life=N steps halves heat, clock=access counts demands."""

    name: ClassVar[str] = "lfru"
    source: ClassVar[str] = "colibri's expert tier"
    stack: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True

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

    # The score is max(heat * 256, heat * 256 + 255 + last - clock): two words per slot that change only when the
    # expert is demanded or ages, kept side by side with the key below them, so that one branch-free pass finds victim
    # and tie at once.

    @staticmethod
    def met(p, key):
        slot = p.slot[key]
        if slot != NONE:
            keep(p, key, slot)

    @staticmethod
    def filled(p, key):
        keep(p, key, p.slot[key])

    @staticmethod
    def oldest(p, at):
        best = lowest(p.low, p.high, p.hold, p.head[_HIGH], at.tick, (255 - at.clock) << KEY_BITS)
        return NONE if best == TAKEN else best & ((1 << KEY_BITS) - 1)
