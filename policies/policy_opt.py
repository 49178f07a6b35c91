"""The bound: no policy without prefetch can hit more often."""

from dataclasses import dataclass
from typing import ClassVar

from numba import njit

from .layout import NONE
from .names import P
from .policy import Policy

_CAPACITY, _OCCUPIED, _N_GATHERED, _N_TAKEN = P.capacity, P.occupied, P.n_gathered, P.n_taken


@njit
def _nearer(p, one, other):
    """Whether `one` is demanded again before `other`; ties go to the lower id."""
    return p.next[one] < p.next[other] or (p.next[one] == p.next[other] and one < other)


@njit
def _gathered(p, key):
    for i in range(p.head[_N_GATHERED]):  # noqa: SIM110 - numba has no any()
        if p.gathered[i] == key:
            return True
    return False


@dataclass(frozen=True)
class Opt(Policy):
    """Keeps of residents and demand those with the nearest next demand; misses that lose are bypassed."""

    name: ClassVar[str] = "opt"
    source: ClassVar[str] = (
        "Belady's rule with bypass; optimal when every tick is atomic, checked here by exhaustive search"
    )
    stack: ClassVar[bool] = True
    needs_future: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    plans_ticks: ClassVar[bool] = True

    @staticmethod
    def choose(p, at, misses):
        """Matches the misses, nearest next demand first, with free slots and then with ever nearer residents."""
        p.head[_N_GATHERED] = 0
        p.head[_N_TAKEN] = 0
        free = p.head[_CAPACITY] - p.head[_OCCUPIED]
        p.kept[:misses] = 0
        for _ in range(misses):
            best = NONE
            for i in range(misses):
                if not p.kept[i] and (best == NONE or _nearer(p, p.missed[i], p.missed[best])):
                    best = i
            if free > 0:
                free -= 1
                p.kept[best] = 1
                continue
            worst = NONE
            for slot in range(p.owner.shape[0]):
                key = p.owner[slot]
                if key != NONE and not _gathered(p, key) and (worst == NONE or _nearer(p, worst, key)):
                    worst = key
            if worst == NONE or p.next[p.missed[best]] >= p.next[worst]:
                break
            p.kept[best] = 1
            p.gathered[p.head[_N_GATHERED]] = worst
            p.head[_N_GATHERED] += 1

    @staticmethod
    def oldest(p, at):
        """The next of the chosen victims, farthest first."""
        taken = p.head[_N_TAKEN]
        if taken == p.head[_N_GATHERED]:
            return NONE
        p.head[_N_TAKEN] = taken + 1
        return p.gathered[taken]
