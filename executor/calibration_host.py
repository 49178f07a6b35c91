"""What the host takes for its parts of a tick, and the device for what lies between two layers.

Every figure is what makes the period of a loop that the executor really runs come out: of layers at which nothing is
demanded, of norms behind a busy device, of ticks that differ in one thing. So what a device hides is not counted, and
on a backend whose merge runs on the calling thread all of it is the merge's and none of it is submission.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from slotwise.policies import Pool

from .backend import Backend
from .cold import ColdChain
from .executor import Executor
from .merge import HOT
from .stopwatch import FLOOR, Value, usual
from .store import HostStore

SPIN_US = 400.0  # longer than the host takes to queue the calls behind it
CALLS = 16
MOST_TOKENS = 8
WARM_STEPS = 3
TURNS = 2  # of loops that are held against each other


class Mix(NamedTuple):
    """What every tick of a loop is made of: experts that hit and miss, loads, and predictions that are loaded."""

    hits: int = 0
    misses: int = 0
    loads: int = 0
    ahead: int = 0


class Ticks(NamedTuple):
    """Seconds of the host: until it knows the plan, from there until everything is started, and a layer in all."""

    policy: Value
    start: Value
    period: Value


def host_figures(
    make: Callable[[], Backend], store: HostStore, chain: ColdChain, *, top_k: int, link_pad: int, steps: int,
    random: np.random.Generator,
) -> dict[str, Value]:  # fmt: skip
    """All figures that are not the chains' or the link's."""
    n_layers, n_experts = store.n_layers, store.n_experts
    half = top_k // 2

    def loop(mix: Mix) -> Ticks:
        pool = Pool(
            _pinned(Path(folder), mix.hits, store), n_layers=n_layers, n_experts=n_experts,
            slots=min(n_experts, 3 * top_k),
            max_loads=max(mix.loads, mix.ahead), width=mix.ahead, full=True,
        )  # fmt: skip
        with Executor(
            pool, store, make(), chain, top_k=top_k, headroom_bytes=0, link_pad=link_pad, max_tokens=MOST_TOKENS
        ) as executor, executor.backend.queue():  # fmt: skip
            return _loop(executor, mix, steps, random)

    with TemporaryDirectory() as folder:
        nothing, hits, misses = loop(Mix()), loop(Mix(hits=top_k)), loop(Mix(misses=top_k))
        one, many = loop(Mix(misses=top_k, loads=1)), loop(Mix(misses=top_k, loads=top_k))
        ahead = loop(Mix(hits=top_k, ahead=half))
    pool = Pool("lru", n_layers=n_layers, n_experts=n_experts, slots=1, full=True)
    with Executor(
        pool, store, make(), chain, top_k=top_k, headroom_bytes=0, max_tokens=MOST_TOKENS
    ) as executor, executor.backend.queue():  # fmt: skip
        found = _device_figures(executor, top_k, steps, random)
    a_load = many.start.less(one.start).over(top_k - 1)
    a_batch = one.start.less(misses.start, a_load)
    found |= {
        "policy_s": Value((hits.policy.value + many.policy.value) / 2, max(hits.policy.spread, many.policy.spread)),
        "policy_ahead_s": ahead.start.less(hits.start, a_batch, Value(half * a_load.value, 0.0)),
        "submit_hot_s": hits.start.less(nothing.start),
        "submit_cold_s": misses.start.less(nothing.start),
        "submit_batch_s": a_batch,
        "submit_load_s": a_load,
        "submit_merge_s": nothing.period.less(nothing.policy, found["ids_s"], found["merge_s"], found["dense_s"]),
    }
    return found


def overlap_s(
    make: Callable[[], Backend], store: HostStore, chain: ColdChain, *, top_k: int, steps: int, gain_s: float,
    random: np.random.Generator,
) -> Value:  # fmt: skip
    """What a tick with work for both chains takes beyond what they leave each other of their speeds.

    gain_s: what such a tick, of half of top_k hits and misses, would gain by that alone. Loops with and without overlap
    take turns.
    """
    mix = Mix(hits=top_k // 2, misses=top_k // 2)
    taken: dict[bool, list[Value]] = {True: [], False: []}
    with TemporaryDirectory() as folder:
        policy = _pinned(Path(folder), mix.hits, store)
        for _ in range(TURNS):
            for overlap, periods in taken.items():
                pool = Pool(
                    policy, n_layers=store.n_layers, n_experts=store.n_experts, slots=3 * top_k, max_loads=0, full=True
                )
                with Executor(
                    pool, store, make(), chain, top_k=top_k, headroom_bytes=0, max_tokens=MOST_TOKENS, overlap=overlap
                ) as executor, executor.backend.queue():  # fmt: skip
                    periods.append(_loop(executor, mix, steps, random).period)
    on, off = (
        Value(statistics.mean(each.value for each in periods), max(each.spread for each in periods))
        for periods in taken.values()
    )
    return Value(max(FLOOR, gain_s + on.value - off.value), math.hypot(on.spread, off.spread))


def _pinned(folder: Path, hits: int, store: HostStore) -> str:
    """lru with the experts from 0 on that are to hit."""
    profile = folder / "pins.json"
    counts = [[store.n_experts - expert for expert in range(store.n_experts)]] * store.n_layers
    profile.write_text(json.dumps({"format": "slotwise.profile", "version": 1, "counts": counts, "traces": []}))
    return f"lru+pin(profile={profile}, n={hits})" if hits else "lru"


def _loop(executor: Executor, mix: Mix, steps: int, random: np.random.Generator) -> Ticks:
    """Steps whose ticks are all alike, first as they are, then with the host's clock read within them.

    The clock alone, no events of the device: what those cost would be taken for the host's own.
    """
    backend, k = executor.backend, executor.top_k
    n_layers, n_experts = executor.pool.n_layers, executor.pool.n_experts
    dtype = np.uint8 if n_experts <= 255 else np.uint16
    fixed, others = np.arange(mix.hits), mix.hits + np.arange(n_experts - mix.hits)
    weights = backend.upload(np.full((1, k), 1 / k, np.float32))
    x = backend.upload(random.normal(0, 1, (1, executor.store.layouts[0].hidden)).astype(np.float32))
    periods: list[float] = []
    fresh = 0

    def next_ones(count: int) -> np.ndarray:
        nonlocal fresh
        fresh += count
        return others[(np.arange(fresh - count, fresh)) % len(others)]

    def routing() -> list[tuple[Any, Any]]:
        found = []
        for _ in range(n_layers):
            ids = np.full((1, k), np.iinfo(dtype).max, dtype)
            ids[0, : mix.hits + mix.misses] = [*fixed, *next_ones(mix.misses)]
            predicted = next_ones(mix.ahead).astype(dtype)[None] if mix.ahead else None
            found.append((backend.upload(ids), None if predicted is None else backend.upload(predicted)))
        return found

    for step in range(2 * (steps + WARM_STEPS)):
        if step == steps + WARM_STEPS:
            executor.ticks = []
        there = routing()
        executor.synchronize()
        backend.drain()
        at = []
        for layer, (ids, predicted) in enumerate(there):
            x = backend.norm(x, executor.forward(layer, x, ids, weights, predicted))
            at.append(time.monotonic())
        backend.synchronize()
        executor.join()
        if WARM_STEPS <= step < steps + WARM_STEPS:
            periods.append((at[-1] - at[0]) / (n_layers - 1))
    ticks = (executor.ticks or [])[WARM_STEPS * n_layers :]
    ticks = [tick for tick in ticks if tick.layer < n_layers - 1]  # the last layer looks at none ahead
    return Ticks(
        usual([tick.policy_s for tick in ticks]),
        usual([tick.total_s - tick.policy_s - tick.wait_s - tick.merge_s for tick in ticks]),
        usual(periods),
    )


def _device_figures(executor: Executor, top_k: int, steps: int, random: np.random.Generator) -> dict[str, Value]:
    """Merge, norm, the round trip of the ids and the end of a step, each behind a device that is kept busy."""
    backend, hidden = executor.backend, executor.store.layouts[0].hidden
    values = random.normal(0, 1, (MOST_TOKENS, hidden)).astype(np.float32)
    xs = {n: backend.upload(values[:n]) for n in (1, MOST_TOKENS)}
    weights = {n: backend.upload(np.full((n, top_k), 1 / top_k, np.float32)) for n in xs}
    chains = {n: np.full((n, top_k), HOT, np.uint8) for n in xs}
    ids = backend.upload(np.zeros((1, top_k), np.uint8))

    def behind(call: Callable[[], Any] = lambda: None) -> float:
        backend.drain()
        began = time.monotonic()
        backend.spin(SPIN_US)
        for _ in range(CALLS):
            call()
        backend.synchronize()
        return time.monotonic() - began

    def merge(n: int) -> Callable[[], Any]:
        tick = backend.begin(0, xs[n], top_k)
        return lambda: backend.merge(tick, chains[n], weights[n], 0)

    def round_trip() -> float:
        """From the end of the device's work to the ids on the host: what a spin and a norm do not explain.

        Each turn finds the device idle, as a tick whose layer before is done does: starting it once is part of this.
        """
        x = xs[1]
        y = backend.merge(backend.begin(0, x, top_k), chains[1], weights[1], 0)
        backend.drain()
        began = time.monotonic()
        for _ in range(CALLS):
            backend.spin(SPIN_US)  # under which the other calls are queued
            x = backend.norm(x, y)
            backend.begin(0, x, top_k)
            backend.host(ids)
        return (time.monotonic() - began) / CALLS

    def end_of_step() -> float:
        backend.drain()
        began = time.monotonic()
        backend.spin(SPIN_US)
        backend.synchronize()
        executor.join()
        return time.monotonic() - began

    calls = {
        "idle": behind,
        "spin": lambda: behind(lambda: backend.spin(SPIN_US)),
        "norm": lambda: behind(lambda: backend.norm(xs[1], y)),
        **{f"merge {n}": lambda n=n: behind(merge(n)) for n in xs},
        "ids": round_trip,
        "end": end_of_step,
    }
    y = backend.merge(backend.begin(0, xs[1], top_k), chains[1], weights[1], 0)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(steps + 1):
        for name, call in calls.items():
            seconds = call()
            if turn:
                taken[name].append(seconds)
    each = {name: np.array(seconds) for name, seconds in taken.items()}  # differences within a turn: it had one load
    many = (each[f"merge {MOST_TOKENS}"] - each["merge 1"]) / (CALLS * (MOST_TOKENS - 1) * top_k)
    spin, norm, one = ((each[name] - each["idle"]) / CALLS for name in ("spin", "norm", "merge 1"))
    return {
        "dense_s": usual(norm),
        "merge_s": usual(one - top_k * many),
        "merge_pair_s": usual(many),
        "ids_s": usual(each["ids"] - spin - norm),
        "step_s": usual(each["end"] - spin),
    }
