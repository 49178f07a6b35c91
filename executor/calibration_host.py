"""What the host takes for its parts of a tick, and the device for what lies between two layers.

Every figure is what makes the period of a loop that the executor really runs come out: of layers whose ticks differ in
one thing, of norms behind a busy device. So what a device hides is not counted, and on a backend whose merge runs on
the calling thread all of it is the merge's and none of it is submission.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from slotwise.policies import Pool

from .backend import Backend
from .calibration_loops import MOST_TOKENS, Loop, Mix, Ticks, of_kind, run_loop
from .cold import ColdChain
from .executor import Executor
from .merge import HOT
from .stopwatch import FLOOR, Value, settled, usual
from .store import HostStore

SPIN_US = 400.0  # longer than the host takes to queue the calls behind it
DENSE_US = 100.0  # of a layer: longer than the host takes from a merge to asking for the next ids
CALLS = 16
CROSSED_BYTES, MOST_CROSSED = 16 << 20, 512  # or so many rows, and two ticks' rows: under way beside three ticks
TURNS = 6  # of loops that are held against each other
LEAST_STEPS = 4  # of a turn: ticks of every kind


class HostLoops:
    """Loops of ticks, run in turns: a host's speed drifts by a tenth at times, so turns are best far apart."""

    def __init__(
        self, make: Callable[[], Backend], store: HostStore, chain: ColdChain, *, top_k: int, link_pad: int,
        steps: int, random: np.random.Generator,
    ):  # fmt: skip
        self.make, self.store, self.chain, self.top_k, self.link_pad = make, store, chain, top_k, link_pad
        self.steps, self.random = steps, random
        self.usually = {  # about as decoding goes
            Mix(): 0.12, Mix(top_k): 0.45, Mix(top_k - 1, 1): 0.25, Mix(top_k - 2, 2): 0.12, Mix(0, top_k): 0.06
        }  # fmt: skip
        self.loops = {
            "idle": Loop({Mix(): 1.0}), "dense": Loop({Mix(): 1.0}, dense_us=DENSE_US), "plain": Loop(self.usually),
            "crossed": Loop(self.usually, crossed=2 * top_k + min(MOST_CROSSED, CROSSED_BYTES // store.row_bytes[0])),
            "loads": Loop(self.usually, max_loads=top_k),
            "ahead": Loop({Mix(top_k): 0.5, Mix(top_k, ahead=top_k // 2): 0.5}),
        }  # fmt: skip
        self.ticks: dict[str, list[Ticks]] = {name: [] for name in self.loops}

    def turns(self, count: int) -> None:
        """So many turns of TURNS."""
        with TemporaryDirectory() as folder:
            for name, loop in [*self.loops.items()] * count:
                found = run_loop(
                    loop, self.make, self.store, self.chain, Path(folder), top_k=self.top_k, link_pad=self.link_pad,
                    steps=_steps_of_a_turn(self.steps), random=self.random,
                )  # fmt: skip
                self.ticks[name].append(found)

    def figures(self, crossed_s: float) -> dict[str, Value]:
        """All figures that are not the chains' or the link's.

        crossed_s: by how much longer the cold chain takes for one row of one token beside the link.
        """
        top_k = self.top_k
        nothing, hits, one, every = Mix(), Mix(top_k), Mix(top_k - 1, 1), Mix(0, top_k)
        ahead = Mix(top_k, ahead=top_k // 2)

        def took(what: str, name: str, mix: Mix) -> Value:
            return usual(of_kind(self.ticks[name], mix, self.loops[name], what))

        def more(what: str, name: str, other: str, mix: Mix) -> Value:
            return took(what, name, mix).less(took(what, other, mix))

        store = self.store
        pool = Pool("lru", n_layers=store.n_layers, n_experts=store.n_experts, slots=1, full=True)
        with Executor(
            pool, store, self.make(), self.chain, top_k=top_k, headroom_bytes=0, max_tokens=MOST_TOKENS
        ) as executor, executor.backend.queue():  # fmt: skip
            found = _device_figures(executor, top_k, self.steps, self.random)
            waits = not executor.backend.counter
        once = more("start", "loads", "crossed", one)
        a_load = more("start", "loads", "crossed", every).less(once).over(top_k - 1)
        a_batch = once.less(a_load)
        link_host = more("policy", "crossed", "plain", nothing).plus(more("start", "crossed", "plain", nothing))
        link_ids = more("period", "crossed", "plain", nothing).less(link_host)
        start = partial(took, "start", "plain")
        demanded = [
            of_kind(self.ticks["plain"], mix, self.loops["plain"], "policy") for mix in self.usually if mix != nothing
        ]
        found |= {
            "policy_s": settled(np.concatenate(demanded)),
            "policy_ahead_s": took("start", "ahead", ahead).less(
                took("start", "ahead", hits), a_batch, Value(ahead.ahead * a_load.value, 0.0)
            ),
            "submit_hot_s": start(hits).less(start(nothing)),
            "submit_cold_s": start(one).less(start(hits)),
            "submit_batch_s": a_batch,
            "submit_load_s": a_load,
            "link_host_s": link_host,
            "link_ids_s": link_ids,
            "link_cold_s": more("period", "crossed", "plain", one).less(link_host, link_ids, Value(crossed_s, 0.0)),
        }  # fmt: skip
        period = took("period", "idle", nothing)
        if waits:  # its words and results cross no link, and its merge runs on the calling thread
            other = took("policy", "idle", nothing), found["ids_s"], found["merge_s"], found["dense_s"]
            nothing_s = dict.fromkeys(("submit_next_s", "link_ids_s", "link_cold_s"), Value(FLOOR, 0.0))
            return found | {"submit_merge_s": period.less(*other)} | nothing_s
        dense = [took(what, "dense", nothing) for what in ("policy", "start", "merge")]
        device = found["merge_s"], found["dense_s"], Value(DENSE_US * 1e-6, 0.0)
        found["ids_s"] = ids = took("period", "dense", nothing).less(*dense, *device)
        launch = settled(np.concatenate([each.merge for name in ("plain", "loads") for each in self.ticks[name]]))
        return found | {
            "submit_merge_s": launch.plus(start(nothing)),
            "submit_next_s": period.less(*(took(what, "idle", nothing) for what in ("policy", "start", "merge")), ids),
        }


def _steps_of_a_turn(steps: int) -> int:
    return max(LEAST_STEPS, 2 * steps // TURNS)


def overlap_s(
    make: Callable[[], Backend], store: HostStore, chain: ColdChain, *, top_k: int, steps: int, gain_s: float,
    random: np.random.Generator,
) -> Value:  # fmt: skip
    """What a tick with work for both chains takes beyond what they leave each other of their speeds.

    gain_s: what such a tick, of half of top_k hits and misses, would gain by that alone. Loops with and without overlap
    take turns.
    """
    mix = Mix(top_k // 2, top_k // 2)
    taken: dict[bool, list[Value]] = {True: [], False: []}
    with TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for overlap, periods in taken.items():
                loop = Loop({mix: 1.0}, overlap=overlap)
                found = run_loop(
                    loop, make, store, chain, Path(folder), top_k=top_k, link_pad=0,
                    steps=_steps_of_a_turn(steps), random=random,
                )  # fmt: skip
                periods.append(usual(found.period))
    on, off = (
        Value(statistics.mean(each.value for each in periods), max(each.spread for each in periods))
        for periods in taken.values()
    )
    return Value(max(FLOOR, gain_s + on.value - off.value), math.hypot(on.spread, off.spread))


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
