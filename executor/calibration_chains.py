"""What both chains take for rows that no cache holds, how late a sleeping cold chain is, and what all do to each other.

Times are spans that the device and the worker tell of themselves: of the hot chain from the start of its first kernel
to the end of its last, of the cold one from the return of `submit`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain as joined
from typing import Any

import numpy as np

from .backend import Copy, Rows
from .executor import Executor
from .stopwatch import FLOOR, Value, rate_of, settled, usual

GAPS = (1e-4, 1e-3, 1e-2)
LEAST, MOST = 3, 30  # rounds over all cells of the sheets
BUSY_ROWS = 8  # of one job, where chains and link work at the same time
UNEVEN = 4  # tokens of one row among rows of one
TURNS = 10  # of those that work alone and together


class Bench:
    """Rows of an executor's slots and store, one after the other, and jobs of both chains over them."""

    def __init__(self, executor: Executor, random: np.random.Generator):
        self.executor, self.backend, self.chain = executor, executor.backend, executor.chain
        store, slots = executor.store, executor.slots
        self.layout = store.layouts[0]
        self.layer = self.chain.layer(self.layout)
        stored = len(store.memory)
        self._host = random.permutation(np.array(list(joined(*store.addresses[:stored])), np.int64))
        pools = executor.pool.physical_slots
        places = [slots.address(layer, slot) for layer, count in enumerate(pools) for slot in range(count)]
        self._device = random.permutation(np.array(places, np.int64))
        self._at = {"hot": 0, "cold": 0}
        values = random.normal(0, 1, (executor.max_tokens, self.layout.hidden)).astype(np.float32)
        self._on_host, self._x = values, self.backend.upload(values)
        self._out = np.empty((executor.max_tokens * executor.top_k, self.layout.hidden), np.float32)

    def rows(self, chain: str, tokens: int, rows: int, pairs: int) -> Rows:
        """The next so many rows of a chain, each for `pairs` of the tokens. What was read last comes last again."""
        pool = self._device if chain == "hot" else self._host
        picked = np.take(pool, np.arange(self._at[chain], self._at[chain] + rows), mode="wrap")
        self._at[chain] = (self._at[chain] + rows) % len(pool)
        each = (np.arange(rows)[:, None] * pairs + np.arange(pairs)) % tokens
        offsets = np.arange(0, rows * pairs + 1, pairs, dtype=np.int64)
        return Rows(picked, offsets, each.ravel().astype(np.int64), np.arange(rows * pairs, dtype=np.int64))

    def uneven(self, chain: str, counts: Sequence[int]) -> Rows:
        """The next rows of a chain, each for so many tokens."""
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        tokens = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        return Rows(self.rows(chain, 1, len(counts), 1).rows, offsets, tokens, np.arange(len(tokens), dtype=np.int64))

    def hot(self, tokens: int, rows: int, pairs: int) -> float:
        """Seconds of one job of the hot chain."""
        return self.hot_on(tokens, self.rows("hot", tokens, rows, pairs))

    def hot_on(self, tokens: int, work: Rows) -> float:
        """The same on given rows."""
        n = max(tokens, -(-len(work.places) // self.executor.top_k))  # room for every output
        tick = self.backend.begin(0, self._x[:n], self.executor.top_k)
        self.backend.hot(tick, work)
        self.backend.settle(tick)
        ((began, ended),) = self.backend.hot_spans(tick)
        return ended - began

    def submit(self, tokens: int, rows: int, pairs: int) -> int:
        """Starts one job of the cold chain."""
        return self.start(tokens, self.rows("cold", tokens, rows, pairs))

    def start(self, tokens: int, work: Rows) -> int:
        """The same on given rows."""
        return self.chain.submit(
            self.layer, work.rows, work.offsets, work.tokens, self._on_host[:tokens], self._out, work.places
        )

    def cold(self, tokens: int, rows: int, pairs: int) -> float:
        """Seconds of one job of the cold chain, right after another: its threads are awake."""
        return self.cold_on(tokens, self.rows("cold", tokens, rows, pairs))

    def cold_on(self, tokens: int, work: Rows) -> float:
        """The same on given rows."""
        self.chain.wait(self.submit(1, 1, 1))
        job = self.start(tokens, work)
        return self.waited(job, time.monotonic())

    def cold_after_a_gap(self, tokens: int, rows: int, pairs: int) -> float:
        """The same, whatever was before."""
        job = self.submit(tokens, rows, pairs)
        return self.waited(job, time.monotonic())

    def waited(self, job: int, submitted: float) -> float:
        """Seconds from then until a job of the cold chain is done, once it is."""
        self.chain.wait(job)
        return max(FLOOR, self.chain.times(job)[1] - submitted)

    def copies(self, sources: np.ndarray) -> list[Copy]:
        """Of these rows of the store into the next slots."""
        targets = self.rows("hot", 1, len(sources), 1).rows.tolist()
        return [Copy(*pair, self.layout.row_bytes) for pair in zip(sources.tolist(), targets, strict=True)]


def sheets(
    executor: Executor, random: np.random.Generator, *, tokens: Sequence[int], pairs: Sequence[int],
    many: Sequence[int], budget_s: float,
) -> tuple[list[dict[str, Any]], dict[str, Value]]:  # fmt: skip
    """The sheets of both chains, and the figures that stand for them where rows have another size.

    many: tokens of steps that use most experts, and each of them often.
    All cells take turns in a random order, so that a machine that slows down does so for all of them.
    """
    bench = Bench(executor, random)
    n_experts, top_k = executor.store.n_experts, executor.top_k
    axes = {n: (_knots(min(n * top_k, n_experts)), [p for p in pairs if p <= n]) for n in tokens}
    for n in many:
        each = max(1, n * top_k // n_experts)
        axes[n] = [n_experts // 4, n_experts], sorted({max(1, each // 8), each})
    cells = [(c, n, r, p) for c in ("hot", "cold") for n, (rows, each) in axes.items() for r in rows for p in each]
    found: dict[tuple[str, int, int, int], list[float]] = {cell: [] for cell in cells}
    jobs: dict[str, Callable[[int, int, int], float]] = {"hot": bench.hot, "cold": bench.cold}
    until = time.monotonic() + budget_s
    for turn in range(1 + MOST):
        for i in random.permutation(len(cells)):
            chain, *cell = cells[i]
            seconds = jobs[chain](*cell)
            bench.backend.copy_spans()  # of none, but a device's clock is held against the host's anew
            if turn:  # the first warms up
                found[cells[i]].append(seconds)
        if turn >= LEAST and time.monotonic() > until:
            break
    values = {cell: settled(seconds).checked() for cell, seconds in found.items()}
    grids = [
        {
            "chain": chain, "row_bytes": bench.layout.row_bytes, "tokens": n, "rows": rows, "pairs_per_row": each,
            "threads": executor.chain.threads if chain == "cold" else None,
            "seconds": [[values[chain, n, r, p].value for p in each] for r in rows],
            "spread_s": [[values[chain, n, r, p].spread for p in each] for r in rows],
        }
        for chain in ("hot", "cold") for n, (rows, each) in axes.items()
    ]  # fmt: skip
    return grids, _rates(values, axes, bench.layout.row_bytes)


def _rates(values: dict[Any, Value], axes: dict[int, tuple[list[int], list[int]]], row_bytes: int) -> dict[str, Value]:
    """Base and rates of each chain: reading by the slope over rows of one token, computing by the most tokens a row."""
    found = {}
    rows, most = axes[min(axes)][0], max(axes)
    many, each = axes[most][0][-1], axes[most][1][-1]
    for chain, memory in (("hot", "device"), ("cold", "host")):
        one, last = values[chain, min(axes), 1, 1], values[chain, min(axes), rows[-1], 1]
        slope = max(FLOOR, (last.value - one.value) / (rows[-1] - 1))
        wide = values[chain, most, many, each]
        base = one.less(Value(slope, 0.0))
        found[f"{chain}_base_s"] = base
        for name, n_bytes, seconds, of in (
            ("read", row_bytes, slope, last),
            ("compute", many * each * row_bytes, max(FLOOR, wide.value - base.value), wide),
        ):
            found[f"{memory}_{name}_bytes_per_s"] = rate_of(n_bytes, seconds, of.spread / of.value)
    return found


def by_most(executor: Executor, random: np.random.Generator, *, times: int) -> dict[str, Value]:
    """How far from what rows' mean tokens take to what they would take if all had the most a chain's time goes.

    One row of a job has UNEVEN tokens and the others one; jobs whose rows have one, two or UNEVEN each take turns with
    it.
    """
    bench, found = Bench(executor, random), {}
    rows = min(BUSY_ROWS, executor.top_k)
    mean = (rows - 1 + UNEVEN) / rows
    for chain, run in (("hot", bench.hot_on), ("cold", bench.cold_on)):
        taken: dict[Any, list[float]] = {case: [] for case in (1, 2, UNEVEN, None)}
        for turn in range(times + 1):
            for case, seconds in taken.items():
                counts = [UNEVEN] + [1] * (rows - 1) if case is None else [case] * rows
                took = run(UNEVEN, bench.uneven(chain, counts))
                if turn:
                    seconds.append(took)
        one, two, most, mixed = (usual(seconds) for seconds in taken.values())
        even = float(np.interp(mean, (1, 2, UNEVEN), (one.value, two.value, most.value)))
        span = most.value - even
        share = min(1.0, max(0.0, (mixed.value - even) / span)) if span > 0 else 0.0
        spread = math.hypot(mixed.spread, most.spread) / span if span > 0 else 0.0
        found[f"{chain}_by_most"] = Value(share, spread).checked()
    return found


def wake(executor: Executor, random: np.random.Generator, *, times: int) -> list[dict[str, float]]:
    """By how much later a job is done after each gap than one that came at once."""
    bench, taken = Bench(executor, random), {gap: [] for gap in (0.0, *GAPS)}
    for _ in range(times):
        for gap, seconds in taken.items():
            bench.chain.wait(bench.submit(1, 1, 1))
            until = time.monotonic() + gap
            while (left := until - time.monotonic()) > 0:
                if left > 1e-3:
                    time.sleep(left - 5e-4)
            seconds.append(bench.cold_after_a_gap(1, 1, 1))
    awake = settled(taken.pop(0.0))
    late = {gap: settled(seconds) for gap, seconds in taken.items()}
    return [
        {
            "gap_s": gap, "seconds": max(0.0, value.value - awake.value),
            "spread_s": min(value.spread, 10 * max(value.value - awake.value, 1e-6)),
        }
        for gap, value in late.items()
    ]  # fmt: skip


def beside(
    executor: Executor, random: np.random.Generator, *, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, Value]]:
    """Shares of their own speeds that both chains keep beside the link, it beside the cold one, and they beside each
    other.

    What works alone and what works together takes turns, so that a machine that slows down does so for all of them.
    """
    bench = Bench(executor, random)
    together = [{"cold"}, {"link"}, {"hot"}, {"cold", "link"}, {"hot", "link"}, {"hot", "cold"}]
    taken: list[dict[str, list[float]]] = [{name: [] for name in names} for names in together]
    for _ in range(TURNS):
        for i in random.permutation(len(together)):
            _pace(bench, taken[i], seconds / TURNS)
    paces = [{name: settled(each) for name, each in times.items()} for times in taken]
    alone = {name: pace for paced in paces[:3] for name, pace in paced.items()}

    def share(name: str, among: dict[str, Value]) -> Value:
        value = min(1.0, max(0.01, alone[name].value / among[name].value))
        return Value(value, value * max(part.spread / part.value for part in (alone[name], among[name]))).checked()

    cold, hot, both = paces[3:]
    shares = {
        "cold_with_link": share("cold", cold), "link_with_cold": share("link", cold), "hot_with_link": share("hot", hot)
    }  # fmt: skip
    return (
        [{"threads": executor.chain.threads, **{name: each._asdict() for name, each in shares.items()}}],
        {"hot_with_cold": share("hot", both), "cold_with_hot": share("cold", both)},
    )


def _pace(bench: Bench, taken: dict[str, list[float]], seconds: float) -> None:
    """Adds seconds of a job of the chains, and of a byte of the link, while all of these have always more to do."""
    backend, chain, top_k = bench.backend, bench.chain, bench.executor.top_k
    rows = min(BUSY_ROWS, top_k)
    now: dict[str, list[float]] = {name: [] for name in taken}
    cold: deque[int] = deque()
    link: deque[Any] = deque()
    batches = _batches(bench, rows)
    backend.copy_spans()
    until = time.monotonic() + seconds
    while time.monotonic() < until or any(len(each) <= LEAST for each in now.values()):
        while "link" in now and len(link) < 4:
            link.append(bench.executor.transfers.start(next(batches)))
        while "cold" in now and len(cold) < 2:
            cold.append(bench.submit(1, rows, 1))
        if "hot" in now:
            now["hot"].append(bench.hot(1, rows, 1))
        while link and backend.landed(link[0]):
            link.popleft()
        while cold and chain.done(cold[0]):
            job = cold.popleft()
            chain.wait(job)
            began, ended = chain.times(job)
            now["cold"].append(ended - began)
        if "link" in now:
            now["link"] += [(ended - began) / n_bytes for began, ended, n_bytes in backend.copy_spans()]
        if "hot" not in now:
            time.sleep(2e-5)  # neither chain should find this thread in its way
    for job in cold:
        chain.wait(job)
    backend.drain()
    backend.copy_spans()
    for name, each in now.items():
        taken[name] += each[1:]  # the first began before the others


def _batches(bench: Bench, rows: int) -> Iterator[list[Copy]]:
    """Rows of the store into slots, batch after batch."""
    while True:
        yield bench.copies(bench.rows("cold", 1, rows, 1).rows)


def _knots(most: int) -> list[int]:
    """Every number to 8, ever fewer of those beyond, and the most."""
    return sorted({*(i << j for j in range(most.bit_length()) for i in (*range(1, 5), 6) if i << j <= most),
                   *range(1, min(most, 8) + 1), most})  # fmt: skip
