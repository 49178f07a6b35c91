"""One set of pools being driven through the pieces of a trace, layers in parallel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotwise.policies import Pool
from slotwise.policies.bulk_lru import LruWindow
from slotwise.policies.own import blame
from slotwise.traces import Block

from .crew import Crew
from .failures import Failure, by_pool

NO_IDS = np.zeros((0, 0, 0), np.uint8)
NO_FUTURE = np.zeros((0, 0, 0), np.int64)
NO_CLOCKS = np.zeros((0, 0), np.int64)
_NO_LOG = np.zeros((0, 4), np.int32)
_NO_FAILURES = np.zeros((0, 5), np.int64)


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive steps of a block, few enough counter cells for one call.

    `starts` [steps + 1] rows of the block; `cells` [steps + 1] counter cells from 0, the first that of the step before;
    `labels` [n_cells, 3] (phase, request, window) of each cell; `resets` [steps]; `clocks` [steps, layers] or empty;
    `ids` [layers, rows, recorded] predictions and `future` like the experts, both of the whole block, or empty.
    """

    block: Block
    first_step: int
    starts: np.ndarray
    cells: np.ndarray
    labels: np.ndarray
    resets: np.ndarray
    clocks: np.ndarray
    ids: np.ndarray
    future: np.ndarray


class Lane:
    """Pools, how they are driven, and the hash of what they decide. `width` 0 drives them without look-ahead."""

    def __init__(
        self,
        pool: Pool,
        *,
        width: int,
        horizon: int,
        hashed: bool = False,
        lists: bool = False,
        failures: Sequence[Failure] = (),
    ):
        self.pool, self.width, self.horizon, self.hashed = pool, width, horizon, hashed
        self.lists = [LruWindow(pool.n_experts, slots) for slots in pool.slots] if lists else []
        if not lists:
            pool.open()
        self._failures = by_pool(failures, pool.n_pools, pool.n_layers, horizon) if failures else None
        self._hashes = [hashlib.sha256() for _ in range(pool.n_pools)]

    def know(self, first_demand: np.ndarray) -> None:
        """Tells policies that need the future when each expert [layers, experts] is demanded first."""
        for pool in range(self.pool.n_pools):
            known = first_demand.ravel() if self.pool.n_pools == 1 else first_demand[pool]
            self.pool.buffer.field(pool, "next")[:] = known

    def advance(self, piece: Piece, crew: Crew, told: np.ndarray = NO_IDS, ahead: np.ndarray = NO_IDS) -> np.ndarray:
        """Drives all pools through the piece; returns its counters [cells, layers, counters].

        `told`, like the block's experts, and `ahead`, like the piece's predictions, receive at the first mention what
        became of a demand (1 + its verb: 1 is a hit), and of a prediction that was loaded.
        """
        counts = np.zeros((len(piece.labels), *self.pool.counters_shape), np.int64)
        if self.lists:

            def one(pool: int) -> None:
                experts = piece.block.experts
                self.lists[pool].replay(pool, piece.first_step, piece.starts, piece.cells, experts, counts, told)
        else:

            def one(pool: int) -> None:
                self._one(pool, piece, counts, told, ahead)

        try:
            crew.each(one, self.pool.n_pools)
        except Exception as error:  # a user's policy may raise anything
            blame(self.pool.spec, error)
            raise
        return counts

    def _one(self, pool: int, piece: Piece, counts: np.ndarray, told: np.ndarray, ahead: np.ndarray) -> None:
        ids = piece.ids if self.width else NO_IDS.astype(piece.block.experts.dtype)
        log = self._log(piece) if self.hashed else _NO_LOG
        written = self.pool.kernel.replay_block(
            self.pool.buffer.address, pool, piece.first_step, piece.block.n_rows, piece.starts, piece.cells,
            piece.resets, piece.block.experts, ids, ids.shape[2], min(self.width, ids.shape[2]), self.horizon,
            piece.clocks, piece.future, counts, told, ahead, log,
            _NO_FAILURES if self._failures is None else self._failures[pool],
        )  # fmt: skip
        if self.hashed:
            self._hashes[pool].update(log[:written].astype("<i4", copy=False).tobytes())

    def _log(self, piece: Piece) -> np.ndarray:
        """Room for every decision of one pool in the piece: at most two per demand and per prediction, and a trim."""
        rows = int(piece.starts[-1] - piece.starts[0])
        layers = piece.block.experts.shape[0] if self.pool.n_pools == 1 else 1
        decisions = 2 * rows * layers * (piece.block.experts.shape[2] + self.width)
        return np.zeros((decisions + 2 * self.pool.buffer.n_keys, 4), np.int32)

    def finish(self, last_step: int) -> np.ndarray:
        """Counters [1, layers, counters] of what is there after the last step."""
        counts = np.zeros((1, *self.pool.counters_shape), np.int64)
        for pool in range(self.pool.n_pools):
            if self.lists:
                self.lists[pool].finish(pool, counts)
            else:
                self.pool.kernel.finish(self.pool.buffer.address, pool, last_step, 0, counts)
        return counts

    def digest(self) -> str | None:
        """SHA-256 over the pools' digests, in order of layers."""
        return hashlib.sha256(b"".join(h.digest() for h in self._hashes)).hexdigest() if self.hashed else None
