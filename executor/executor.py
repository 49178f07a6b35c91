"""The executor: carries out what a pool decides. Hits run where they lie, misses on the CPU or after a copy."""

from __future__ import annotations

import logging
import weakref
from contextlib import ExitStack
from time import monotonic
from typing import Any

import numpy as np

from slotwise.policies import Plan, Pool

from .backend import Backend
from .checks import check
from .cold import ColdChain
from .dispatch import Dispatcher
from .errors import BadExecutor, BrokenOff, CopyDoubtful, CopyRefused
from .journal import Journal
from .limits import one_thread
from .overlap import OverlapGate
from .plan_hash import PlanHash
from .slots import Slots
from .sort import Load, Sorted
from .store import HostStore
from .tensors import take_ids, take_in
from .timing import TickTimes
from .transfers import Transfers

HEADROOM_BYTES = 900 << 20
_LOG = logging.getLogger(__name__)


class Executor:
    """One MoE model's experts on one device. Also a context manager.

    pool: decides, by the very functions that a replay calls. store: the rows in host memory. chain: the opened cold
    chain. top_k: experts per token. horizon: how many layers ahead `forward`'s predictions are.
    overlap: cold and hot chain at the same time, one after the other, or tick by tick as a gate says; neither the plan
    nor a byte of the output depends on it. Steps of more tokens than the pool's batch gate never overlap.
    miss: `cpu` computes misses on the CPU; `fetch` copies their rows and computes them on the device; `split` does the
    latter with the first `split_share` of them. late: a planned hit whose copy has not landed `wait`s for it, or is
    computed `cold` and counted `diverted`.
    headroom_bytes: device memory to leave free. staging: rows for steps that are streamed, default 2 * top_k.
    spec_chunk: at most so many speculative rows in one batch of copies; None makes one batch a tick.
    max_queued: at most so many bytes of them in the driver, so that demand overtakes the rest; None is no limit.
    link_pad: so many copies more of every row, to imitate a slower link.
    BLAS, OpenMP and numba have one thread while it is open, see `limits`.
    max_tokens: the most tokens of a step. plan_hash: keep the hash of all plans, as `replay --plan-hash` prints it.
    timing: keep the spans of every tick in `ticks`.
    """

    def __init__(
        self,
        pool: Pool,
        store: HostStore,
        backend: Backend,
        chain: ColdChain,
        *,
        top_k: int,
        horizon: int = 1,
        overlap: bool | OverlapGate = True,
        miss: str = "cpu",
        split_share: float = 0.5,
        late: str = "wait",
        headroom_bytes: int = HEADROOM_BYTES,
        staging: int | None = None,
        spec_chunk: int | None = None,
        max_queued: int | None = None,
        link_pad: int = 0,
        max_tokens: int = 2048,
        plan_hash: bool = False,
        timing: bool = False,
    ):
        if backend.owned:
            raise BadExecutor(f"this {backend.name} backend served another executor: make a new one")
        backend.owned = True
        with ExitStack() as opening:
            opening.callback(backend.close)  # whatever fails below leaves no thread and no memory
            check(
                pool, store, miss=miss, late=late, split_share=split_share, spec_chunk=spec_chunk,
                max_queued=max_queued, link_pad=link_pad, top_k=top_k, horizon=horizon, max_tokens=max_tokens,
                staging=staging,
            )  # fmt: skip
            self.pool, self.store, self.backend, self.chain = pool, store, backend, chain
            self.top_k, self.horizon, self.spec_chunk, self.max_tokens = top_k, horizon, spec_chunk, max_tokens
            outside = min(store.n_experts, max(1, pool.batch_gate) * top_k) if miss != "cpu" else 0
            streams = pool.prefill == "stream" and miss != "cpu"
            self.slots = Slots(
                pool, store, backend, scratch=outside, headroom_bytes=headroom_bytes,
                staging=(2 * top_k if staging is None else staging) if streams else 0, pad=top_k if link_pad else 0,
            )  # fmt: skip
            backend.timing = timing
            backend.prepare(store.layouts, max_tokens, top_k)
            self.transfers = Transfers(store, self.slots, backend, max_queued=max_queued, link_pad=link_pad)
            self.dispatcher = Dispatcher(
                store, self.slots, backend, chain, self.transfers, wide=pool.scope == "global", overlap=overlap,
                batch_gate=pool.batch_gate, miss=miss, split_share=split_share, late=late,
            )  # fmt: skip
            self._journal = Journal(pool)
            self.plan_hash = PlanHash(pool.n_pools, pool.n_experts) if plan_hash else None
            self._step, self._last_layer, self._said = -1, pool.n_layers, False
            self._torn = False  # between a plan and the start of all that it asks for
            self.failures: list[dict[str, Any]] = []  # as `replay --failures` takes them
            self.ticks: list[TickTimes] | None = [] if timing else None
            pool.open()
            self._closing = weakref.finalize(self, one_thread(then=backend.close))
            opening.pop_all()

    def forward(self, layer: int, x: Any, ids: Any, weights: Any, predicted: Any = None) -> Any:
        """y [n, hidden] of one layer: per token its experts' outputs times their weights, summed in router order.

        x: [n, hidden] float32. ids: [n, top_k] of any whole-number dtype, best first, absent ones as in a trace.
        weights: [n, top_k] float32. predicted: [n, P] experts expected at `layer + horizon`, offered after this layer's
        demand. One token's may come as [top_k] and [P].
        All are host arrays or, on backend cupy, device tensors of its GPU: NumPy's, CuPy's, torch's or whatever exports
        DLPack, read where they lie. y is the backend's array, its memory used anew two calls later on a GPU;
        `torch.from_dlpack(y)` makes a tensor of it, without a copy either.
        A call whose layer is not above the last one begins the next step. None has after BadExecutor, BadPolicy.
        WorkerFailed is raised where the cold results are first read: by this call, or on a GPU, which waits for them by
        itself, by the next one or `join`.
        """
        if self._torn:
            raise BadExecutor("an earlier tick failed half-way: slots may not hold their rows; open another executor")
        x, ids, weights, predicted = take_in(self, x, ids, weights, predicted)
        self.transfers.pump()
        tick = self.backend.begin(layer, x, self.top_k)
        ahead = layer + self.horizon < self.pool.n_layers and self.pool.width != 0
        asked = (ids,) if predicted is None or not ahead else (ids, predicted)
        ids, *offers = map(_rows, self.backend.host(*asked))
        began = monotonic()
        self.join()
        plan, self._torn = self._journal.step(layer, ids), True
        work = self._sort(plan, layer, ids)
        self._step += layer <= self._last_layer
        self._last_layer = layer
        planned = monotonic()
        self._fill_initial(work.initial)
        fetched = self.dispatcher.start(layer, tick, ids, work)
        loads = self._load(work.loads, layer, "demand", 0, work.loads)
        self.transfers.pump()
        if fetched:
            resident = None if loads is work.loads else self.pool.slots_of(layer)
            self.dispatcher.fetch(layer, tick, ids, work.chains, fetched, loads, resident, work.streamed)
        self._note(layer)
        if offers:
            self._look_ahead(layer + self.horizon, offers[0])
        started, self._torn = monotonic(), False
        jobs = [] if self.backend.counter else self.dispatcher.wait()
        y = self.backend.merge(tick, work.chains, weights, self.dispatcher.counted & 0xFFFFFFFF)
        if self.ticks is None:
            return y
        self.backend.settle(tick)
        ended = monotonic()
        hot, cold = self.backend.hot_spans(tick), [self.chain.times(job) for job in jobs or self.dispatcher.wait()]
        computed = max([started, *(until for _, until in (*hot, *cold))])
        self.ticks.append(
            TickTimes(
                self._step, layer, work.n_hits, work.n_misses, len(work.loads), began,
                planned - began, computed - started, ended - computed, ended - began, hot, cold,
                self.backend.late_spans(tick), self.backend.copy_spans(),
            )
        )  # fmt: skip
        return y

    def join(self) -> None:
        """Waits for the cold work of the last call. Raises WorkerFailed: what that call returned is not to be used."""
        self.dispatcher.wait()

    def prefetch(self, layer: int, predicted: Any) -> None:
        """Offers predictions for `layer` now and starts the copies granted. Layers past the last are skipped."""
        if layer >= self.pool.n_layers or self.pool.width == 0:
            return
        predicted = take_ids(self.backend, predicted)
        self.transfers.pump()
        self._look_ahead(layer, _rows(self.backend.host(predicted)[0]))

    def _look_ahead(self, layer: int, predicted: np.ndarray) -> None:
        work = self._sort(self._journal.prefetch(layer, predicted), layer)
        self._fill_initial(work.initial)
        loads = work.loads
        chunk = self.spec_chunk or max(1, len(loads))
        for first in range(0, len(loads), chunk):
            if self._load(loads[first : first + chunk], layer, "ahead", first, loads) is not loads:
                break  # what is left was refused, or given up, with this batch
        self._note(layer)

    def _note(self, layer: int) -> None:
        if self.plan_hash:
            self.plan_hash.add(self._plan, self._step, layer)

    def _sort(self, plan: Plan, layer: int, ids: np.ndarray | None = None) -> Sorted:
        self._plan = plan
        return self.dispatcher.desk.sort(plan, layer, ids)

    def _fill_initial(self, loads: list[Load]) -> None:
        """Copies of rows that the plan has as resident already: it knows no way to go on without them."""
        try:
            self.transfers.fill(loads)
        except (CopyRefused, CopyDoubtful) as failed:
            raise BrokenOff(f"rows that are to be resident from now on could not be copied: {failed}") from failed

    def _load(self, loads: list[Load], layer: int, phase: str, first: int, all_loads: list[Load]) -> list[Load]:
        """Starts one batch of copies, the loads from number `first` of the phase on.

        Returns `all_loads`; or, where the batch failed, what is left of them once the pool knows.
        """
        try:
            (self.transfers.ahead if phase == "ahead" else self.transfers.fill)(loads)
        except CopyRefused:
            self._fail(layer, phase, first, "refused")
            return self._sort(self._journal.again(first), layer).loads
        except CopyDoubtful:
            self._fail(layer, phase, first, "doubtful")
            for load in all_loads[first:]:
                if self.pool.slots_of(load.layer).get(load.expert) == load.slot:
                    self._journal.give_up(load.layer, load.expert)
            return all_loads[:first]
        return all_loads

    def _fail(self, layer: int, phase: str, first: int, kind: str) -> None:
        self._say(f"{phase} copies {kind}")
        self.failures.append({"step": self._step, "layer": layer, "phase": phase, "load": first, "kind": kind})

    def _say(self, what: str) -> None:
        if not self._said:
            _LOG.warning("step %d, layer %d: %s; more of it is counted, not said", self._step, self._last_layer, what)
        self._said = True

    # --- the end ---

    def reset(self) -> None:
        """Empties the pools and forgets their history, as a replay with `reset=request` does between requests."""
        self.transfers.forget()
        self.synchronize()
        self._journal.reset()

    def keep_steps(self, count: int) -> None:
        """After a failure: pool, failures and plan hash are those of the first `count` steps, all but perhaps the last.

        Waits for the cold work that is left. The device is not asked: there may be none any more.
        """
        self.dispatcher.leave()
        self._journal.take_back(step=self._step >= count)
        if self._step < count:
            return
        if self.plan_hash:
            self.plan_hash.take_back(self._step)
        self.failures = [failure for failure in self.failures if failure["step"] < count]
        self.ticks = None if self.ticks is None else [tick for tick in self.ticks if tick.step < count]
        self._step, self._last_layer = count - 1, self.pool.n_layers

    def synchronize(self) -> None:
        """Waits until everything that was started, or waits to be, is done. Raises as `join`."""
        self.join()
        self.transfers.drain()

    def close(self) -> None:
        """Waits for what runs, ends threads and gives memory back. The pool, store and chain stay."""
        self.dispatcher.leave()
        self._closing()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rows(values: np.ndarray) -> np.ndarray:
    """One row a token, C-contiguous."""
    return values if values.ndim == 2 and values.flags.c_contiguous else np.ascontiguousarray(np.atleast_2d(values))
