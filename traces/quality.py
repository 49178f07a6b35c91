"""How good the predictions of a trace are, beside what two guesses that need no model would have said."""

from __future__ import annotations

from typing import Any

import numpy as np

from .check import absent
from .trace import Trace

BASELINES = ("previous", "frequency")


def predictions(trace: Trace) -> list[dict[str, Any]]:
    """One record per recorded horizon: `recall` and `precision` by width, over all layers and per layer; None: unknown.

    Recall@W is the share of a token's experts found among its first W predictions, precision@W the share of those
    predictions that are right. `baselines` holds the same figures over the same tokens and layers for `previous`, the
    experts of the token before in the same request, best first, and `frequency`, the experts that the tokens before in
    the trace chose most often, ties to the lowest id. Both are generous in a prompt, whose tokens are computed at once.
    """
    from . import kernels

    widest = max(trace.store.widths.values(), default=0)
    guessed = {name: _Score(trace.n_layers, widest) for name in BASELINES}
    if widest:
        before = _before(trace)
        for layer in range(min(trace.horizons), trace.n_layers):
            ids = trace.layer(layer)
            guessed["previous"].add(_previous(ids, before, widest), ids, layer, trace.n_experts)
            guessed["frequency"].add(_frequency(ids, trace.n_experts, widest), ids, layer, trace.n_experts)
    records = []
    for horizon in trace.horizons:
        width = trace.store.widths[horizon]
        score = _Score(trace.n_layers, width)
        for block in trace.blocks(predicted=True, horizon=horizon):
            kernels.recall(
                block.experts, block.predicted, trace.n_experts, horizon, score.right, score.given, score.wanted
            )
        baselines = {name: guess.rates(horizon, width) for name, guess in guessed.items()}
        records.append({"horizon": horizon, "width": width, **score.rates(horizon, width), "baselines": baselines})
    return records


class _Score:
    """Per layer and width: right and given predictions; per layer: wanted experts."""

    def __init__(self, n_layers: int, width: int) -> None:
        self.right, self.given = np.zeros((2, n_layers, width), np.int64)
        self.wanted = np.zeros(n_layers, np.int64)

    def add(self, predicted: np.ndarray, ids: np.ndarray, layer: int, n_experts: int) -> None:
        """Counts `predicted [n, W]` against `ids [n, k]` of one layer."""
        from . import kernels

        one = slice(layer, layer + 1)
        kernels.recall(ids[None], predicted[None], n_experts, 0, self.right[one], self.given[one], self.wanted[one])

    def rates(self, horizon: int, width: int) -> dict[str, list]:
        """By width up to `width`, over the layers from `horizon` on; those before it are None each."""
        right, given, wanted = self.right[:, :width].copy(), self.given[:, :width].copy(), self.wanted.copy()
        right[:horizon] = given[:horizon] = wanted[:horizon] = 0
        return {
            "recall": [rate(r, wanted.sum()) for r in right.sum(axis=0)],
            "precision": [rate(r, g) for r, g in zip(right.sum(axis=0), given.sum(axis=0), strict=True)],
            "recall_by_layer": [[rate(r, w) for r in rs] for rs, w in zip(right, wanted, strict=True)],
            "precision_by_layer": [
                [rate(r, g) for r, g in zip(*rows, strict=True)] for rows in zip(right, given, strict=True)
            ],
        }


def _before(trace: Trace) -> np.ndarray:
    """The row of the token before in the same request, `[n_tokens]`; -1 without one."""
    request = trace.rows("request")["request"]
    order = np.argsort(request, kind="stable")
    before = np.full(len(request), -1, np.int64)
    same = request[order[1:]] == request[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _previous(ids: np.ndarray, before: np.ndarray, width: int) -> np.ndarray:
    out = np.full((len(ids), width), absent(ids.dtype), ids.dtype)
    k = min(width, ids.shape[1])
    out[before >= 0, :k] = ids[before[before >= 0], :k]
    return out


def _frequency(ids: np.ndarray, n_experts: int, width: int) -> np.ndarray:
    """Each token counts as a step of its own."""
    from . import kernels

    out = np.full((1, len(ids), width), absent(ids.dtype), ids.dtype)
    order = np.arange(n_experts)[None]
    starts, never = np.arange(len(ids) + 1), np.zeros(len(ids), np.bool_)
    kernels.frequency(ids[None], starts, never, 0, np.zeros_like(order), order.copy(), order.copy(), out)
    return out[0]


def rate(part, whole) -> float | None:
    """`part / whole`; None where there is nothing to have a part of."""
    return float(part / whole) if whole else None
