"""Replays a trace through pools: block by block, layers in parallel, through the functions that a live caller uses."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.policies import parse_call, parse_policy
from slotwise.policies.bulk_lru import LruLists
from slotwise.policies.layout import COUNTERS
from slotwise.traces import Trace, make_predictor, open_trace

from .errors import BadOption, ReplayWarning
from .future import access_clocks, future_of
from .options import Options
from .result import Result
from .tally import NAMES, STATE, Tally, named

_CELLS = 256  # counter cells that one call may need; more are split
_NO_IDS = np.zeros((0, 0, 0), np.uint8)
_NO_FUTURE = np.zeros((0, 0, 0), np.int64)
_NO_CLOCKS = np.zeros((0, 0), np.int64)
_NO_LOG = np.zeros((0, 4), np.int32)


def replay(trace: Trace | str | Path, policy: str = "lru", slots: str | int | None = None, **options: Any) -> Result:
    """Replays one configuration.

    trace: a Trace, a path (foreign formats too) or "sample". slots: a count per pool, or "25%"; or `vram="8GiB"`.
    The other keywords are the fields of `Options`, with their defaults, and `threads` (default: all cores).
    Raises BadTrace, BadPolicy or BadOption. The same call gives the same result, whatever the threads.
    """
    threads = options.pop("threads", None)
    unknown = set(options) - set(Options.__dataclass_fields__)
    if unknown:
        raise BadOption(f"no option named {sorted(unknown)[0]!r}; known: {', '.join(Options.__dataclass_fields__)}")
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    return run(opened, Options(policy=policy, slots=slots, **options).spelt(), threads=threads)


def run(trace: Trace, options: Options, *, threads: int | None = None) -> Result:
    """Replays `options` (spelt out) on an open trace."""
    began = time.perf_counter()
    if options.verify_tokens > 1:
        from .verify import VerifySteps

        source: Any = VerifySteps(trace, options.verify_tokens, options.accept, options.seed)
    else:
        source = trace
    replayer = _Replayer(trace, source, options)
    with ThreadPoolExecutor(threads) if (threads or os.cpu_count() or 1) > 1 else nullcontext() as workers:
        for block, future in replayer.blocks():
            replayer.advance(block, future, workers)
    return replayer.result(time.perf_counter() - began)


class _Replayer:
    """The state of one run: pools, shadow pools, predictor, hashes, counts."""

    def __init__(self, trace: Trace, source: Any, options: Options):
        self.trace, self.source, self.options = trace, source, options
        self.size = options.size(trace)
        width = options.width
        bits = options.pollution
        self.pool = options.pool(trace, self.size, record=options.plan_hash, look=width > 0, full=bits)
        self.shadow = options.pool(trace, self.size, width=0, record=False, look=False, full=True) if bits else None
        self.policy = parse_policy(options.policy).policy
        self.lists = [LruLists(trace.n_experts, slots) for slots in self.size.slots] if self._plain_lru() else []
        if trace.sha256 in self.pool.profile_hashes:
            text = f"{options.policy}: the profile was counted on this very trace, so it knows the answers"
            warnings.warn(text, ReplayWarning, stacklevel=4)
        name, parameters = parse_call(options.predictor)
        self.predictor = None
        if width:
            self.predictor = make_predictor(name, parameters, trace, width, options.horizon, reset=options.reset)
        total = min(source.n_steps, options.steps if options.steps is not None else source.n_steps)
        self.n_steps = total
        self.window = options.window or max(1, -(-total // 100))
        rows = options.rows_of(trace)
        self.rows_known = rows is not None
        if options.scope == "global" and self._below_token_cycle(rows):
            text = (
                f"the global pool ({self.size.asked}) is smaller than a token cycle, {trace.n_layers} x {trace.top_k} "
                "rows: what a token needs pushes out what the next one needs, and lru can fall to no hits at all"
            )
            warnings.warn(text, ReplayWarning, stacklevel=4)
        self.tally = Tally(
            n_layers=trace.n_layers,
            n_windows=max(1, -(-total // self.window)),
            row_bytes=np.array(rows if rows else [0] * trace.n_layers, np.int64),
            miss=options.miss,
        )
        self.hashes = [hashlib.sha256() for _ in range(self.pool.n_pools)]
        self.last = (1, 0, 0)  # phase, request, window of the step before
        self.seen_steps = 0
        self.tokens = [0, 0]  # by phase; of verify steps, the accepted ones
        self.clock = 0

    def _below_token_cycle(self, rows) -> bool:
        if rows and self.size.capacity_bytes is not None:
            return self.size.capacity_bytes < self.trace.top_k * sum(rows)
        return self.size.slots[0] < self.trace.n_layers * self.trace.top_k

    def _plain_lru(self) -> bool:
        """Whether the faster twin of the kernel covers this run."""
        o = self.options
        return (
            o.policy == "lru" and not self.shadow and not o.plan_hash and self.pool.simple and o.reset == "persistent"
        )

    def blocks(self):
        """Blocks to replay, with their table of next demands where the policy needs the future."""
        predicted = self.predictor is not None and self.predictor.needs_predicted
        stream = self.source.blocks(predicted=predicted, horizon=self.options.horizon, n_steps=self.options.steps)
        if not self.policy.needs_future:
            yield from ((block, _NO_FUTURE) for block in stream)
            return
        blocks = list(stream)
        sequential = self.options.contract == "sequential"
        tables, first = future_of(blocks, self.trace.n_experts, sequential)
        for pools in filter(None, (self.pool, self.shadow)):
            for pool in range(pools.n_pools if blocks else 0):
                pools.buffer.field(pool, "next")[:] = first.ravel() if pools.n_pools == 1 else first[pool]
        yield from zip(blocks, tables, strict=True)

    def advance(self, block, future: np.ndarray, workers: ThreadPoolExecutor | None) -> None:
        """Replays one block, in pieces of at most so many counter cells."""
        steps = block.first_step + np.arange(block.n_steps)
        labels = np.stack([block.phase.astype(np.int64), block.request, steps // self.window], 1)
        before = np.vstack([self.last, labels[:-1]]) if self.seen_steps else np.vstack([labels[:1], labels[:-1]])
        resets = np.zeros(block.n_steps, np.uint8)
        if self.options.reset == "request":
            if (block.request < 0).any():
                step = block.first_step + int(np.argmax(block.request < 0))
                raise BadOption(f"reset request: step {step} mixes requests; use reset persistent, or split the trace")
            resets[:] = before[:, 1] != labels[:, 1]
        turns = np.flatnonzero((before != labels).any(1))
        cell_of = np.cumsum((before != labels).any(1))
        ids = self.predictor.predict(block) if self.predictor else _NO_IDS.astype(block.experts.dtype)
        clocks = _NO_CLOCKS
        if getattr(self.policy, "clock", "step") == "access":
            clocks = access_clocks(block.experts, block.starts, self.trace.n_experts, self.clock)
            self.clock = int(clocks[-1, -1])
        bits = [np.zeros(block.experts.shape, np.uint8) for _ in range(2 if self.shadow else 0)]
        cuts = [0, *turns[_CELLS - 1 :: _CELLS], block.n_steps]
        for low, high in pairwise(cuts):
            if low == high:
                continue
            cells = np.concatenate([[cell_of[low - 1] if low else 0], cell_of[low:high]])
            names = np.vstack([self.last if self.seen_steps else labels[0], labels[low:high]])
            first = cells[0]
            _, where = np.unique(cells, return_index=True)
            counts = np.zeros((int(cells[-1] - first) + 1, self.trace.n_layers, len(COUNTERS)), np.int64)
            self._call(
                self.pool, workers, counts, block.first_step + low, block, block.starts[low : high + 1], cells - first,
                resets[low:high], ids, self.options.width, clocks[low:high], future, bits[:1], self.options.plan_hash,
            )  # fmt: skip
            polluted = None
            if self.shadow:
                unused = np.zeros_like(counts)
                self._call(
                    self.shadow, workers, unused, block.first_step + low, block, block.starts[low : high + 1], cells -
                    first, resets[low:high], _NO_IDS.astype(ids.dtype), 0, clocks[low:high], future, bits[1:], False,
                )  # fmt: skip
                polluted = _pollution(bits, block.starts[low : high + 1], cells - first, len(counts))
            self.tally.add(counts, names[where], polluted)
            self.last = tuple(labels[high - 1])
            self.seen_steps = block.first_step + high
        yields = np.diff(block.starts)
        if self.source is not self.trace:
            yields = self.source.accepted(block.first_step, block.n_steps)
        for phase in (0, 1):
            self.tokens[phase] += int(yields[block.phase == phase].sum())

    def _call(
        self, pools, workers, counts, first_step, block, starts, cells, resets, ids, width, clocks, future, bits, hashed
    ):
        recorded = ids.shape[2]
        block_of = None if self.lists else pools.kernel.replay_block
        flags = bits[0] if bits else _NO_IDS
        size = int(starts[-1] - starts[0]) * (2 * block.experts.shape[2] + 2 * width)

        def one(pool: int) -> None:
            scale = self.trace.n_layers if pools.n_pools == 1 else 1
            log = np.zeros((size * scale + 2 * pools.buffer.n_keys + 8, 4), np.int32) if hashed else _NO_LOG
            written = block_of(
                pools.buffer.address, pool, first_step, block.n_rows, starts, cells, resets, block.experts, ids,
                recorded, min(width, recorded), self.options.horizon, clocks, future, counts, flags, log,
            )  # fmt: skip
            if hashed:
                self.hashes[pool].update(log[:written].astype("<i4", copy=False).tobytes())

        def plain(layer: int) -> None:
            self.lists[layer].replay(layer, first_step, starts, cells, block.experts, counts)

        call = plain if self.lists else one
        list((workers.map if workers and pools.n_pools > 1 else map)(call, range(pools.n_pools)))

    def result(self, seconds: float) -> Result:
        """Counts what is left in the pools and sums up."""
        if self.seen_steps:
            counts = np.zeros((1, self.trace.n_layers, len(COUNTERS)), np.int64)
            for pool in range(self.pool.n_pools):
                if self.lists:
                    self.lists[pool].finish(pool, counts)
                else:
                    self.pool.kernel.finish(self.pool.buffer.address, pool, self.seen_steps - 1, 0, counts)
            self.tally.add(counts, np.array([self.last]))
        hidden = (set() if self.options.pollution else {"pollution"}) | (
            set() if self.rows_known else {"bytes_loaded", "bytes_moved"}
        )
        phases = {"all": [0, 1], "prefill": [0], "decode": [1]}[self.options.phase]
        state = [NAMES.index(name) for name in STATE]
        layers = self.tally.by_layer[phases].sum(0)
        layers[:, state] = self.tally.by_layer[:, :, state].sum(0)
        requests = sorted(self.tally.by_request)
        each = np.array([self.tally.by_request[r][phases].sum(0) for r in requests]).reshape(len(requests), len(NAMES))
        windows = self.tally.along[phases].sum(0)
        firsts = list(range(0, self.n_steps, self.window)) or [0]
        trace, rows = self.trace, self.options.rows_of(self.trace)
        identity = {
            "trace": trace.name, "trace_sha256": trace.sha256, "model": trace.model, "n_layers": trace.n_layers,
            "n_experts": trace.n_experts, "top_k": trace.top_k, "n_tokens": sum(self.tokens), "n_steps": self.n_steps,
            "n_requests": len(requests), "n_tokens_counted": sum(self.tokens[p] for p in phases),
        }  # fmt: skip
        digest = None
        if self.options.plan_hash:
            digest = hashlib.sha256(b"".join(h.digest() for h in self.hashes)).hexdigest()
        return Result(
            identity=identity,
            options=self.options.recorded(self.size),
            counters=named(layers.sum(0), hidden),
            by_layer=named(layers, hidden),
            by_phase={
                name: named(self.tally.by_layer[i].sum(0), hidden) for i, name in enumerate(("prefill", "decode"))
            },
            by_request={"request": requests, **named(each, hidden)},
            along={"window_steps": self.window, "first_step": firsts, **named(windows, hidden)},
            token_cycle_bytes=trace.top_k * sum(rows) if rows else None,
            plan_sha256=digest,
            seconds=seconds,
        )


def _pollution(bits: list[np.ndarray], starts: np.ndarray, cells: np.ndarray, n_cells: int) -> np.ndarray:
    """[n_cells, n_layers]: demands that missed here but hit in the shadow run without prefetch."""
    low, high = int(starts[0]), int(starts[-1])
    worse = ((bits[0][:, low:high] == 2) & (bits[1][:, low:high] == 1)).sum(2)
    out = np.zeros((n_cells, worse.shape[0]), np.int64)
    np.add.at(out, np.repeat(cells[1:], np.diff(starts)), worse.T)
    return out
