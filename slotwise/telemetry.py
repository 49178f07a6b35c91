"""What a run says of itself while it works: speed so far, hits, loads, drops by reason, what came late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.executor.executor import Executor

EVERY_S = 0.5  # the counters of 24 to 60 pools take 0.5 to 1.1 ms to read, between steps
DROPS = {"dropped_guard": "guard", "dropped_no_victim": "no victim", "dropped_throttle": "throttle"}
REFUSED = {"failed_prediction": "copy refused"}  # told where it happened


class Telemetry:
    """Calls `say(steps done, text)` after a step, but by the clock: never twice in half a second, save at the end."""

    def __init__(self, executor: Executor, n_steps: int, say: Callable[[int, str], None]):
        self._executor, self._n_steps, self._say = executor, n_steps, say
        self._due = 0.0

    def __call__(self, done: int, tokens: int, seconds: float) -> None:
        """After a step: steps, tokens and seconds of the run so far. Costs a look at the clock unless it is due."""
        now = time.monotonic()
        if now >= self._due or done == self._n_steps:
            self._due = now + EVERY_S
            self._say(done, line(self._executor.pool.counters, self._executor.dispatcher.diverted, tokens, seconds))


def line(counters: Mapping[str, int], diverted: int, tokens: int, seconds: float) -> str:
    """One line for a person: `85.3 tokens/s, hit 62.1 %, 1,234 loads, dropped: guard 12, no victim 3; late 4, ...`."""
    rate = f"{tokens / seconds:,.1f}" if seconds else "–"
    hits = f"{100 * counters['hits'] / counters['demands']:.1f} %" if counters["demands"] else "–"
    loads = counters["loads_demand"] + counters["loads_speculative"] + counters["loads_initial"]
    return f"{rate} tokens/s, hit {hits}, {loads:,} loads, {drops(counters)}; {late(counters, diverted)}"


def drops(counters: Mapping[str, int]) -> str:
    """Every reason for which predictions were refused a slot, with its count; no prediction, no drop."""
    if not counters["predictions"]:
        return "no predictions, so none dropped"
    told = DROPS | (REFUSED if counters["failed_prediction"] else {})
    return "dropped: " + ", ".join(f"{word} {counters[name]:,}" for name, word in told.items())


def late(counters: Mapping[str, int], diverted: int) -> str:
    """Demands that met a row in flight, and rows that the other chain computed because a copy was late or failed."""
    return f"late {counters['late']:,}, diverted {diverted:,}"
