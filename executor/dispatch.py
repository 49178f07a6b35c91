"""Which chain computes what a layer demands: hits the hot one, misses the cold one, fetched rows the hot one again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backend import Backend, Rows
from .cold import ColdChain
from .errors import CopyDoubtful, CopyRefused, WorkerFailed
from .merge import ABSENT, COLD, HOT
from .overlap import OverlapGate
from .slots import Slots
from .sort import Chosen, Desk, Load, Sorted
from .store import HostStore
from .transfers import WAITING, Transfers

_LOG = logging.getLogger(__name__)
Places = list[tuple[int, int]]  # (expert, slot)


class Dispatcher:
    """Starts the hot and the cold work of one tick after the other. It changes no plan.

    overlap, miss, split_share, late: as `Executor` takes them; steps of more than `batch_gate` tokens overlap nothing.
    `diverted` counts rows of the device that the CPU computed; `bytes_hot` and `bytes_cold` are what the chains read.
    """

    def __init__(
        self,
        store: HostStore,
        slots: Slots,
        backend: Backend,
        chain: ColdChain,
        transfers: Transfers,
        *,
        wide: bool,
        overlap: bool | OverlapGate,
        batch_gate: int,
        miss: str,
        split_share: float,
        late: str,
    ):
        self._store, self._slots, self._backend, self._chain, self._transfers = store, slots, backend, chain, transfers
        self._wide, self._overlap, self._late, self._said = wide, overlap, late, False
        self._batch_gate = batch_gate
        self.overlapped = self.serial = 0  # ticks with work for both chains, at once and one after the other
        self.miss, self._share = miss, {"cpu": 0.0, "fetch": 1.0, "split": split_share}[miss]
        known = {layout: chain.layer(layout) for layout in dict.fromkeys(store.layouts)}
        self._layers = [known[layout] for layout in store.layouts]
        self._host = [(rows[0], stride) for rows, stride in zip(store.addresses, store.strides, strict=True)]
        pools = [0 if wide else layer for layer in range(store.n_layers)]
        device = [(slots.bases[pool], slots.strides[pool]) for pool in pools]
        self.desk = Desk(store.n_experts, device, self._host, wide=wide)
        self._jobs: list[int] = []  # of the cold chain, at this tick
        self.counted = 0  # cold jobs that the backend's counter counts, of all ticks so far
        self.diverted = self.bytes_hot = self.bytes_cold = 0

    def start(self, layer: int, tick: Any, ids: np.ndarray, work: Sorted) -> Places:
        """Starts all that can be computed as things are, and returns the misses that are to be fetched.

        The cold chain comes first: to submit takes 2 us, and then neither queues behind the other.
        """
        fetched = round(self._share * work.n_misses) if self._share else 0
        late = self._transfers.busy() and self._transfers.concerns(0 if self._wide else layer, work.slots_hit)
        if fetched or late:
            places, hot, cold, after = self._divide(layer, ids, work, fetched)
        else:
            places, hot, cold, after = [], work.hot, work.cold, ()
        overlap, n_hot, n_cold = self._overlap, len(hot.rows), len(cold.rows)
        if not isinstance(overlap, bool):
            overlap = overlap(layer, len(ids), n_hot, n_cold, len(work.loads))
        overlap = overlap and len(ids) <= self._batch_gate
        if n_hot and n_cold:
            self.overlapped, self.serial = self.overlapped + overlap, self.serial + (not overlap)
        if overlap and len(cold.rows):
            self._cold(layer, tick, cold)
        if len(hot.rows):
            self._hot(layer, tick, hot, after)
        if not overlap:
            self._backend.settle(tick)
            if len(cold.rows):
                self._chain.wait(self._cold(layer, tick, cold))
        return places

    def _divide(
        self, layer: int, ids: np.ndarray, work: Sorted, fetched: int
    ) -> tuple[Places, Rows, Rows, Sequence[Any]]:
        """Misses to fetch, work for both chains, and the copies that the hot one waits for."""
        places = work.misses.part(slice(fetched)).places()
        hits, cold, after = work.hits, work.misses.part(slice(fetched, None)), ()
        if work.n_hits and self._transfers.busy():
            hits, late, after = self._landed(layer, hits)
            cold = Chosen(*map(np.concatenate, zip(late, cold, strict=True)))
        work.chains[:] = ABSENT
        pair_up = self.desk.pair_up
        of_cold = pair_up(ids, cold.experts, cold.rows, work.chains, COLD)
        return places, pair_up(ids, hits.experts, hits.rows, work.chains, HOT), of_cold, after

    def fetch(
        self,
        layer: int,
        tick: Any,
        ids: np.ndarray,
        chains: NDArray[np.uint8],
        misses: Places,
        loads: list[Load],
        resident: dict[int, int] | None,
        streamed: bool,
    ) -> None:
        """Misses on the device: from the slot that holds them, or by rows outside the pool, in waves.

        loads: those of the plan that were started. resident: who has which slot, where not all of them were.
        """
        pool = 0 if self._wide else layer
        filled = {load.slot: load for load in loads}  # the last load into a slot is the one that stays
        placed, outside, after = [], [], []
        self._transfers.hurry((pool, slot) for _, slot in misses)
        for expert, slot in misses:
            there = slot >= 0 and (resident is None or resident.get(expert) == slot)
            there = there and (slot not in filled or filled[slot][:2] == (layer, expert))
            copying = self._transfers.ticket(pool, slot) if there else WAITING
            if copying is WAITING:
                outside.append(expert)
                continue
            placed.append((expert, slot, self._slots.address(pool, slot)))
            if copying is not None and copying not in after:
                after.append(copying)
        pair_up = self.desk.pair_up
        if placed:
            ready = _chosen(placed)
            self._hot(layer, tick, pair_up(ids, ready.experts, ready.rows, chains, HOT), after)
        rows = self._slots.staging if streamed else self._slots.scratch
        for i in range(0, len(outside), max(1, len(rows))):
            wave = _chosen([(expert, -1, row) for expert, row in zip(outside[i : i + len(rows)], rows, strict=False)])
            copies = [
                self._transfers.copy_of(layer, expert, row)
                for expert, row in zip(wave.experts.tolist(), wave.rows.tolist(), strict=True)
            ]
            try:
                ticket = self._transfers.start(copies)
            except (CopyRefused, CopyDoubtful) as failed:  # no plan hangs on these rows: the CPU computes them
                if not self._said:
                    _LOG.warning("layer %d, rows beside the slots: %s; more of it is counted, not said", layer, failed)
                self._said = True
                self.diverted += len(copies)
                wave = self._at_host(layer, wave)
                self._cold(layer, tick, pair_up(ids, wave.experts, wave.rows, chains, COLD))
            else:
                self._hot(layer, tick, pair_up(ids, wave.experts, wave.rows, chains, HOT), [ticket])

    def wait(self) -> list[int]:
        """Waits for the cold work of the last tick, and returns its jobs. Raises WorkerFailed."""
        jobs = list(self._jobs)
        while self._jobs:
            self._chain.wait(self._jobs.pop(0))
        return jobs

    def leave(self) -> None:
        """Waits for cold work that a tick left behind when it failed: it reads rows, and writes what nobody wants."""
        while self._jobs:
            with suppress(WorkerFailed):  # the tick was given up for one failure already
                self._chain.wait(self._jobs.pop())

    def _landed(self, layer: int, hits: Chosen) -> tuple[Chosen, Chosen, list[Any]]:
        """Hits for the device, hits for the CPU, and the copies that the former wait for."""
        pool = 0 if self._wide else layer
        here, late, after = [], [], []
        if self._late == "wait":
            self._transfers.hurry((pool, slot) for slot in hits.slots.tolist())
        for at, slot in enumerate(hits.slots.tolist()):
            copying = self._transfers.ticket(pool, slot)
            if copying is WAITING or (copying is not None and self._late == "cold"):
                late.append(at)
                continue
            here.append(at)
            if copying is not None and copying not in after:
                after.append(copying)
        self.diverted += len(late)
        return (hits.part(here), self._at_host(layer, hits.part(late)), after) if late else (hits, _NONE, after)

    def _at_host(self, layer: int, chosen: Chosen) -> Chosen:
        """The same experts, read where all rows are."""
        first, stride = self._host[layer]
        return chosen._replace(rows=first + stride * chosen.experts)

    def _cold(self, layer: int, tick: Any, work: Rows) -> int:
        x, out = self._backend.inputs(tick)
        counter = self._backend.counter
        job = self._chain.submit(
            self._layers[layer], work.rows, work.offsets, work.tokens, x, out, work.places, counter
        )
        self._jobs.append(job)
        self.counted += 1
        self.bytes_cold += len(work.rows) * self._store.layouts[layer].row_bytes
        return job

    def _hot(self, layer: int, tick: Any, work: Rows, after: Sequence[Any]) -> None:
        ticket = self._backend.hot(tick, work, after)
        self._transfers.reads(work.rows.tolist(), ticket)
        self.bytes_hot += len(work.rows) * self._store.layouts[layer].row_bytes


def _chosen(rows: list[tuple[int, int, int]]) -> Chosen:
    return Chosen(*np.array(rows, np.int64).reshape(-1, 3).T.copy())


_NONE = _chosen([])
