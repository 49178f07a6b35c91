"""The numpy backend: host memory as device, a thread as copy engine, the cold chain's own functions as hot chain.

It is the living definition of a backend: slow, real, and the same bytes as any other run on it.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

from .backend import Copy, Rows
from .ceilings import best_rate, l3_bytes
from .checks import check_choice
from .cold import ColdChain, Layer, RowLayout, cold_module
from .errors import BadExecutor
from .host_memory import HOSTS, RING_BYTES, Ring, huge_pages, ordinary
from .merge import MERGES, merged
from .tensors import on_host

_give_way = getattr(os, "sched_yield", partial(sleep, 0))  # to copies; a sleep, however short, takes 50 us or more
_JOBS = 32  # of a tick at once: the cold chain keeps the times of the last 64


@dataclass(eq=False)
class Tick:
    """One layer's work: what goes in, where outputs go, and the jobs under way."""

    layer: int
    x: np.ndarray
    out: np.ndarray
    jobs: list[int]
    spans: list[tuple[float, float]] = field(default_factory=list)
    late: list[tuple[float, float]] = field(default_factory=list)


class NumpyBackend:
    """Host memory as device, for any machine: real copies and computation, the bytes that others are held against.

    device_bytes: how much memory the "device" has, by default as much as there is. host: `pinned` is ordinary memory
    here, `registered` huge pages, and `staged` goes through a ring of `ring_bytes`. merge: `cpu` and `gpu` are one.
    cold: the kind of cold chain whose functions it computes hits with: that of the misses, else one run would have two
    roundings.
    """

    name, device_name, owned = "numpy", "host memory", False
    poison = True  # always: outputs are new at every tick

    def __init__(
        self,
        *,
        device_bytes: int | None = None,
        threads: int = 1,
        variant: str | None = None,
        cold: str = "native",
        host: str = "pinned",
        merge: str = "gpu",
        ring_bytes: int = RING_BYTES,
    ):
        self.device_bytes, self.host_kind = device_bytes, check_choice("host", host, HOSTS)
        self.merge_on, self.timing = check_choice("merge", merge, MERGES), False
        self._taken = self.reader_waits = self.counter = 0  # `merge` waits, on the host
        self._memory: list[np.ndarray] = []
        self._chain = ColdChain(threads, variant=variant, kind=cold)
        self._layers: list[Layer] = []
        self._link: ThreadPoolExecutor | None = None
        self._stager: ThreadPoolExecutor | None = None  # fills the ring, where there is one
        self._ring = Ring(ordinary(ring_bytes)) if host == "staged" else None
        self._carried: deque[tuple[float, float, int]] = deque()

    @staticmethod
    def missing(cold: str = "native") -> str | None:
        try:
            cold_module(cold)
        except BadExecutor as error:
            return str(error)
        return None

    def free_bytes(self) -> int | None:
        return None if self.device_bytes is None else self.device_bytes - self._taken

    def host_memory(self, n_bytes: int) -> np.ndarray:
        return huge_pages(n_bytes) if self.host_kind == "registered" else ordinary(n_bytes)

    def device_memory(self, n_bytes: int) -> int:
        memory = ordinary(n_bytes)
        memory[:] = 0xFF  # NaN in every float: a row that is read before it was written shows
        self._memory.append(memory)
        self._taken += n_bytes
        return memory.ctypes.data

    def prepare(self, layouts: Sequence[RowLayout], n_tokens: int, top_k: int) -> None:
        self._chain.open()
        known = {layout: self._chain.layer(layout) for layout in dict.fromkeys(layouts)}
        self._layers = [known[layout] for layout in layouts]
        self._link = ThreadPoolExecutor(1, "slotwise-copy")
        if self._ring:
            self._stager = ThreadPoolExecutor(1, "slotwise-stage")

    def upload(self, values: np.ndarray) -> np.ndarray:
        return values

    def adopt(self, name: str, value: Any) -> np.ndarray:
        return on_host(name, value, self.name)

    def download(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def host(self, *values: Any) -> list[np.ndarray]:
        return [np.asarray(value) for value in values]

    def read(self, address: int, n_bytes: int) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(address, n_bytes), np.uint8)

    def copy(self, copies: Sequence[Copy], after: Any = None) -> Future:
        assert self._link is not None
        if after is not None and not self._chain.done(after):
            self.reader_waits += 1
        if self._stager:
            return self._stager.submit(self._stage, list(copies), after)
        return self._link.submit(self._carry, list(copies), after)

    def _stage(self, copies: list[Copy], after: int | None) -> None:
        ring, link = self._ring, self._link
        assert ring is not None
        assert link is not None
        ring.carry(copies, lambda batch: link.submit(self._carry, batch, after), Future.result).result()

    def _carry(self, copies: list[Copy], after: int | None) -> None:
        if after is not None:
            self._chain.wait(after)
        began = monotonic()
        for source, target, n_bytes in copies:
            ctypes.memmove(target, source, n_bytes)  # without the GIL
        if self.timing:
            self._carried.append((began, monotonic(), sum(copy.n_bytes for copy in copies)))

    def copy_spans(self) -> list[tuple[float, float, int]]:
        return [self._carried.popleft() for _ in range(len(self._carried))]

    def read_rate(self, most_bytes: int) -> float:
        """By the threads of its own chain."""
        n_bytes = min(most_bytes, 4 * l3_bytes())
        memory = self.host_memory(n_bytes)
        memory[:] = 1  # pages of its own

        def job() -> int:
            self._chain.read(memory)
            return n_bytes

        return best_rate(job)

    def conditions(self) -> dict[str, float]:
        return {}

    def landed(self, ticket: Future) -> bool:
        if ticket.done():
            ticket.result()  # a copy that failed is no row
            return True
        return False

    def begin(self, layer: int, x: Any, top_k: int) -> Tick:
        x = np.ascontiguousarray(x, np.float32)
        out = np.full((len(x) * top_k, x.shape[1]), np.nan, np.float32)  # what nobody computes shows
        return Tick(layer, x, out, [])

    def hot(self, tick: Tick, work: Rows, after: Sequence[Future] = ()) -> int:
        if after:
            began = monotonic()
            wait(after)
            tick.late.append((began, monotonic()))
        for ticket in after:
            ticket.result()
        if len(tick.jobs) == _JOBS:
            self.settle(tick)
        layer = self._layers[tick.layer]
        job = self._chain.submit(layer, work.rows, work.offsets, work.tokens, tick.x, tick.out, work.places)
        tick.jobs.append(job)
        return job

    def inputs(self, tick: Tick) -> tuple[np.ndarray, np.ndarray]:
        return tick.x, tick.out

    def settle(self, tick: Tick) -> None:
        for job in tick.jobs:
            self._chain.wait(job)
            tick.spans.append(self._chain.times(job))
        tick.jobs.clear()

    def hot_spans(self, tick: Tick) -> list[tuple[float, float]]:
        return tick.spans

    def late_spans(self, tick: Tick) -> list[tuple[float, float]]:
        return tick.late

    def merge(self, tick: Tick, chains: np.ndarray, weights: Any, jobs: int = 0) -> np.ndarray:
        self.settle(tick)
        return merged(tick.out.reshape(*chains.shape, -1), chains, np.asarray(weights, np.float32))

    def norm(self, x: Any, y: Any) -> np.ndarray:
        total = np.asarray(x, np.float32) + y
        return total / np.sqrt(np.mean(total * total, axis=1, keepdims=True) + np.float32(1e-6))

    def queue(self) -> AbstractContextManager[None]:
        return nullcontext()

    def spin(self, microseconds: float) -> None:
        until = perf_counter() + microseconds * 1e-6
        while perf_counter() < until:
            _give_way()

    def synchronize(self) -> None:
        """Nothing to wait for: `merge` has."""

    def drain(self) -> None:
        for engine in (self._stager, self._link):
            if engine is not None:
                engine.submit(int).result()

    def close(self) -> None:
        for engine in (self._stager, self._link):
            if engine is not None:
                engine.shutdown()
        self._stager = self._link = None
        self._chain.close()
        self._memory.clear()


BACKEND = NumpyBackend
