"""What a tick of the executor costs beyond its chains, and what overlap wins, by (hits, misses) and tokens of a step.

    python benchmarks/executor_speed.py --backend cupy [--hidden 2048] [--inner 768] [--dtype bf16] [--keep]

Every tick demands 8 experts of 128, of which so many are pinned in slots and the rest computed on the CPU. One layer
after another, each fed by the one before. Three settings, on backend cupy: as is; as many SMs as make the device memory
about as fast as an RTX 3060's, every row that misses loaded if it is the tick's first, and copied twice (PCIe 4 x16);
the same with nine copies (x4). Restricted ones say so. Serial and overlapped runs take turns.
`t` is the host's time of a tick with event timing, from its ids' arrival to its output; hot and cold are spans of
device and worker. `overhead` = t - max(hot, cold) of overlapped ticks that did not wait for a copy; `where` are medians
of its parts, microseconds: the plan, from there to the start of the longer chain, and from its end to the output.
`efficiency` is (t_serial - t) / (t_serial - max(hot, cold)) as a ratio of sums. `untimed` is the time of a layer with
no timing at all. The last line of a setting sums up the ticks whose shorter chain takes 50 us or more, and 20 or more.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from peers import bench

from slotwise.executor.backend import make_backend
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.executor.timing import TickTimes, overlap_efficiency
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


class Setting(NamedTuple):
    """How much smaller than it is the machine is made: blocks of the hot chain (0: all), copies more of every row."""

    name: str
    sms: int = 0
    link_pad: int = 0

    @property
    def loads(self) -> int:
        return int(self.link_pad > 0)


SETTINGS = (
    Setting("as is"), Setting("restricted to 11 SMs, links as PCIe 4 x16", 11, 1),
    Setting("restricted to 11 SMs, links as PCIe 4 x4", 11, 8),
)  # fmt: skip


def measure(
    asked, store: HostStore, chain: ColdChain, hits: int, tokens: int, profile: Path, setting: Setting = SETTINGS[0]
) -> tuple[dict, list[tuple[TickTimes, TickTimes]]]:
    """One row, and the pairs of ticks (overlapped, serial) behind it."""
    layers = store.n_layers
    ids = routing(hits, layers, asked.steps, tokens)
    ticks: dict[bool, list] = {True: [], False: []}
    untimed: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(asked.rounds):
        for overlap in (True, False):
            for timing in (True, False):
                pool = Pool(
                    f"lru+pin(profile={profile}, n={hits})" if hits else "lru", n_layers=layers, n_experts=EXPERTS,
                    slots=hits + setting.loads, max_loads=setting.loads, full=True,
                )  # fmt: skip
                backend = make_backend(asked.backend, **({"sms": setting.sms} if setting.sms else {}))
                with Executor(
                    pool, store, backend, chain, top_k=TOP_K, overlap=overlap, headroom_bytes=0, timing=timing,
                    max_tokens=64, link_pad=setting.link_pad,
                ) as executor:  # fmt: skip
                    pass_through(executor, ids[:2])
                    if executor.ticks is not None:
                        executor.ticks.clear()
                    seconds = pass_through(executor, ids)
                    if timing:
                        ticks[overlap] += executor.ticks or []
                    else:
                        untimed[overlap].append(1e6 * seconds / (asked.steps * layers))
    pairs = list(zip(ticks[True], ticks[False], strict=True))
    return {"setting": setting.name} | summary(hits, tokens, pairs, untimed), pairs


def where(tick: TickTimes) -> tuple[float, float, float]:
    """Seconds of a tick outside of its longer chain: the plan, until that chain began, and after it."""
    spans = tick.hot if tick.hot_s >= tick.cold_s else tick.cold
    first, last = min(began for began, _ in spans), max(ended for _, ended in spans)
    planned = tick.began + tick.policy_s
    return tick.policy_s, first - planned, tick.began + tick.total_s - last


def summary(hits: int, tokens: int, pairs: list, untimed: dict) -> dict:
    on, off = ([pair[i] for pair in pairs if not (pair[0].late_s or pair[1].late_s)] for i in (0, 1))

    def us(values, at: float = 50) -> float:
        return round(1e6 * float(np.percentile(list(values), at)), 1)

    over = [tick.total_s - max(tick.hot_s, tick.cold_s) for tick in on]
    parts = [us(part) for part in zip(*map(where, on), strict=True)]
    return {
        "hits": hits, "misses": TOP_K - hits, "tokens": tokens,
        "t, us": us(t.total_s for t in on), "serial, us": us(t.total_s for t in off),
        "hot, us": us(t.hot_s for t in off), "cold, us": us(t.cold_s for t in off),
        "overhead p50, us": us(over), "overhead p99, us": us(over, 99),
        "where": dict(zip(("policy", "start", "end"), parts, strict=True)), "where sums to, us": round(sum(parts), 1),
        "ids to hot, us": us(t.hot[0][0] - t.began for t in on) if hits else None,
        "efficiency": None if not (value := overlap_efficiency(on, off)) else round(value, 3),
        "untimed on, us": round(float(np.median(untimed[True])), 1),
        "untimed off, us": round(float(np.median(untimed[False])), 1),
        "without late waits": f"{len(on)} of {len(pairs)} ticks",
    }  # fmt: skip


def qualifying(setting: Setting, pairs: list) -> dict:
    """Efficiency over all ticks of a setting that waited for no copy and whose shorter chain is worth hiding."""
    pairs = [(on, off) for on, off in pairs if not (on.late_s or off.late_s)]
    found: dict = {"setting": setting.name, "ticks": len(pairs)}
    for least in (50e-6, 20e-6):
        mine = [(on, off) for on, off in pairs if min(off.hot_s, off.cold_s) >= least]
        name = f"from {round(least * 1e6)} us"
        found[f"{name}, share of ticks"] = round(len(mine) / max(1, len(pairs)), 3)
        value = overlap_efficiency(*map(list, zip(*mine, strict=True))) if mine else None
        found[f"{name}, efficiency"] = None if value is None else round(value, 3)
    return found


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
        for setting in SETTINGS if asked.backend == "cupy" else SETTINGS[:1]:
            every: list = []
            for tokens in TOKENS:
                for hits, _ in MIXES:
                    row, pairs = measure(asked, store, chain, hits, tokens, profile, setting)
                    every += pairs
                    yield row
            yield qualifying(setting, every)
    backend.close()


if __name__ == "__main__":
    bench("executor-speed", __doc__, rows, backend="numpy", hidden=2048, inner=768, dtype="bf16", layers=4, steps=50,
          rounds=3, threads=0)  # fmt: skip
