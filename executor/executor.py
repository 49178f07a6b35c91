"""The executor: carries out what a pool decides. Hits run where they lie, misses on the CPU or after a copy."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from slotwise.policies import Plan, Pool

from .backend import Backend, Copy, Rows
from .cold import ColdChain
from .dispatch import Dispatch, Load, Pairs, read_plan
from .errors import BadExecutor, CopyDoubtful, CopyRefused
from .journal import Journal
from .plan_hash import PlanHash
from .slots import Slots
from .store import HostStore

HEADROOM_BYTES = 900 << 20
_LOG = logging.getLogger(__name__)


class Executor:
    """One MoE model's experts on one device. Also a context manager.

    pool: decides, by the very functions that a replay calls. store: the rows in host memory. chain: the opened cold
    chain. top_k: experts per token. horizon: how many layers ahead `forward`'s predictions are.
    overlap: cold and hot chain at the same time, or one after the other; neither the plan nor a byte of the output
    depends on it.
    miss: `cpu` computes misses on the CPU; `fetch` copies their rows and computes them on the device; `split` does the
    latter with the first `split_share` of them. late: a planned hit whose copy has not landed `wait`s for it, or is
    computed `cold` and counted `diverted`.
    headroom_bytes: device memory to leave free. staging: rows for steps that are streamed, default 2 * top_k.
    spec_chunk: at most so many speculative rows in one batch of copies; None makes one batch a tick.
    max_tokens: the most tokens of a step. plan_hash: keep the hash of all plans, as `replay --plan-hash` prints it.
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
        overlap: bool = True,
        miss: Literal["cpu", "fetch", "split"] = "cpu",
        split_share: float = 0.5,
        late: Literal["wait", "cold"] = "wait",
        headroom_bytes: int = HEADROOM_BYTES,
        staging: int | None = None,
        spec_chunk: int | None = None,
        max_tokens: int = 2048,
        plan_hash: bool = False,
    ):
        _check(pool, store, miss=miss, late=late, split_share=split_share, spec_chunk=spec_chunk)
        self.pool, self.store, self.backend, self.chain = pool, store, backend, chain
        self.top_k, self.horizon, self.overlap, self.miss, self.late = top_k, horizon, overlap, miss, late
        self.split_share, self.spec_chunk, self.max_tokens = split_share, spec_chunk, max_tokens
        self.batch_gate = pool.batch_gate
        outside = min(store.n_experts, max(1, self.batch_gate) * top_k) if miss != "cpu" else 0
        streams = pool.prefill == "stream" and miss != "cpu"
        self.slots = Slots(
            pool, store, backend, scratch=outside, headroom_bytes=headroom_bytes,
            staging=(2 * top_k if staging is None else staging) if streams else 0,
        )  # fmt: skip
        backend.prepare(store.layouts, max_tokens * top_k)
        known = {layout: chain.layer(layout) for layout in dict.fromkeys(store.layouts)}
        self._layers = [known[layout] for layout in store.layouts]
        self._wide = pool.scope == "global"
        self._copying: dict[
            tuple[int, int], Any
        ] = {}  # (pool, slot) -> ticket of the copy into it, until it has landed
        self._readers: dict[int, tuple[int, Any]] = {}  # address -> (number, ticket) of the hot work that last read it
        self._number = 0
        self._journal = Journal(pool)
        self.plan_hash = PlanHash(pool.n_pools, pool.n_experts) if plan_hash else None
        self._step, self._said = -1, False
        self._last_layer = pool.n_layers
        self.failures: list[dict[str, Any]] = []  # as `replay --failures` takes them
        self.diverted = self.n_copies = self.n_batches = self.bytes_copied = 0
        self._closing = weakref.finalize(self, backend.close)
        pool.open()

    def forward(self, layer: int, x: Any, ids: Any, weights: Any, predicted: Any = None) -> Any:
        """y [n, hidden] of one layer: per token its experts' outputs times their weights, summed in router order.

        x: [n, hidden] float32. ids: [n, top_k], best first, absent ones as in a trace. weights: [n, top_k] float32.
        predicted: [n, P] experts expected at `layer + horizon`, offered after this layer's demand.
        A call whose layer is not above the last one begins the next step. Raises BadExecutor or BadPolicy.
        """
        ids = np.atleast_2d(self.backend.host(ids))
        if ids.shape[0] > self.max_tokens:
            raise BadExecutor(f"a step of {ids.shape[0]} tokens: at most max_tokens={self.max_tokens}")
        self._step += layer <= self._last_layer
        self._last_layer = layer
        work = self._read(self._journal.step(layer, ids), layer)
        if work.initial:
            self._fill(work.initial)
        pairs = Pairs(ids, self.pool.n_experts)
        tick = self.backend.begin(layer, x, pairs.count)
        self._compute(layer, tick, pairs, work)
        self._note(layer)
        if predicted is not None:
            self.prefetch(layer + self.horizon, predicted)
        return self.backend.merge(tick, pairs.places, weights)

    def prefetch(self, layer: int, predicted: Any) -> None:
        """Offers predictions for `layer` now and starts the copies granted. Layers past the last are skipped."""
        if layer >= self.pool.n_layers:
            return
        predicted = np.atleast_2d(self.backend.host(predicted))
        work = self._read(self._journal.prefetch(layer, predicted), layer)
        if work.initial:
            self._fill(work.initial)
        loads = work.loads
        chunk = self.spec_chunk or max(1, len(loads))
        for first in range(0, len(loads), chunk):
            if self._load(loads[first : first + chunk], layer, "ahead", first, loads) is not loads:
                break  # what is left was refused, or given up, with this batch
        self._note(layer)

    def _note(self, layer: int) -> None:
        if self.plan_hash:
            self.plan_hash.add(self._plan, self._step, layer)

    def _read(self, plan: Plan, layer: int) -> Dispatch:
        self._plan = plan
        return read_plan(plan, layer, self._wide, self.pool.n_experts)

    # --- one tick ---

    def _compute(self, layer: int, tick: Any, pairs: Pairs, work: Dispatch) -> None:
        pool = 0 if self._wide else layer
        hot, cold, after = [], [], []
        for expert, slot in work.hits:
            copying = self._ticket(pool, slot)
            if copying is not None and self.late == "cold":
                cold.append(expert)
                self.diverted += 1
                continue
            if copying is not None:
                after.append(copying)
            hot.append((expert, self.slots.address(pool, slot)))
        n_fetched = {"cpu": 0, "fetch": len(work.misses), "split": round(self.split_share * len(work.misses))}[
            self.miss
        ]
        cold += [expert for expert, _ in work.misses[n_fetched:]]
        job = None
        if cold and self.overlap:
            job = self._cold(layer, tick, pairs, cold)
        if hot:
            self._hot(tick, pairs, hot, after)
        if not self.overlap:
            self.backend.settle(tick)
            if cold:
                job = self._cold(layer, tick, pairs, cold)
                self.chain.wait(job)
        loads = self._load(work.loads, layer, "demand", 0, work.loads)
        self._fetch(layer, tick, pairs, work.misses[:n_fetched], loads, work.streamed)
        if job is not None:
            self.chain.wait(job)

    def _cold(self, layer: int, tick: Any, pairs: Pairs, experts: list[int]) -> int:
        addresses = self.store.addresses[layer]
        work = pairs.take(experts, [addresses[expert] for expert in experts])
        x, out = self.backend.inputs(tick)
        return self.chain.submit(
            self._layers[layer],
            work.rows,
            work.offsets,
            work.tokens,
            x,
            out[work.first : work.first + len(work.tokens)],
        )

    def _hot(self, tick: Any, pairs: Pairs, rows: list[tuple[int, int]], after: Sequence[Any]) -> None:
        work: Rows = pairs.take([expert for expert, _ in rows], [address for _, address in rows])
        ticket = self.backend.hot(tick, work, after)
        self._number += 1
        for _, address in rows:
            self._readers[address] = (self._number, ticket)

    def _fetch(
        self, layer: int, tick: Any, pairs: Pairs, misses: list[tuple[int, int]], loads: list[Load], streamed: bool
    ) -> None:
        """Missed rows on the device: from the slot that holds them, or by rows outside the pool, in waves."""
        if not misses:
            return
        pool = 0 if self._wide else layer
        filled = {load.slot: load for load in loads}  # the last load into a slot is the one that stays
        slots = self.pool.slots_of(layer) if self.failures else None  # what was refused or given up has none
        placed, outside, after = [], [], []
        for expert, slot in misses:
            there = slot >= 0 and (slots is None or slots.get(expert) == slot)
            if there and (slot not in filled or filled[slot][:2] == (layer, expert)):
                placed.append((expert, self.slots.address(pool, slot)))
                copying = self._ticket(pool, slot)
                if copying is not None and copying not in after:
                    after.append(copying)
            else:
                outside.append(expert)
        if placed:
            self._hot(tick, pairs, placed, after)
        rows = self.slots.staging if streamed else self.slots.scratch
        addresses, n_bytes = self.store.addresses[layer], self.store.layouts[layer].row_bytes
        for i in range(0, len(outside), max(1, len(rows))):
            wave = list(zip(outside[i : i + len(rows)], rows, strict=False))
            try:
                ticket = self._copy([Copy(addresses[expert], row, n_bytes) for expert, row in wave])
            except (CopyRefused, CopyDoubtful) as failed:  # no plan hangs on these rows: the CPU computes them
                self._say(f"rows beside the slots: {failed}")
                self.diverted += len(wave)
                self.chain.wait(self._cold(layer, tick, pairs, [expert for expert, _ in wave]))
            else:
                self._hot(tick, pairs, wave, [ticket])

    def _load(self, loads: list[Load], layer: int, phase: str, first: int, all_loads: list[Load]) -> list[Load]:
        """Starts one batch of copies, the loads from number `first` of the phase on.

        Returns `all_loads`; or, where the batch failed, what is left of them once the pool knows.
        """
        if not loads:
            return all_loads
        try:
            self._fill(loads)
        except CopyRefused:
            self._fail(layer, phase, first, "refused")
            return self._read(self._journal.again(first), layer).loads
        except CopyDoubtful:
            self._fail(layer, phase, first, "doubtful")
            for load in all_loads[first:]:
                if self.pool.slots_of(load.layer).get(load.expert) == load.slot:
                    self._journal.give_up(load.layer, load.expert)
            return all_loads[:first]
        return all_loads

    def _fill(self, loads: list[Load]) -> None:
        """Starts one batch of copies into slots. Of several loads into one slot, the last is the one that stays."""
        copies = {
            (pool, slot): Copy(
                self.store.addresses[layer][expert], self.slots.address(pool, slot), self.store.layouts[layer].row_bytes
            )
            for layer, expert, pool, slot in loads
        }
        ticket = self._copy(list(copies.values()))
        for place in copies:
            self._copying[place] = ticket

    def _fail(self, layer: int, phase: str, first: int, kind: str) -> None:
        self._say(f"{phase} copies {kind}")
        self.failures.append({"step": self._step, "layer": layer, "phase": phase, "load": first, "kind": kind})

    def _say(self, what: str) -> None:
        if not self._said:
            _LOG.warning("step %d, layer %d: %s; more of it is counted, not said", self._step, self._last_layer, what)
        self._said = True

    def _ticket(self, pool: int, slot: int) -> Any:
        """The copy that is under way into a slot; None once it has landed."""
        ticket = self._copying.get((pool, slot))
        if ticket is not None and self.backend.landed(ticket):
            del self._copying[pool, slot]
            return None
        return ticket

    def _copy(self, copies: list[Copy]) -> Any:
        """One batch, behind the hot work that last read any of its targets."""
        readers = [self._readers[copy.target] for copy in copies if copy.target in self._readers]
        ticket = self.backend.copy(copies, max(readers)[1] if readers else None)
        for copy in copies:
            self._readers.pop(copy.target, None)
        self.n_batches += 1
        self.n_copies += len(copies)
        self.bytes_copied += sum(copy.n_bytes for copy in copies)
        return ticket

    # --- the end ---

    def synchronize(self) -> None:
        """Waits until everything that was started is done."""
        self.backend.synchronize()

    def audit(self) -> None:
        """Checks that every slot holds the row that its pool says. Raises RuntimeError with the first that does not."""
        self.synchronize()
        for layer in range(self.pool.n_layers):
            pool = 0 if self._wide else layer
            for expert, slot in self.pool.slots_of(layer).items():
                row = self.store.row(layer, expert)
                if not np.array_equal(self.backend.read(self.slots.address(pool, slot), row.size), row):
                    raise RuntimeError(f"layer {layer}, slot {slot}: not the bytes of expert {expert}")

    def close(self) -> None:
        """Waits for what runs, ends threads and gives memory back. The pool, store and chain stay."""
        self._closing()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(pool: Pool, store: HostStore, *, miss: str, late: str, split_share: float, spec_chunk: int | None) -> None:
    """Raises BadExecutor for what cannot be carried out."""
    if (pool.n_layers, pool.n_experts) != (store.n_layers, store.n_experts):
        raise BadExecutor(
            f"the pool has {pool.n_layers} layers of {pool.n_experts} experts, the store {store.n_layers} of "
            f"{store.n_experts}"
        )
    if not pool.full:
        raise BadExecutor("the pool leaves out what a failed copy needs: open it with Pool(..., full=True)")
    if pool.capacity_bytes is not None:
        raise BadExecutor("a pool of bytes over unequal rows has no slots to copy into: give slots")
    if pool.spec.policy.needs_future:
        raise BadExecutor(f"{pool.spec}: it needs the future, which a run does not know; replay it instead")
    if miss not in ("cpu", "fetch", "split"):
        raise BadExecutor(f"miss={miss!r}: cpu, fetch or split")
    if late not in ("wait", "cold"):
        raise BadExecutor(f"late={late!r}: wait or cold")
    if not 0 <= split_share <= 1:
        raise BadExecutor(f"split_share={split_share}: a share of the misses, from 0 to 1")
    if spec_chunk is not None and spec_chunk < 1:
        raise BadExecutor(f"spec_chunk={spec_chunk}: rows in a batch, at least 1")
