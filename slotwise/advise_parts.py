"""Chosen on the first part of a trace, judged on the rest: which steps are which, and how long the start takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotwise.replay.intervals import interval, resampled
from slotwise.replay.price import PHASES, Price

FEWEST_STEPS = 128  # of the phase: with fewer, nothing is held out
STEADY = 0.95  # of the hit rate of the later half: there the start is over
WINDOWS = 100  # along a run, of which one is smoothed over


@dataclass(frozen=True)
class Parts:
    """Steps (bool [steps of the run]) on which candidates are chosen, and on which the chosen one is judged.

    by: "request" where whole requests lie on either side, "step" where one is cut, None if nothing is held out.
    """

    chosen: np.ndarray
    judged: np.ndarray
    by: str | None

    def to_dict(self) -> dict[str, Any]:
        return {"by": self.by, "chosen_steps": int(self.chosen.sum()), "judged_steps": int(self.judged.sum())}


def parts_of(price: Price) -> Parts:
    """Cuts the steps of the phase in two: between requests as near the middle as they allow, else in the middle.

    A cut between requests leaves at least a quarter on either side, and no request on both.
    """
    mine = _of_phase(price)
    places = np.flatnonzero(mine)
    n = places.size
    if n < FEWEST_STEPS:
        return Parts(mine, mine, None)
    _, request = np.unique(price.step_request[places], return_inverse=True)
    last = np.zeros(request.max() + 1, np.int64)
    last[request] = np.arange(n)  # the last one written stays
    at = np.arange(1, n)
    clean = at[(np.maximum.accumulate(last[request])[:-1] < at) & (at >= n / 4) & (at <= 3 * n / 4)]
    if price.step_request[places].min() < 0:
        clean = clean[:0]  # steps that mix requests belong to none
    cut = int(clean[np.abs(clean - n / 2).argmin()]) if clean.size else n // 2
    chosen, judged = np.zeros_like(mine), np.zeros_like(mine)
    chosen[places[:cut]] = judged[places[cut:]] = True
    return Parts(chosen, judged, "request" if clean.size else "step")


def speed(price: Price) -> dict[str, Any]:
    """Tokens per second with their interval, by the names that answers use."""
    return {"tokens_per_s": price.tokens_per_s, "tokens_per_s_interval": price.intervals["tokens_per_s"]}


def gained(before: Price, after: Price) -> tuple[float, tuple[float, float] | None]:
    """Tokens per second that `after` has more than `before`, paired draw by draw over the same steps."""
    gain = after.tokens_per_s - before.tokens_per_s
    if not len(before.units) or before.units.max() < 1:
        return gain, None
    mine = _of_phase(before)
    sums = (each for one in (before, after) for each in (one.step_tokens[mine], one.step_s[mine]))
    drawn = resampled(before.units, *sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        return gain, interval(drawn[:, 2] / drawn[:, 3] - drawn[:, 0] / drawn[:, 1])


def warm_up(price: Price, reset: str) -> dict[str, Any] | None:
    """How long pools take to fill: steps of the phase before the first window that hits as often as a steady run.

    The steps are counted from the cold start, or from the start of each request where pools are reset there (the
    requests are then summed). Steady is the hit rate over the later half of them, and "as often" 95 % of it; a window
    is 1 % of the run. None where nothing hits.
    """
    mine = np.flatnonzero(_of_phase(price))
    at = np.arange(mine.size)
    if reset == "request" and mine.size:
        turn = np.concatenate(([True], np.diff(price.step_request[mine]) != 0))
        at = at - np.maximum.accumulate(np.where(turn, at, 0))
    longest = int(at.max()) + 1 if mine.size else 0
    window = max(1, -(-longest // WINDOWS))
    demands = np.bincount(at, weights=price.step_demands[mine], minlength=longest)
    hits = demands - np.bincount(at, weights=price.step_misses[mine], minlength=longest)
    late = slice(longest // 2, None)
    if not hits[late].sum():
        return None
    steady = float(hits[late].sum() / demands[late].sum())
    first = np.arange(0, longest, window)
    wanted, had = np.add.reduceat(demands, first), np.add.reduceat(hits, first)
    reached = int(np.argmax(had >= STEADY * steady * wanted))
    before = mine[at < first[reached]]
    return {
        "steps": int(first[reached]), "window_steps": window, "steady_hit_rate": steady,
        "first_hit_rate": float(had[0] / wanted[0]) if wanted[0] else None,
        "tokens": int(price.step_tokens[before].sum()), "seconds": float(price.step_s[before].sum()),
    }  # fmt: skip


def _of_phase(price: Price) -> np.ndarray:
    return np.ones(len(price.step_s), bool) if price.phase == "all" else price.step_phase == PHASES.index(price.phase)
