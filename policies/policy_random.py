"""A victim by lot, the same lot every time: what any rule has to beat."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from .policy import Policy


@njit
def splitmix64(x):
    """Steele, Lea and Flood's 64-bit mixer."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def mix(a, b, c):
    """A 64-bit hash of three numbers."""
    return splitmix64(splitmix64(splitmix64(np.uint64(a)) ^ np.uint64(b)) ^ np.uint64(c))


@dataclass(frozen=True)
class Random(Policy):
    """Evicts the lowest hash of (seed, step, layer * n_experts + expert)."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "textbook; hash: splitmix64"
    stack: ClassVar[bool] = True

    seed: int = 0

    @staticmethod
    def priority(p, key, at):
        # the top bit flipped, so that signed order is unsigned order
        return np.int64(mix(p.ints[0], at.now, key + at.key_offset) ^ np.uint64(1 << 63))
