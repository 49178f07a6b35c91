"""Knowledge of the future for `belady` and `opt`: when each expert is demanded next, seen from every row."""

from __future__ import annotations

import numpy as np
from numba import njit

from slotwise.policies.layout import FOREVER

OFFSET_BITS = 24  # a sequential position is the tick and, below it, the place inside the step


@njit(nogil=True, cache=True)
def look_back(experts, starts, first_step, sequential, upcoming, out):
    """Fills `out` [layers, rows, top_k] for one block, walking backwards; blocks are given last to first.

    `upcoming` [layers, n_experts] holds the next demand of each expert after the block and, on return, from its start:
    a tick number, or a position under the sequential contract.
    """
    n_layers, _, top_k = experts.shape
    n_experts = upcoming.shape[1]
    for layer in range(n_layers):
        for i in range(starts.size - 2, -1, -1):
            tick = (first_step + i) * n_layers + layer
            for row in range(starts[i], starts[i + 1]):
                for rank in range(top_k):
                    e = experts[layer, row, rank]
                    if e < n_experts:
                        out[layer, row, rank] = upcoming[layer, e]
            place = (starts[i + 1] - starts[i]) * top_k
            for row in range(starts[i + 1] - 1, starts[i] - 1, -1):
                for rank in range(top_k - 1, -1, -1):
                    place -= 1
                    e = experts[layer, row, rank]
                    if e < n_experts:
                        upcoming[layer, e] = (tick << OFFSET_BITS) + place if sequential else tick


def future_of(blocks: list, n_experts: int, sequential: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """(per block, like its experts: when each is demanded next; [n_layers, n_experts]: the first demand of each)."""
    n_layers = blocks[0].experts.shape[0] if blocks else 0
    upcoming = np.full((n_layers, n_experts), FOREVER, np.int64)
    tables = [np.full(block.experts.shape, FOREVER, np.int64) for block in blocks]
    for block, table in zip(reversed(blocks), reversed(tables), strict=True):
        look_back(block.experts, block.starts, block.first_step, sequential, upcoming, table)
    return tables, upcoming


@njit(nogil=True, cache=True)
def access_clocks(experts, starts, n_experts, clock):
    """Running number of distinct demands [steps, layers], each including its own tick; continues from `clock`."""
    n_layers, _, top_k = experts.shape
    out = np.empty((starts.size - 1, n_layers), np.int64)
    seen = np.full(n_experts, -1, np.int64)
    stamp = 0
    for i in range(starts.size - 1):
        for layer in range(n_layers):
            stamp += 1
            for row in range(starts[i], starts[i + 1]):
                for rank in range(top_k):
                    e = experts[layer, row, rank]
                    if e < n_experts and seen[e] != stamp:
                        seen[e] = stamp
                        clock += 1
            out[i, layer] = clock
    return out
