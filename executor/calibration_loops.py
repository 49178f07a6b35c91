"""Layers that an executor really runs one after the other, of kinds that are drawn, with the host's clock in between.

The clock alone, no events of the device: what those cost would be taken for the host's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slotwise.policies import Pool

from .backend import Backend
from .cold import ColdChain
from .executor import Executor
from .sort import Load
from .store import HostStore

MOST_TOKENS = 8
WARM_STEPS = 3
REFILL = 4  # layers, of a step whose other layers have copies under way


class Mix(NamedTuple):
    """What a tick is made of: experts that hit and miss, and predictions that are loaded."""

    hits: int = 0
    misses: int = 0
    ahead: int = 0


class Ticks(NamedTuple):
    """Seconds of the host, a value a tick, and which kind each was.

    policy: from the ids until it knows the plan; start: from there until the merge is to be launched, with loads and
    predictions; merge: launching it; period: from the ids of a layer to those of the next.
    """

    kind: np.ndarray
    policy: np.ndarray
    start: np.ndarray
    merge: np.ndarray
    period: np.ndarray


class Loop(NamedTuple):
    """Which kinds of ticks a loop draws, and how often; loads of a tick's misses at most; dense device time a layer.

    crossed: rows that are loaded after the first layer of a step and every REFILL-th from there, and are under way at
    the others; those layers do not count.
    """

    odds: Mapping[Mix, float]
    max_loads: int = 0
    crossed: int = 0
    dense_us: float = 0.0
    overlap: bool = True


def run_loop(
    loop: Loop, make: Callable[[], Backend], store: HostStore, chain: ColdChain, folder: Path, *, top_k: int,
    link_pad: int, steps: int, random: np.random.Generator,
) -> Ticks:  # fmt: skip
    """So many steps, each of all layers of the store, after some that warm up."""
    pins, ahead = max(mix.hits for mix in loop.odds), max(mix.ahead for mix in loop.odds)
    pool = Pool(
        _pinned(folder, pins, store), n_layers=store.n_layers, n_experts=store.n_experts,
        slots=min(store.n_experts, 3 * top_k), max_loads=max(loop.max_loads, ahead), width=ahead, full=True,
    )  # fmt: skip
    with Executor(
        pool, store, make(), chain, top_k=top_k, headroom_bytes=0, link_pad=link_pad, max_tokens=MOST_TOKENS,
        overlap=loop.overlap,
    ) as executor, executor.backend.queue():  # fmt: skip
        return _run(executor, loop, steps, random)


def _run(executor: Executor, loop: Loop, steps: int, random: np.random.Generator) -> Ticks:
    backend, k, n_layers = executor.backend, executor.top_k, executor.pool.n_layers
    clock, kinds = _Clock(executor), list(loop.odds)
    pins = max(mix.hits for mix in kinds)
    routing = _Routing(executor, pins)
    weights = backend.upload(np.full((1, k), 1 / k, np.float32))
    x = backend.upload(random.normal(0, 1, (1, executor.store.layouts[0].hidden)).astype(np.float32))
    filled = {layer for layer in range(0, n_layers, REFILL) if loop.crossed}
    # the last layer looks at none ahead and is followed by none
    counted = [layer for layer in range(n_layers - 1) if layer not in filled]
    drawn = _drawn(list(loop.odds.values()), (steps + WARM_STEPS, n_layers), counted, random)
    for step in drawn.tolist():
        ticks = [routing.of(kinds[kind], layer) for layer, kind in enumerate(step)]
        executor.synchronize()
        backend.drain()
        for layer, (ids, predicted) in enumerate(ticks):
            x = backend.norm(x, executor.forward(layer, x, ids, weights, predicted))
            if loop.dense_us:
                backend.spin(loop.dense_us)
            if layer in filled:
                executor.transfers.fill(_others(executor, loop.crossed, pins))
        backend.synchronize()
        executor.join()
    times = clock.there, clock.known, clock.ready, clock.merged
    there, known, ready, merged = (np.array(each).reshape(drawn.shape)[WARM_STEPS:] for each in times)
    spans = drawn[WARM_STEPS:], known - there, ready - known, merged - ready, np.roll(there, -1, axis=1) - there
    return Ticks(*(each[:, counted].ravel() for each in spans))


def _others(executor: Executor, count: int, pins: int) -> list[Load]:
    """So many loads, in turns into the slots of the first layer that no hit reads, whatever the pool has there."""
    pool, store = executor.pool, executor.store
    pinned = {slot for expert, slot in pool.slots_of(0).items() if expert < pins}
    free = [slot for slot in range(pool.physical_slots[0]) if slot not in pinned]
    return [Load(i % store.n_layers, i % store.n_experts, 0, free[i % len(free)]) for i in range(count)]


def _drawn(
    odds: Sequence[float], shape: tuple[int, int], counted: Sequence[int], random: np.random.Generator
) -> np.ndarray:
    """Kinds as often as the odds have them; each at least once among the ticks of layers that count."""
    shares = np.array(odds) / sum(odds)
    found = random.choice(len(shares), shape, p=shares)
    some = found[WARM_STEPS:, counted].ravel()
    balanced = np.repeat(np.arange(len(shares)), np.maximum(1, shares * some.size).astype(int))
    some[random.permutation(some.size)[: len(balanced)]] = balanced[: some.size]
    found[WARM_STEPS:, counted] = some.reshape(-1, len(counted))
    return found


class _Clock:
    """When an executor's ticks have their ids, know what to do, are about to merge, and have."""

    def __init__(self, executor: Executor):
        self.there: list[float] = []
        self.known: list[float] = []
        self.ready: list[float] = []
        self.merged: list[float] = []
        _tell(executor.backend, "host", after=self.there)
        _tell(executor.dispatcher, "start", before=self.known)
        _tell(executor.backend, "merge", before=self.ready, after=self.merged)


def _tell(what: Any, name: str, *, before: list[float] | None = None, after: list[float] | None = None) -> None:
    """From now on calls of this method say when."""
    call, clock = getattr(what, name), time.monotonic

    def told(*given: Any) -> Any:
        if before is not None:
            before.append(clock())
        found = call(*given)
        if after is not None:
            after.append(clock())
        return found

    setattr(what, name, told)


class _Routing:
    """Ids and predictions of a tick on the device: experts that are pinned, and others that no slot holds.

    Each layer goes through its others in turn: there are more of them than slots, so lru has none when it comes again.
    """

    def __init__(self, executor: Executor, pins: int):
        self._upload, self._k = executor.backend.upload, executor.top_k
        n_experts = executor.pool.n_experts
        self._dtype = np.uint8 if n_experts <= 255 else np.uint16
        self._pinned, self._others = np.arange(pins), np.arange(pins, n_experts)
        self._at = [0] * (executor.pool.n_layers + 1)

    def of(self, mix: Mix, layer: int) -> tuple[Any, Any]:
        ids = np.full((1, self._k), np.iinfo(self._dtype).max, self._dtype)
        ids[0, : mix.hits + mix.misses] = [*self._pinned[: mix.hits], *self._next(mix.misses, layer)]
        predicted = self._upload(self._next(mix.ahead, layer + 1).astype(self._dtype)[None]) if mix.ahead else None
        return self._upload(ids), predicted

    def _next(self, count: int, layer: int) -> np.ndarray:
        """Those that were demanded longest ago."""
        at = self._at[layer]
        self._at[layer] += count
        return self._others.take(range(at, at + count), mode="wrap")


def _pinned(folder: Path, pins: int, store: HostStore) -> str:
    """lru with the experts from 0 on that are to hit."""
    profile = folder / "pins.json"
    counts = [[store.n_experts - expert for expert in range(store.n_experts)]] * store.n_layers
    profile.write_text(json.dumps({"format": "slotwise.profile", "version": 1, "counts": counts, "traces": []}))
    return f"lru+pin(profile={profile}, n={pins})" if pins else "lru"


def of_kind(ticks: Sequence[Ticks], mix: Mix, loop: Loop, what: str) -> np.ndarray:
    """Seconds of all ticks of a kind."""
    number = list(loop.odds).index(mix)
    return np.concatenate([getattr(each, what)[each.kind == number] for each in ticks])
