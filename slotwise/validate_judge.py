"""Prices against measurements: errors by stratum, paired signs, ranks, a fitted baseline, and a verdict by rule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

STRATA = ("cold", "hot", "link", "host")
FEWEST_BLOCKS = 7
FEWEST_DRAWN = 5  # blocks that an interval can be drawn from
MOST_OFF = 0.03  # of a block's sentinel; also between two calibrations
MOST_NOISE = 0.025
LIMITS = {"median": 0.05, "p95": 0.10, "worst": 0.15}
COEFFICIENTS = 3  # of the line that prices are held against
SIZE = 0.25  # of a measured gain that its prediction may miss
DRAWS = 1000


@dataclass(frozen=True)
class Evidence:
    """What was predicted and measured of n configurations.

    predicted [n], measured [blocks, n], sentinel [blocks, 2]: tokens per second. strata [n]: names of STRATA.
    twins [n]: configurations with equal ones differ in nothing but the policy. misses, loads [n]: per token.
    drift: by how much prices of two calibrations differ, None where there was no second one. labels [n]: of the prices.
    """

    predicted: np.ndarray
    measured: np.ndarray
    sentinel: np.ndarray
    strata: Sequence[str]
    twins: Sequence[Hashable]
    misses: np.ndarray
    loads: np.ndarray
    drift: float | None
    labels: Sequence[str]


def judge(found: Evidence) -> dict[str, Any]:
    """Everything that a report of it says, as plain numbers, `verdict` and its `reasons` among them.

    Where no block counts, the numbers are those of all, and the verdict says so.
    """
    kept = kept_blocks(found.sentinel)
    counted = kept if kept.any() else np.ones(len(kept), bool)
    measured, noise = found.measured[counted], noise_of(found.sentinel[counted])
    usual = np.median(measured, axis=0)
    fitted = baseline(usual, found.misses, found.loads)
    return {
        **concluded(
            found.predicted / usual - 1, fitted / usual - 1, found.strata, paired(found, measured, noise),
            doubts_of(int(kept.sum()), noise, found.drift, found.labels),
        ),
        "blocks": len(kept), "blocks_dropped": int((~kept).sum()), "noise_floor": noise, "drift": found.drift,
        "kendall_tau": kendall(found.predicted, usual), "measured": usual.tolist(),
        "intervals": [_interval(measured[:, i]) for i in range(measured.shape[1])],
        "baseline": fitted.tolist(),
    }  # fmt: skip


def concluded(
    errors: np.ndarray, lines: np.ndarray, strata: Sequence[str], pairs: list[dict[str, Any]], doubts: list[str]
) -> dict[str, Any]:
    """Errors in all and by stratum, and the verdict that they, the pairs and the doubts lead to.

    errors, lines [n]: by which share predictions, and the fitted line, are above what was measured.
    """
    error, line = np.abs(errors), np.abs(lines)

    def of(mine: np.ndarray) -> dict[str, Any]:
        return {"configurations": int(mine.sum()), **_summed(error[mine]), "baseline": _summed(line[mine])}

    every = {name: np.array([each == name for each in strata]) for name in STRATA}
    whole = of(np.ones(len(error), bool))
    each = {name: of(mine) for name, mine in every.items() if mine.any()}
    faults = _faults(whole, each, pairs)
    counts = {what: sum(pair[what] for pair in pairs) for what in ("decided", "wrong_sign", "wrong_size")}
    return {
        "verdict": "inconclusive" if doubts else "failed" if faults else "passed", "reasons": doubts + faults,
        "all": whole, "strata": each, "pairs": {**counts, "of": len(pairs), "each": pairs},
    }  # fmt: skip


def kept_blocks(sentinel: np.ndarray) -> np.ndarray:
    """Which blocks count: those whose sentinel is near that of all."""
    each = sentinel.mean(axis=1)
    return np.abs(each / np.median(each) - 1) <= MOST_OFF


def noise_of(sentinel: np.ndarray) -> float:
    """The standard deviation of identical repeats within a block, as a share."""
    return float(np.sqrt(np.mean((np.diff(sentinel, axis=1)[:, 0] / sentinel.mean(axis=1)) ** 2 / 2)))


def baseline(measured: np.ndarray, misses: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """Tokens per second of seconds = a + b * misses + c * loads per token, fitted to the very measurements."""
    terms = np.stack([np.ones_like(misses), misses, loads], axis=1)
    fit = np.linalg.lstsq(terms, 1 / measured, rcond=None)[0]
    return 1 / np.maximum(terms @ fit, 1e-12)


def paired(found: Evidence, measured: np.ndarray, noise: float) -> list[dict[str, Any]]:
    """Policies against each other where all else is equal: what the blocks say of their ratio, and the prices.

    The noise floor of a pair is that of the sentinel, or the spread of its own ratio over the blocks if that is wider.
    """
    pairs = []
    for i, j in combinations(range(len(found.predicted)), 2):
        if found.twins[i] != found.twins[j]:
            continue
        ratios = measured[:, i] / measured[:, j]
        between = _interval(ratios)
        gain, told = float(np.median(ratios)) - 1, float(found.predicted[i] / found.predicted[j]) - 1
        decided = between is not None and not between[0] <= 1 <= between[1]
        floor = max(noise, float(np.std(ratios)))
        pairs.append(
            {
                "first": i, "second": j, "measured": gain, "predicted": told,
                "interval": between and [end - 1 for end in between],
                "decided": decided, "wrong_sign": decided and gain * told <= 0,
                "wrong_size": decided and abs(told - gain) > max(SIZE * abs(gain), floor),
            }
        )  # fmt: skip
    return pairs


def kendall(one: np.ndarray, other: np.ndarray) -> float | None:
    """Share of pairs in the same order less those in the other; None for fewer than two."""
    signs = [np.sign(one[i] - one[j]) * np.sign(other[i] - other[j]) for i, j in combinations(range(len(one)), 2)]
    return float(np.mean(signs)) if signs else None


def doubts_of(kept: int, noise: float, drift: float | None, labels: Sequence[str]) -> list[str]:
    """Why nothing can be concluded."""
    doubts = []
    if kept < FEWEST_BLOCKS:
        doubts.append(f"{kept} {'block counts' if kept == 1 else 'blocks count'}; at least {FEWEST_BLOCKS} must")
    if noise > MOST_NOISE:
        doubts.append(f"identical runs differ by {100 * noise:.1f} %; at most {100 * MOST_NOISE:g} %")
    if drift is None:
        doubts.append("the machine was not calibrated again afterwards")
    elif drift > MOST_OFF:
        doubts.append(f"prices of two calibrations differ by {100 * drift:.1f} %; at most {100 * MOST_OFF:g} %")
    if len(labels) <= COEFFICIENTS:
        doubts.append(f"a line of {COEFFICIENTS} coefficients goes through {len(labels)} configurations: run more")
    if estimated := sum(label != "SIMULATED" for label in labels):
        doubts.append(f"{estimated} prices are ESTIMATED: the machine has no sheets for these rows")
    return doubts


def _faults(whole: dict[str, Any], strata: dict[str, Any], pairs: list[dict[str, Any]]) -> list[str]:
    """What a price may not get wrong, and did."""
    faults = [
        f"{name} error {100 * whole[name]:.1f} %; at most {100 * limit:g} %"
        for name, limit in LIMITS.items()
        if whole[name] > limit
    ]
    beatable = whole["configurations"] > COEFFICIENTS  # else the line goes through every point
    if beatable and whole["median"] > whole["baseline"]["median"]:
        faults.append("a line fitted to misses and loads has the smaller median error")
    faults += [
        f"{name}-bound: median error {100 * each['median']:.1f} %, more than half of the line's "
        f"{100 * each['baseline']['median']:.1f} %"
        for name, each in strata.items()
        if beatable and name != "cold" and each["median"] > each["baseline"]["median"] / 2
    ]
    for what in ("sign", "size"):
        if count := sum(pair[f"wrong_{what}"] for pair in pairs):
            faults.append(f"{count} of {len(pairs)} pairs of policies have the wrong {what}")
    return faults


def _summed(errors: np.ndarray) -> dict[str, float]:
    return {
        "median": float(np.median(errors)), "p95": float(np.percentile(errors, 95)), "worst": float(errors.max())
    }  # fmt: skip


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    """95 % of medians of blocks that are drawn again; None of too few."""
    if len(values) < FEWEST_DRAWN:
        return None
    drawn = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(np.median(values[drawn], axis=1), (0.025, 0.975))
    return float(low), float(high)
