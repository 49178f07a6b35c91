"""Captures that can be read but are known to be broken: what a reader should be warned about."""

from __future__ import annotations

from math import factorial

import numpy as np

from .check import absent
from .trace import Trace

FEW = 16  # rows below which a coincidence proves nothing


def suspects(trace: Trace) -> list[str]:
    """One line for each sign of a broken capture; an empty list if the trace looks sound. Reads it layer by layer."""
    rows = trace.rows("request", "position", "phase")
    prefill = rows["phase"] == 0
    found = [_token_order(rows["request"], rows["position"])]
    rising, mark = 0.0, np.zeros(trace.n_tokens, np.uint64)
    for layer in range(trace.n_layers):
        ids = trace.layer(layer)
        there = ids[:, 0] != absent(ids.dtype)
        found.append(_constant(ids[there], layer))
        rising += np.count_nonzero((ids[:, 1:] > ids[:, :-1]).all(axis=1) & there) / max(np.count_nonzero(there), 1)
        for rank in range(trace.top_k):  # a hash of everything the token chose; wraps around by intent
            mark = (mark ^ ids[:, rank]) * np.uint64(0x9E3779B97F4A7C15)
            mark ^= mark >> np.uint64(29)
        if layer == trace.n_layers - 1:
            found.append(_pruned(np.count_nonzero(prefill & ~there), np.count_nonzero(prefill), layer))
    found += [_repeated_prefix(mark), _unsorted(rising / trace.n_layers, trace)]
    return [text for text in found if text]


def _constant(ids: np.ndarray, layer: int) -> str:
    if not len(ids):
        return f"layer {layer} is absent in every row; was it captured?"
    if len(ids) < FEW or (np.sort(ids, axis=1) != np.sort(ids[:1], axis=1)).any():
        return ""
    if not ids.any():
        return f"layer {layer} is all zero: a dense layer, or one that was never captured"
    return f"layer {layer} chose {sorted(ids[0].tolist())} in every row: a constant router"


def _pruned(lost, of, layer: int) -> str:
    if not lost:
        return ""
    return (
        f"the last layer ({layer}) is absent in {lost} of {of} prefill rows: pruned to the tokens whose logits were "
        "wanted, so its prefill demand is too small"
    )


def _token_order(request: np.ndarray, position: np.ndarray) -> str:
    order = np.argsort(request, kind="stable")
    request, position = request[order], position[order]
    falls = np.flatnonzero((request[1:] == request[:-1]) & (position[1:] <= position[:-1]))
    if not falls.size:
        return ""
    at = falls[0]
    return (
        f"token order lost: request {request[at]} goes from position {position[at]} to {position[at + 1]} at row "
        f"{order[at + 1]}; what depends on order (every replay does) is doubtful"
    )


def _repeated_prefix(mark: np.ndarray) -> str:
    """The first rows come twice in a row, all layers alike: warm-up forwards that were captured with the run."""
    for period in np.flatnonzero(mark[1 : len(mark) // 2 + 1] == mark[0])[:100] + 1:
        if (mark[:period] == mark[period : 2 * period]).all():
            return (
                f"rows 0 to {period - 1} are repeated by rows {period} to {2 * period - 1}: a warm-up run that was "
                "captured too?"
            )
    return ""


def _unsorted(rising: float, trace: Trace) -> str:
    chance = 1 / factorial(trace.top_k)
    if trace.n_tokens < FEW or trace.top_k < 3 or rising < max(10 * chance, 0.1):
        return ""
    return (
        f"top-k looks unsorted: {rising:.0%} of the rows have rising ids, against {chance:.2%} by chance; the order of "
        "the ranks means nothing here"
    )
