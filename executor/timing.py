"""Where the seconds of a run go: spans of every tick, and what they sum up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

PARTS = ("both_s", "hot_alone_s", "cold_alone_s", "late_s", "policy_s", "merge_s", "rest_s", "between_s")
STRETCH_TICKS = 96  # of the ticks that are kept one by one, unless a single step has more
Span = tuple[float, float]


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
    hot: Sequence[Span]
    cold: Sequence[Span]
    late: Sequence[Span] = ()  # hot work waiting for copies that had not landed
    copies: Sequence[tuple[float, float, int]] = ()  # batches that landed since the tick before: began, ended, bytes

    @property
    def hot_s(self) -> float:
        return _length(self.hot)

    @property
    def cold_s(self) -> float:
        return _length(self.cold)

    @property
    def late_s(self) -> float:
        return _length(self.late)

    @property
    def parts(self) -> dict[str, float]:
        """The tick's seconds, each under one name: both chains at work, one of them, late copies, and the host."""
        first, last = self.began + self.policy_s, self.began + self.total_s - self.merge_s
        hot, cold, late = (
            [(max(a, first), min(b, last)) for a, b in spans] for spans in (self.hot, self.cold, self.late)
        )
        hot_s, cold_s, busy = _length(hot), _length(cold), _length([*hot, *cold])
        late_s = max(0.0, _length([*hot, *cold, *late]) - busy)  # waiting while a chain computes costs nothing
        return {
            "both_s": max(0.0, hot_s + cold_s - busy), "hot_alone_s": max(0.0, busy - cold_s),
            "cold_alone_s": max(0.0, busy - hot_s), "late_s": late_s, "policy_s": self.policy_s,
            "merge_s": self.merge_s, "rest_s": max(0.0, last - first - busy - late_s),
        }  # fmt: skip


def _length(spans: Sequence[Span]) -> float:
    """Seconds that at least one of the spans covers."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def summary(ticks: list[TickTimes], step_s: list[float], tokens: int) -> dict[str, Any]:
    """Plain numbers: tokens per second, step latency, seconds by cause, all of one run.

    `parts` add up to the run's seconds: what lies between ticks (norms, and what stands for attention) is one of them.
    """
    steps = np.array(step_s or [0.0])
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for tick in ticks:
        for name, value in tick.parts.items():
            parts[name] += value
    tick_s = sum(tick.total_s for tick in ticks)
    parts["between_s"] = max(0.0, sum(step_s) - tick_s) if ticks else 0.0
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
        "copies_s": sum(ended - began for tick in ticks for began, ended, _ in tick.copies),
        "policy_s": sum(tick.policy_s for tick in ticks),
        "wait_s": sum(tick.wait_s for tick in ticks),
        "late_s": sum(tick.late_s for tick in ticks),
        "merge_s": sum(tick.merge_s for tick in ticks),
        "tick_s": tick_s,
        "parts": parts,
    }


def stretch(ticks: list[TickTimes]) -> dict[str, list[dict[str, Any]]]:
    """Whole steps from the middle of a run, tick by tick, and the copies that met them: what a picture is drawn from.

    Seconds from the first of these ticks on; `at_s` is where something began.
    """
    if not ticks:
        return {"ticks": [], "copies": []}
    middle = ticks[len(ticks) // 2].step
    kept = [tick for tick in ticks if tick.step == middle]
    for step in (middle + 1, middle + 2):
        more = [tick for tick in ticks if tick.step == step]
        kept += more if len(kept) + len(more) <= STRETCH_TICKS else []
    start, end = kept[0].began, kept[-1].began + kept[-1].total_s
    batches = sorted(batch for tick in ticks for batch in tick.copies)
    return {
        "ticks": [
            {
                "step": tick.step, "layer": tick.layer, "hits": tick.hits, "misses": tick.misses, "loads": tick.loads,
                "at_s": tick.began - start, "total_s": tick.total_s, "policy_s": tick.policy_s,
                "merge_s": tick.merge_s,
                **{
                    name: [{"at_s": began - start, "seconds": ended - began} for began, ended in spans]
                    for name, spans in (("hot", tick.hot), ("cold", tick.cold), ("late", tick.late))
                },
            }
            for tick in kept
        ],
        "copies": [
            {"at_s": began - start, "seconds": ended - began, "bytes": n_bytes}
            for began, ended, n_bytes in batches
            if ended > start and began < end
        ],
    }  # fmt: skip


def overlap_efficiency(on: list[TickTimes], off: list[TickTimes]) -> float | None:
    """(t_serial - t) / (t_serial - max(hot, cold)) as a ratio of sums over the ticks of two runs of one plan.

    t_serial is the tick of the run without overlap; hot and cold are those of that run, where they do not disturb each
    other. None where nothing could have been gained.
    """
    pairs = [(a, b) for a, b in zip(on, off, strict=True) if b.hot and b.cold]
    gained = sum(b.total_s - a.total_s for a, b in pairs)
    possible = sum(b.total_s - max(b.hot_s, b.cold_s) for _, b in pairs)
    return gained / possible if possible > 0 else None
