"""Counts of a replay, sorted as it runs: by layer, by request and along time, each split by phase."""

from __future__ import annotations

import numpy as np

from slotwise.policies.layout import COUNTERS

EXTRA = ("bytes_loaded", "bytes_moved", "pollution")
NAMES = (*COUNTERS, *EXTRA)
STATE = ("residents", "in_flight")  # not events: reported whole whatever the phase
_AT = {name: i for i, name in enumerate(NAMES)}
# Beside loads, by `miss`: a row that the CPU computes moves nowhere, be it streamed or not.
MOVED = {"cpu": (), "fetch": ("streamed", "gated", "bypassed", "throttled", "failed_demand")}


class Tally:
    """Adds the counter cells of blocks. A cell is a run of steps with one (phase, request, window).

    `by_layer` [2 phases, n_layers, NAMES]; `along` [2 phases, n_windows, NAMES and tokens]. Only accepted tokens of
    verify steps count.
    """

    def __init__(self, *, n_layers: int, n_windows: int, row_bytes: np.ndarray, miss: str):
        self._row_bytes, self._moved = row_bytes, [_AT[name] for name in ("fills", *MOVED[miss])]
        self.by_layer = np.zeros((2, n_layers, len(NAMES)), np.int64)
        self.along = np.zeros((2, n_windows, len(NAMES) + 1), np.int64)
        self._requests: list[tuple[np.ndarray, np.ndarray]] = []  # of each call: numbers, and counts as `along`

    def add(
        self, cells: np.ndarray, labels: np.ndarray, tokens: np.ndarray, pollution: np.ndarray | None = None
    ) -> None:
        """`cells` [n, n_layers, n_counters]; `labels` [n, 3] = (phase, request, window); `tokens` [n]; `pollution`
        [n, n_layers].
        """
        phases, requests, windows = labels.T
        turns = np.flatnonzero(phases[1:] != phases[:-1]) + 1
        layers = np.add.reduceat(cells, np.concatenate(([0], turns)))  # of whole stretches: cell by cell is slower
        for phase in (0, 1):
            self.by_layer[phase, :, : len(COUNTERS)] += layers[int(phase != phases[0]) :: 2].sum(0)
        flat = np.zeros((len(cells), len(NAMES) + 1), np.int64)
        flat[:, : len(COUNTERS)] = cells.sum(1)
        flat[:, _AT["bytes_loaded"]] = cells[:, :, _AT["fills"]] @ self._row_bytes
        flat[:, _AT["bytes_moved"]] = cells[:, :, self._moved].sum(2) @ self._row_bytes
        if pollution is not None:
            np.add.at(self.by_layer[:, :, _AT["pollution"]], phases, pollution)
            flat[:, _AT["pollution"]] = pollution.sum(1)
        flat[:, -1] = tokens
        np.add.at(self.along, (phases, windows), flat)
        found, at = np.unique(requests, return_inverse=True)
        counts = np.zeros((2, len(found), flat.shape[1]), np.int64)
        np.add.at(counts, (phases, at), flat)
        self._requests.append((found, counts))

    def finish(self) -> None:
        """Fills in the bytes of `by_layer`, once everything was added."""
        self.by_layer[:, :, _AT["bytes_loaded"]] = self.by_layer[:, :, _AT["fills"]] * self._row_bytes
        self.by_layer[:, :, _AT["bytes_moved"]] = self.by_layer[:, :, self._moved].sum(2) * self._row_bytes

    def by_request(self) -> tuple[list[int], np.ndarray]:
        """Numbers in rising order, and [2 phases, requests, NAMES and tokens]."""
        numbers = [part for part, _ in self._requests] or [np.zeros(0, np.int64)]
        found, at = np.unique(np.concatenate(numbers), return_inverse=True)
        counts = np.zeros((2, len(found), len(NAMES) + 1), np.int64)
        first = 0
        for part, count in self._requests:
            counts[:, at[first : first + len(part)]] += count
            first += len(part)
        return found.tolist(), counts


def named(counts: np.ndarray, hidden: set[str]) -> dict:
    """Counts [..., NAMES or more] as {name: number or list}; hidden ones (unknown bytes, no shadow run) are None."""
    values = dict(zip(NAMES, np.moveaxis(counts, -1, 0).tolist(), strict=False))
    return values | dict.fromkeys(hidden)
