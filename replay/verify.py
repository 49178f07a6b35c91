"""Speculative verify steps built from a decode trace: what a draft model of a given acceptance does to the pools."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numba import njit

from slotwise.policies.policy_random import mix
from slotwise.traces import Block, Trace

from .errors import BadOption

_ROWS = 25_000  # rows read at a time


class VerifySteps:
    """Reads a trace of one decode token a step as steps of `tokens` rows, of which a seeded draw accepts a prefix.

    The next step starts after the accepted prefix; rejected rows are the tokens that follow in the trace, which is
    optimistic: a real draft would have gone astray. Prefill steps stay as they are. A step never crosses a request or a
    phase, so the last one of each is shorter. Accepted = 1 + the leading successes of n - 1 draws (n: the step's rows);
    draw i = 0, 1, ... of step s succeeds iff mix(seed, s, i) < accept * 2^64.
    """

    def __init__(self, trace: Trace, tokens: int, accept: float, seed: int):
        self.trace, self.tokens, self.accept, self.seed = trace, tokens, accept, seed

    @property
    def n_steps(self) -> int:
        return len(self._plan[0])

    @cached_property
    def _plan(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Per built step: first row, rows, accepted rows."""
        columns = self.trace.rows("request", "step", "phase")
        starts = np.concatenate(([0], np.flatnonzero(np.diff(columns["step"])) + 1, [self.trace.n_tokens]))
        sizes, phases = np.diff(starts), columns["phase"][starts[:-1]]
        wide = np.flatnonzero((sizes > 1) & (phases == 1))
        if wide.size:
            raise BadOption(
                f"verify_tokens={self.tokens}: step {wide[0]} of {self.trace.name} has {sizes[wide[0]]} decode tokens; "
                "verify steps are built from a trace of one token a step"
            )
        limit = min(int(self.accept * 2**64), 2**64 - 1)
        steps = build_steps(
            starts, columns["request"], columns["phase"], self.tokens, np.uint64(limit), self.accept >= 1, self.seed
        )
        return steps[:, 0], steps[:, 1], steps[:, 2]

    def accepted(self, first_step: int, n_steps: int) -> np.ndarray:
        """Tokens that each of these steps yields."""
        return self._plan[2][first_step : first_step + n_steps]

    def blocks(self, *, predicted: bool = False, horizon: int = 1, n_steps: int | None = None) -> Iterator[Block]:
        """As `Trace.blocks`, with the built steps."""
        first, sizes, _ = self._plan
        total = len(first) if n_steps is None else min(n_steps, len(first))
        low = 0
        while low < total:
            high = max(low + 1, int(np.searchsorted(first[:total], first[low] + _ROWS)))
            yield self._block(low, high, first, sizes, f"predicted.h{horizon}" if predicted else None)
            low = high

    def _block(self, low: int, high: int, first: np.ndarray, sizes: np.ndarray, predicted: str | None) -> Block:
        start, stop = int(first[low]), int((first[low:high] + sizes[low:high]).max())
        starts = np.concatenate(([0], np.cumsum(sizes[low:high])))
        rows = np.repeat(first[low:high] - starts[:-1], sizes[low:high]) + np.arange(starts[-1]) - start
        columns = self.trace.store.rows(start, stop, ("request", "phase"))
        read = lambda kind: np.ascontiguousarray(self.trace.read(kind, start, stop)[:, rows])  # noqa: E731
        request, phase = columns["request"][rows], columns["phase"][rows]
        return Block(
            first_step=low, first_row=start, starts=starts, request=request[starts[:-1]], phase=phase[starts[:-1]],
            experts=read("experts"), predicted=read(predicted) if predicted else None, weights=None,
        )  # fmt: skip


@njit(cache=True)
def build_steps(starts, request, phase, tokens, limit, always, seed):
    """[steps, 3]: first row, rows, accepted. `starts` are the trace's own steps and the end."""
    out = np.empty((starts.size - 1, 3), np.int64)
    count = 0
    i = 0
    last = starts.size - 1
    while i < last:
        row = starts[i]
        if phase[row] == 0:
            size = starts[i + 1] - row
            out[count] = (row, size, size)
            i += 1
        else:
            size = 1
            while size < tokens and i + size < last:
                following = starts[i + size]
                if request[following] != request[row] or phase[following] != phase[row]:
                    break
                size += 1
            taken = 1
            while taken < size and (always or mix(seed, count, taken - 1) < limit):
                taken += 1
            out[count] = (row, size, taken)
            i += taken
        count += 1
    return out[:count]
