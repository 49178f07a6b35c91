"""Replays a trace through pools: block by block, through the very functions that a live caller uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.traces import Block, Trace, open_trace
from slotwise.traces.errors import warn_caller

from .crew import Crew
from .errors import ReplayWarning
from .future import access_clocks, future_of
from .lag import settled
from .lane import NO_CLOCKS, NO_FUTURE, NO_IDS, Lane, Piece
from .options import Options, check_workers, warn_idle
from .pricing import Pricer, Pricing
from .result import Result
from .tally import NAMES, STATE, Tally, named

_CELLS, _CELL_LAYERS = 256, 65536  # counter cells of one piece at most, and those of all its layers


def replay(trace: Trace | str | Path, policy: str = "lru", slots: Any = None, **options: Any) -> Result:
    """Replays one configuration.

    trace: a Trace, a path (foreign formats too) or "sample". slots: a count per pool, "25%", or a list with one of them
    for each layer; or `vram="8GiB"`. machine: also price it, on a `Machine` or the file of one; with that come the
    other keywords of `Pricing`.
    The other keywords are the fields of `Options`, with their defaults, `threads` (default: all cores) and `progress`,
    called with (steps done, steps in all, "").
    Raises BadTrace, BadPolicy or BadOption. The same call gives the same result, whatever the threads.
    """
    threads, progress = options.pop("threads", None), options.pop("progress", None)
    pricing = Pricing.taken_from(options)
    check_workers("threads", threads)
    warn_idle(options.get("predictor"), [options.get("width", 0)])
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    return run(
        opened, Options.of(policy=policy, slots=slots, **options), pricing=pricing, threads=threads, progress=progress
    )


def run(
    trace: Trace,
    options: Options,
    *,
    pricing: Pricing | None = None,
    threads: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Result:
    """Replays `options` (spelt out) on an open trace, and prices the replay where it is asked to."""
    began = time.perf_counter()
    options = settled(options, trace, pricing)
    source = options.source(trace)
    replayer = _Replayer(trace, source, options, pricing)
    with Crew(threads or os.cpu_count() or 1) as crew:
        for piece in replayer.pieces():
            replayer.advance(piece, crew)
            if progress:
                progress(piece.first_step + len(piece.starts) - 1, replayer.n_steps, "")
            del piece  # else its block stays while the next one is read
    result = replayer.result(time.perf_counter() - began)
    if result.price and options.width and pricing and pricing.bounds:
        alone = replace(pricing, bounds=False)
        others = ({"width": 0, "predictor": "none"}, {"predictor": "oracle"})
        return result.between(*(run(trace, options.but(**other), pricing=alone, threads=threads) for other in others))
    return result


class _Replayer:
    """The state of one run: pools, shadow pools, predictor and counts."""

    def __init__(self, trace: Trace, source: Any, options: Options, pricing: Pricing | None = None):
        self.trace, self.source, self.options = trace, source, options
        self.size = options.size(trace)
        width, polluting = options.width, options.pollution
        self.pricer = Pricer(pricing, options, trace) if pricing else None
        pool = options.pool(
            trace,
            self.size,
            record=options.plan_hash or bool(options.failures),
            look=width > 0,
            full=bool(options.failures),
            tell=polluting or pricing is not None,
        )
        lists = self._plain_lru(pool)
        self.lane = Lane(
            pool,
            width=width,
            horizon=options.horizon,
            hashed=options.plan_hash,
            lists=lists,
            failures=options.failures,
        )
        self.shadow = None
        if polluting:
            pool = options.pool(trace, self.size, width=0, record=False, look=False, tell=True)
            self.shadow = Lane(pool, width=0, horizon=1)
        self.policy = self.lane.pool.spec.policy
        self.predictor = options.predictor_of(trace)
        self.n_steps, self.window = options.steps_of(source), options.window_of(source)
        rows = options.rows_of(trace)
        self._warn(rows)
        self.tally = Tally(
            n_layers=trace.n_layers,
            n_windows=max(1, -(-self.n_steps // self.window)),
            row_bytes=np.array(rows or [0] * trace.n_layers, np.int64),
            miss=options.miss,
        )
        self.last: np.ndarray | None = None  # (phase, request, window) of the step before
        self.clock = 0

    def _plain_lru(self, pool) -> bool:
        """Whether the faster twin of the kernel covers this run."""
        o = self.options
        return pool.simple and o.policy == "lru" and not (o.pollution or o.plan_hash) and o.reset == "persistent"

    def _warn(self, rows) -> None:
        trace, options, size = self.trace, self.options, self.size
        if trace.sha256 in self.lane.pool.profile_hashes:
            text = f"{options.policy}: the profile was counted on this very trace, so it knows the answers"
            warn_caller(text, ReplayWarning)
        if size.pool_bytes is None and max(size.slots) == 0 and size.asked not in ("0", "0%"):
            text = f"{size.asked} is less than one row in each pool: 0 slots, so every demand misses"
            warn_caller(text, ReplayWarning)
        pin = self.lane.pool.spec.pin
        if pin and size.pool_bytes is None and pin.n > min(size.slots):
            text = f"{options.policy}: {pin.n} pins in {min(size.slots)} slots; those that do not fit are left out"
            warn_caller(text, ReplayWarning)
        if options.scope != "global":
            return
        short = size.slots[0] < trace.n_layers * trace.top_k
        if rows and size.capacity_bytes is not None:
            short = size.capacity_bytes < trace.top_k * sum(rows)
        if short:
            text = (
                f"the global pool ({size.asked}) is smaller than a token cycle, {trace.n_layers} x {trace.top_k} rows: "
                "what a token needs pushes out what the next one needs, and lru can fall to no hits at all"
            )
            warn_caller(text, ReplayWarning)

    def pieces(self) -> Iterator[Piece]:
        """The trace in order, cut where a piece would need too many counter cells."""
        predicted = self.predictor is not None and self.predictor.needs_predicted
        blocks = self.source.blocks(predicted=predicted, horizon=self.options.horizon, n_steps=self.options.steps)
        if not self.policy.needs_future:
            for block in blocks:
                yield from self._cut(block, NO_FUTURE)
                del block  # before the next one is read
            return
        kept = list(blocks)
        if not kept:
            return
        tables, first = future_of(kept, self.trace.n_experts, self.options.contract == "sequential")
        for lane in filter(None, (self.lane, self.shadow)):
            lane.know(first)
        for block, future in zip(kept, tables, strict=True):
            yield from self._cut(block, future)

    def _cut(self, block: Block, future: np.ndarray) -> Iterator[Piece]:
        def label(steps: np.ndarray) -> np.ndarray:
            return np.stack([block.phase[steps], block.request[steps], (block.first_step + steps) // self.window], 1)

        before = label(np.zeros(1, np.int64)) if self.last is None else self.last
        self.last = label(np.array([block.n_steps - 1]))
        changes = np.empty((2, block.n_steps), bool)
        for column, old, change in zip((block.phase, block.request), before[0, :2], changes, strict=True):
            change[0] = column[0] != old
            np.not_equal(column[1:], column[:-1], out=change[1:])
        turns = changes[0] | changes[1]  # steps that differ from the one before in phase, request or window
        turns[(-block.first_step) % self.window :: self.window] = True
        resets = np.zeros(block.n_steps, np.uint8)
        if self.options.reset == "request":
            self.options.check_requests(block)
            resets[:] = changes[1]
        clocks = NO_CLOCKS
        if getattr(self.policy, "clock", "step") == "access":
            clocks = access_clocks(block.experts, block.starts, self.trace.n_experts, self.clock)
            self.clock = int(clocks[-1, -1])
        ids = self.predictor.predict(block) if self.predictor else NO_IDS
        cell_of = np.zeros(block.n_steps + 1, np.int32)  # of the step before the block, then of each
        np.cumsum(turns, dtype=np.int32, out=cell_of[1:])
        most = min(_CELLS, max(1, _CELL_LAYERS // self.trace.n_layers))
        for low, high in pairwise([0, *np.flatnonzero(turns)[most - 1 :: most], block.n_steps]):
            if low < high:
                first = before if low == 0 else label(np.array([low - 1]))
                labels = np.vstack([first, label(low + np.flatnonzero(turns[low:high]))])
                yield Piece(
                    block=block, first_step=block.first_step + low, starts=block.starts[low : high + 1],
                    cells=cell_of[low : high + 1] - cell_of[low], labels=labels,
                    resets=resets[low:high], clocks=clocks[low:high], ids=ids, future=future,
                )  # fmt: skip

    def advance(self, piece: Piece, crew: Crew) -> None:
        """Replays one piece and counts it."""
        steps = len(piece.starts) - 1
        sizes = np.diff(piece.starts) if self.source is self.trace else self.source.accepted(piece.first_step, steps)
        tokens = np.bincount(piece.cells[1:], weights=sizes, minlength=len(piece.labels)).astype(np.int64)
        told, ahead, worse = NO_IDS, NO_IDS, None
        if self.pricer:
            told, ahead = self.pricer.told(piece.block, piece.ids)
        elif self.shadow:
            told = np.zeros(piece.block.experts.shape, np.uint8)
        counts = self.lane.advance(piece, crew, told, ahead)
        if self.shadow:
            there = np.zeros(piece.block.experts.shape, np.uint8)
            self.shadow.advance(piece, crew, there)
            worse = _pollution(told, there, piece)
        self.tally.add(counts, piece.labels, tokens, worse)
        if self.pricer:
            self.pricer.advance(piece, sizes)

    def result(self, seconds: float) -> Result:
        """Counts what is left in the pools and sums up."""
        if self.last is not None:
            self.tally.add(self.lane.finish(self.n_steps - 1), self.last, np.zeros(1, np.int64))
        trace, options, tally = self.trace, self.options, self.tally
        tally.finish()
        rows = options.rows_of(trace)
        hidden = (set() if options.pollution else {"pollution"}) | (set() if rows else {"bytes_loaded", "bytes_moved"})
        phases = {"all": [0, 1], "prefill": [0], "decode": [1]}[options.phase]
        state = [NAMES.index(name) for name in STATE]
        layers = tally.by_layer[phases].sum(0)
        layers[:, state] = tally.by_layer[:, :, state].sum(0)
        failed = sum(int(layers[:, NAMES.index(name)].sum()) for name in ("failed", "invalidated"))
        if options.failures and not failed:
            text = f"none of the {len(options.failures)} failures met a load: they are of another run"
            warn_caller(text, ReplayWarning)
        requests, each = tally.by_request()
        each, along = each[phases].sum(0), tally.along[phases].sum(0)
        tokens = tally.along[:, :, -1].sum(1).tolist()
        identity = {
            "trace": trace.name, "trace_sha256": trace.sha256, "model": trace.model, "n_layers": trace.n_layers,
            "n_experts": trace.n_experts, "top_k": trace.top_k, "n_tokens": sum(tokens), "n_steps": self.n_steps,
            "n_requests": len(requests), "n_tokens_counted": sum(tokens[p] for p in phases),
        }  # fmt: skip
        return Result(
            identity=identity,
            options=options.recorded(self.size),
            counters=named(layers.sum(0), hidden),
            by_layer=named(layers, hidden),
            by_phase={
                name: {"tokens": tokens[i], **named(tally.by_layer[i].sum(0), hidden)}
                for i, name in enumerate(("prefill", "decode"))
            },
            by_request={
                "request": requests,
                "tokens": each[:, -1].tolist(),
                **named(each, hidden),
            },
            along={
                "window_steps": self.window,
                "first_step": list(range(0, self.n_steps, self.window)) or [0],
                "tokens": along[:, -1].tolist(),
                **named(along, hidden),
            },
            token_cycle_bytes=trace.top_k * sum(rows) if rows else None,
            plan_sha256=self.lane.digest(),
            seconds=seconds,
            price=self.pricer.price() if self.pricer else None,
        )


def _pollution(here: np.ndarray, there: np.ndarray, piece: Piece) -> np.ndarray:
    """[cells, layers]: demands that missed here but hit in the shadow run without prefetch."""
    low, high = int(piece.starts[0]), int(piece.starts[-1])
    worse = ((here[:, low:high] > 1) & (there[:, low:high] == 1)).sum(2)
    out = np.zeros((len(piece.labels), worse.shape[0]), np.int64)
    np.add.at(out, np.repeat(piece.cells[1:], np.diff(piece.starts)), worse.T)
    return out
