"""Where the seconds of a run go: spans of every tick, and what they sum up to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class TickTimes(NamedTuple):
    """One tick: rows, then seconds; `hot` and `cold` are spans of work, as the threads or the device saw them."""

    step: int
    layer: int
    hits: int
    misses: int
    loads: int
    began: float
    policy_s: float
    wait_s: float  # for chains and copies, after everything was started
    merge_s: float
    total_s: float
    hot: tuple[float, float] | None
    cold: tuple[float, float] | None

    @property
    def hot_s(self) -> float:
        return self.hot[1] - self.hot[0] if self.hot else 0.0

    @property
    def cold_s(self) -> float:
        return self.cold[1] - self.cold[0] if self.cold else 0.0


def summary(ticks: list[TickTimes], step_s: list[float], tokens: int) -> dict[str, Any]:
    """Plain numbers: tokens per second, step latency, seconds by cause, all of one run."""
    steps = np.array(step_s or [0.0])
    return {
        "steps": len(step_s),
        "tokens": tokens,
        "seconds": float(sum(step_s)),
        "tokens_per_s": tokens / sum(step_s) if sum(step_s) else None,
        "step_p50_s": float(np.percentile(steps, 50)),
        "step_p95_s": float(np.percentile(steps, 95)),
        "step_p99_s": float(np.percentile(steps, 99)),
        "hot_s": sum(tick.hot_s for tick in ticks),
        "cold_s": sum(tick.cold_s for tick in ticks),
        "policy_s": sum(tick.policy_s for tick in ticks),
        "wait_s": sum(tick.wait_s for tick in ticks),
        "merge_s": sum(tick.merge_s for tick in ticks),
        "tick_s": sum(tick.total_s for tick in ticks),
    }


def overlap_efficiency(on: list[TickTimes], off: list[TickTimes]) -> float | None:
    """(t_serial - t) / (t_serial - max(hot, cold)) as a ratio of sums over the ticks of two runs of one plan.

    t_serial is the tick of the run without overlap; hot and cold are those of that run, where they do not disturb each
    other. None where nothing could have been gained.
    """
    pairs = [(a, b) for a, b in zip(on, off, strict=True) if b.hot and b.cold]
    gained = sum(b.total_s - a.total_s for a, b in pairs)
    possible = sum(b.total_s - max(b.hot_s, b.cold_s) for _, b in pairs)
    return gained / possible if possible > 0 else None
