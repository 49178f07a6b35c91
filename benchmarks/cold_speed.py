"""How fast the cold chain computes missed experts, against what the same threads can read from the same memory.

Rows of 2048 x 768 in a store of at least four L3 caches, so that every row comes from memory. A chain may take
15 us + m * row_bytes / (0.85 * B_host) for m rows; B_host is measured between the chains, over as many bytes. `of read`
is the chain's bytes per second as a share of that ceiling; more than the ceiling would be a measuring error, and ends
the run. That share and the factors of r tokens on a row are ratios of the fastest calls; times are medians.

    python benchmarks/cold_speed.py --keep
    python benchmarks/cold_speed.py --dtypes Q4_K,Q6_K --threads 7
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

import numpy as np
from peers import bench

from slotwise.executor.ceilings import l3_bytes
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.cores import physical_cores, usual_threads
from slotwise.executor.dtypes import DTYPES, encode

HIDDEN, INNER = 2048, 768
CALL_S = 15e-6  # what submitting, waking and joining may cost
SHARE = 0.85  # of the ceiling, that the chain should reach


class Store:
    """Rows of one dtype in one allocation, copied from a few encoded ones by the threads that will read them."""

    def __init__(self, chain: ColdChain, dtype: str, n_bytes: int):
        layout = RowLayout(HIDDEN, INNER, (dtype, dtype, dtype))
        draw = np.random.default_rng(1)
        shape = (3 * INNER * HIDDEN // DTYPES[dtype].block, DTYPES[dtype].block)
        one = encode(dtype, draw.normal(0, 0.03, shape)).ravel()
        self.layer = chain.layer(layout)
        self.row_bytes = layout.row_bytes
        self.n_rows = max(16, n_bytes // self.row_bytes)
        self.memory = np.empty(self.n_rows * self.row_bytes, np.uint8)
        for at in range(self.n_rows):
            chain.copy(self.memory[at * self.row_bytes : (at + 1) * self.row_bytes], one)
        self.next = 0

    def take(self, m: int) -> tuple[int, int]:
        """The next m rows that lie together: first row and its address. By the next round no cache holds them."""
        first = self.next if self.next + m <= self.n_rows else 0
        self.next = first + m
        return first, self.memory.ctypes.data + first * self.row_bytes


def chain_call(chain: ColdChain, store: Store, m: int, r: int) -> Callable[[], float]:
    """One job of m rows with r tokens each, timed from before submit to after wait, s."""
    x = np.random.default_rng(2).normal(0, 1, (r, HIDDEN)).astype(np.float32)
    out = np.empty((m * r, HIDDEN), np.float32)
    offsets = np.arange(0, m * r + 1, r, dtype=np.int64)
    tokens = np.tile(np.arange(r, dtype=np.int64), m)
    steps = np.arange(m, dtype=np.int64) * store.row_bytes

    def call() -> float:
        rows = steps + store.take(m)[1]
        began = time.perf_counter()
        chain.wait(chain.submit(store.layer, rows, offsets, tokens, x, out))
        return time.perf_counter() - began

    return call


def read_call(chain: ColdChain, store: Store, m: int) -> Callable[[], float]:
    """The same rows, only read."""

    def call() -> float:
        first, _ = store.take(m)
        memory = store.memory[first * store.row_bytes : (first + m) * store.row_bytes // 8 * 8]
        began = time.perf_counter()
        chain.read(memory)
        return time.perf_counter() - began

    return call


def measured(calls: dict[str, Callable[[], float]], runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median and least seconds of each call; they take turns, after a warm-up each."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs + 1):
        for name, call in calls.items():
            seconds = call()
            if turn:
                taken[name].append(seconds)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return medians, {name: min(seconds) for name, seconds in taken.items()}


def rows(asked: Namespace) -> Iterator[dict]:
    threads = asked.threads or usual_threads()
    cores = physical_cores()[-threads:] if asked.pin and threads <= len(physical_cores()) else None
    runs, most = (3, 2) if asked.tiny else (asked.runs, 8)
    with ColdChain(threads, cores=cores, variant=asked.variant or None, activations=asked.activations) as chain:
        for dtype in asked.dtypes.split(","):
            store = Store(chain, dtype, (16 << 20) if asked.tiny else 4 * l3_bytes())
            for m in range(1, most + 1):
                calls = {f"r={r}": chain_call(chain, store, m, r) for r in ((1, 2, 8) if m in (1, 8) else (1,))}
                calls["read"] = read_call(chain, store, m)
                taken, least = measured(calls, runs)
                n_bytes = m * store.row_bytes
                allowed = CALL_S + taken["read"] / SHARE
                row = {
                    "dtype": dtype,
                    "variant": chain.variant,
                    "threads": threads,
                    "activations": asked.activations,
                    "m": m,
                    "row_bytes": store.row_bytes,
                    "chain, us": round(1e6 * taken["r=1"], 1),
                    "read, us": round(1e6 * taken["read"], 1),
                    "read, GB/s": round(n_bytes / taken["read"] / 1e9, 2),
                    "of read": round(least["read"] / least["r=1"], 3),
                    "allowed, us": round(1e6 * allowed, 1),
                    "within": taken["r=1"] <= allowed,
                }
                if "r=8" in taken:
                    row["r=2 factor"] = round(least["r=2"] / least["r=1"], 2)
                    row["r=8 factor"] = round(least["r=8"] / least["r=1"], 2)
                yield row
                if not asked.tiny and row["of read"] > 1.05:  # noise may cross it by a little
                    raise SystemExit(f"{dtype}, m={m}: the chain beat its own ceiling, so the measurement is wrong")


if __name__ == "__main__":
    bench(
        "cold-speed",
        __doc__,
        rows,
        dtypes=",".join(DTYPES),
        threads=0,
        variant="",
        activations="float32",
        runs=31,
        pin={"action": "store_true"},
    )
