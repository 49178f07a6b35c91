"""Counts of a replay, sorted as it runs: by layer, by request and along time, each split by phase."""

from __future__ import annotations

import numpy as np

from slotwise.policies.layout import COUNTERS

EXTRA = ("bytes_loaded", "bytes_moved", "pollution")
NAMES = (*COUNTERS, *EXTRA)
STATE = ("residents", "in_flight")  # not events: reported whole whatever the phase
_AT = {name: i for i, name in enumerate(NAMES)}
MOVED = {"cpu": ("streamed",), "fetch": ("streamed", "gated", "bypassed", "throttled", "failed_demand")}


class Tally:
    """Adds the counter cells of blocks. A cell is a run of steps with one (phase, request, window)."""

    def __init__(self, *, n_layers: int, n_windows: int, row_bytes: np.ndarray, miss: str):
        self._row_bytes, self._moved = row_bytes, [_AT[name] for name in MOVED[miss]]
        self.by_layer = np.zeros((2, n_layers, len(NAMES)), np.int64)
        self.along = np.zeros((2, n_windows, len(NAMES)), np.int64)
        self.by_request: dict[int, np.ndarray] = {}
        self.tokens_along = np.zeros((2, n_windows), np.int64)  # of verify steps, the accepted ones
        self.tokens_by_request: dict[int, np.ndarray] = {}

    def add(self, cells: np.ndarray, labels: np.ndarray, pollution: np.ndarray | None = None) -> None:
        """`cells` [n, n_layers, n_counters]; `labels` [n, 3] = (phase, request, window); `pollution` [n, n_layers]."""
        full = np.zeros((*cells.shape[:2], len(NAMES)), np.int64)
        full[:, :, : len(COUNTERS)] = cells
        loaded = cells[:, :, _AT["fills"]] * self._row_bytes
        full[:, :, _AT["bytes_loaded"]] = loaded
        full[:, :, _AT["bytes_moved"]] = loaded + cells[:, :, self._moved].sum(2) * self._row_bytes
        if pollution is not None:
            full[:, :, _AT["pollution"]] = pollution
        phases, requests, windows = labels.T
        for phase in (0, 1):
            self.by_layer[phase] += full[phases == phase].sum(0)  # np.add.at took a tenth of a short replay
        flat = full.sum(1)
        np.add.at(self.along, (phases, windows), flat)
        for cell in range(len(flat)):
            request = int(requests[cell])
            if request not in self.by_request:
                self.by_request[request] = np.zeros((2, len(NAMES)), np.int64)
            self.by_request[request][phases[cell]] += flat[cell]

    def add_tokens(self, tokens: np.ndarray, labels: np.ndarray) -> None:
        """`tokens` [n] of the cells with these `labels`."""
        np.add.at(self.tokens_along, (labels[:, 0], labels[:, 2]), tokens)
        for (phase, request, _), count in zip(labels.tolist(), tokens.tolist(), strict=True):
            self.tokens_by_request.setdefault(request, np.zeros(2, np.int64))[phase] += count


def named(counts: np.ndarray, hidden: set[str]) -> dict:
    """Counts [..., n] as {name: number or list}; hidden ones (unknown bytes, no shadow run) are None."""
    return {
        name: None if name in hidden else (int(v) if (v := counts[..., i]).ndim == 0 else v.tolist())
        for i, name in enumerate(NAMES)
    }
