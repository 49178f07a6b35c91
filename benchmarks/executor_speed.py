"""What a tick of the executor costs beyond its chains, and what overlap wins, by (hits, misses) and tokens of a step.

    python benchmarks/executor_speed.py --backend cupy [--hidden 2048] [--inner 768] [--dtype bf16] [--keep]

Every tick demands 8 experts of 128, of which so many are pinned in slots and the rest computed on the CPU (no load: the
pool is full of pins). One layer after another, each fed by the one before. `t` is the host's time of a tick with event
timing, from its ids' arrival to its output; hot and cold are spans of device and worker. Serial and overlapped runs
take turns. `overhead` = t - max(hot, cold) of overlapped ticks; `where` are medians of its parts, microseconds.
`efficiency` is (t_serial - t) / (t_serial - max(hot, cold)) as a ratio of sums. `untimed` is the time of a layer with
no timing at all.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
from peers import bench

from slotwise.executor.backend import make_backend
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.executor.timing import overlap_efficiency
from slotwise.policies import Pool

EXPERTS, TOP_K = 128, 8
MIXES = ((8, 0), (4, 4), (6, 2), (2, 6), (0, 8))
TOKENS = (1, 4)


def routing(hits: int, layers: int, steps: int, tokens: int) -> np.ndarray:
    """[steps, layers, tokens, 8] ids: `hits` pinned ones (0 to 7), the rest others, all tokens of a step the same."""
    draw = np.random.default_rng(1)
    ids = np.empty((steps, layers, tokens, TOP_K), np.uint8)
    for step in range(steps):
        for layer in range(layers):
            ids[step, layer, :, :hits] = np.arange(hits)
            ids[step, layer, :, hits:] = 8 + draw.permutation(EXPERTS - 8)[: TOP_K - hits]
    return ids


def pass_through(executor: Executor, ids: np.ndarray) -> float:
    """Seconds of all steps."""
    steps, layers, tokens, _ = ids.shape
    backend = executor.backend
    weights = backend.upload(np.full((tokens, TOP_K), 1 / TOP_K, np.float32))
    there = [[backend.upload(ids[step, layer]) for layer in range(layers)] for step in range(steps)]
    x = backend.upload(
        np.random.default_rng(2).normal(0, 1, (tokens, executor.store.layouts[0].hidden)).astype(np.float32)
    )
    backend.drain()
    began = time.perf_counter()
    with backend.queue():
        for step in range(steps):
            for layer in range(layers):
                x = backend.norm(x, executor.forward(layer, x, there[step][layer], weights))
    backend.drain()
    return time.perf_counter() - began


def measure(asked, store: HostStore, chain: ColdChain, hits: int, tokens: int, profile: Path) -> dict:
    layers = store.n_layers
    ids = routing(hits, layers, asked.steps, tokens)
    ticks: dict[bool, list] = {True: [], False: []}
    untimed: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(asked.rounds):
        for overlap in (True, False):
            for timing in (True, False):
                pool = Pool(
                    f"lru+pin(profile={profile}, n={hits})" if hits else "lru", n_layers=layers, n_experts=EXPERTS,
                    slots=hits, full=True,
                )  # fmt: skip
                backend = make_backend(asked.backend)
                with Executor(
                    pool, store, backend, chain, top_k=TOP_K, overlap=overlap, headroom_bytes=0, timing=timing,
                    max_tokens=64,
                ) as executor:  # fmt: skip
                    pass_through(executor, ids[:2])
                    if executor.ticks is not None:
                        executor.ticks.clear()
                    seconds = pass_through(executor, ids)
                    if timing:
                        ticks[overlap] += executor.ticks or []
                    else:
                        untimed[overlap].append(1e6 * seconds / (asked.steps * layers))
    return summary(hits, tokens, ticks, untimed)


def summary(hits: int, tokens: int, ticks: dict, untimed: dict) -> dict:
    on, off = ticks[True], ticks[False]

    def middle(values) -> float:
        return round(1e6 * float(np.median(list(values))), 1)

    over = [1e6 * (tick.total_s - max(tick.hot_s, tick.cold_s)) for tick in on]
    return {
        "hits": hits, "misses": TOP_K - hits, "tokens": tokens,
        "t, us": middle(t.total_s for t in on), "serial, us": middle(t.total_s for t in off),
        "hot, us": middle(t.hot_s for t in off), "cold, us": middle(t.cold_s for t in off),
        "overhead p50, us": round(float(np.percentile(over, 50)), 1),
        "overhead p99, us": round(float(np.percentile(over, 99)), 1),
        "where": {
            "policy": middle(t.policy_s for t in on), "wait": middle(t.wait_s for t in on),
            "merge": middle(t.merge_s for t in on),
            "start": middle(t.total_s - t.policy_s - t.wait_s - t.merge_s for t in on),
        },
        "efficiency": None if not (value := overlap_efficiency(on, off)) else round(value, 3),
        "untimed on, us": round(float(np.median(untimed[True])), 1),
        "untimed off, us": round(float(np.median(untimed[False])), 1),
    }  # fmt: skip


def rows(asked):
    if asked.tiny:
        asked.steps, asked.rounds, asked.layers, asked.hidden, asked.inner = 2, 1, 2, 64, 64
    layout = RowLayout(asked.hidden, asked.inner, (asked.dtype,) * 3)
    backend = make_backend(asked.backend)
    with ColdChain(asked.threads or None) as chain, tempfile.TemporaryDirectory() as folder:
        store = HostStore([layout] * asked.layers, EXPERTS, backend).fill(0, chain)
        yield {"cold threads": chain.threads, "variant": chain.variant, "row bytes": layout.row_bytes,
               "device": getattr(backend, "device_name", "host memory")}  # fmt: skip
        profile = Path(folder) / "pins.json"
        counts = [[max(0, 8 - e) for e in range(EXPERTS)]] * asked.layers
        profile.write_text(json.dumps({"format": "slotwise.profile", "version": 1, "counts": counts, "traces": []}))
        for tokens in TOKENS:
            for hits, _ in MIXES:
                yield measure(asked, store, chain, hits, tokens, profile)
    backend.close()


if __name__ == "__main__":
    bench("executor-speed", __doc__, rows, backend="numpy", hidden=2048, inner=768, dtype="bf16", layers=4, steps=50,
          rounds=3, threads=0)  # fmt: skip
