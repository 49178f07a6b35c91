"""Values that were measured more than once: a mean and its spread, and differences of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FLOOR = 1e-9  # seconds: less than any clock here tells, and the least of a machine file
MOST_SPREAD = 10.0  # times the value: more is no measurement, and no machine file takes it


LEAST_RATE, MOST_RATE = 1e6, 1e14  # bytes per second of a machine file: beyond, rows have a few bytes or no clock tells


class Value(NamedTuple):
    """A mean, and the standard deviation of single measurements."""

    value: float
    spread: float

    def less(self, *others: Value) -> Value:
        """What is left once these are taken off; never less than FLOOR. Spreads add as independent ones do."""
        left = self.value - sum(other.value for other in others)
        return Value(max(FLOOR, left), math.hypot(self.spread, *(other.spread for other in others)))

    def plus(self, other: Value) -> Value:
        """Both."""
        return Value(self.value + other.value, math.hypot(self.spread, other.spread))

    def over(self, count: float) -> Value:
        """A share of it."""
        return Value(self.value / count, self.spread / count)

    def checked(self) -> Value:
        """With a spread that a machine file takes."""
        return Value(self.value, min(self.spread, MOST_SPREAD * self.value))


def rate_of(n_bytes: float, seconds: float, share: float) -> Value:
    """Bytes per second, within LEAST_RATE and MOST_RATE: the seconds may be a difference that noise has swallowed.

    share: the spread of the measurement, of its value.
    """
    rate = min(MOST_RATE, max(LEAST_RATE, n_bytes / seconds))
    return Value(rate, rate * share)


def settled(values: Sequence[float] | np.ndarray) -> Value:
    """Mean and standard deviation of the middle nine tenths: an interrupt is no property of what was measured."""
    ordered = np.sort(np.asarray(values, float))
    cut = int(0.05 * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return Value(float(kept.mean()), float(kept.std()))


def usual(values: Sequence[float] | np.ndarray) -> Value:
    """Their median, with the same spread: for what is found as a difference of longer times, which scatter more."""
    return Value(max(FLOOR, float(np.median(values))), settled(values).spread)
