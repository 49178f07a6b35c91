"""How far a figure could be off because the trace is only a sample: a block bootstrap over requests, or over steps."""

from __future__ import annotations

import numpy as np

DRAWS = 1000
LEVEL = 0.95
FEWEST_REQUESTS = 8  # with fewer of them, stretches of steps are drawn
_AT_A_TIME = 1 << 22  # drawn numbers


def units_of(requests: np.ndarray) -> np.ndarray:
    """What is drawn as a whole: the unit of each step, from 0.

    Requests, if there are enough of them and no step mixes some; else stretches of 2 * n^(1/3) neighbouring steps.
    """
    found, unit = np.unique(requests, return_inverse=True)
    if len(found) >= FEWEST_REQUESTS and found[0] >= 0:
        return unit
    n = len(requests)
    return np.arange(n) // max(1, int(np.ceil(2 * n ** (1 / 3))))


def resampled(units: np.ndarray, *sums: np.ndarray, seed: int = 0) -> np.ndarray:
    """[DRAWS, len(sums)]: totals over units drawn with replacement. `sums` [steps] each.

    The same units and seed draw the same units, so that two configurations can be compared draw by draw.
    """
    n_units = int(units.max()) + 1
    table = np.stack([np.bincount(units, weights=each, minlength=n_units) for each in sums], axis=1)
    draw = np.random.default_rng(seed)
    some = max(1, _AT_A_TIME // n_units)
    parts = [
        table[draw.integers(0, n_units, (min(some, DRAWS - first), n_units))].sum(1) for first in range(0, DRAWS, some)
    ]
    return np.concatenate(parts)


def interval(values: np.ndarray) -> tuple[float, float] | None:
    """The middle 95 % of resampled values; None where there are none."""
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def ratio_interval(
    above: np.ndarray, below: np.ndarray, units: np.ndarray, seed: int = 0
) -> tuple[float, float] | None:
    """Of sum(above) / sum(below) over the steps; None for a single unit, which nothing can be learned from."""
    if not len(units) or units.max() < 1:
        return None
    drawn = resampled(units, above, below, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval(drawn[:, 0] / drawn[:, 1])
