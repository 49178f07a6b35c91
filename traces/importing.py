"""What the importers of foreign formats share: guesses that are owned up to, ranks, requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import BadTrace, TraceWarning, warn_caller


def warn(where: str, text: str) -> None:
    warn_caller(f"{where}: {text}", TraceWarning)


def short(value: Any) -> str:
    """`repr`, cut to what fits into a one-line message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def guessed_n_experts(where: str, largest: int) -> int:
    """The last resort: nothing says how many experts there are."""
    better = "`slotwise trace import ... --n-experts N` says better"
    warn(where, f"n_experts is not recorded; taken as the largest id + 1 = {largest + 1}; {better}")
    return largest + 1


def numbers(where: str, record: dict, key: str, *, whole: bool) -> list:
    """The list under `key`: whole numbers that fit into 32 bits, or finite weights."""
    value = record.get(key)
    kinds, bound = ((int,), 2**31) if whole else ((int, float), 1e9)
    if type(value) is not list or not all(type(v) in kinds and -bound < v < bound for v in value):
        said = f"{key} {short(value)}" if key in record else f"no {key!r}"
        raise BadTrace(f"{where}: {said}; it must be a list of {'whole' if whole else 'finite'} numbers")
    return value


def by_weight(experts: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Both arrays with every top-k (last axis) in falling order of weight, ties as they were; whether any changed."""
    if not np.isfinite(weights).all() or not (weights[..., 1:] > weights[..., :-1]).any():
        return experts, weights, False  # what is not finite is reported with its row later
    order = np.argsort(-weights, axis=-1, kind="stable")
    return np.take_along_axis(experts, order, -1), np.take_along_axis(weights, order, -1), True


def ranked(where: str, experts: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays `by_weight`; warns if any changed."""
    experts, weights, changed = by_weight(experts, weights)
    if changed:
        warn(where, "top-k was not in order of weight; ranked by weight")
    return experts, weights


def moe_layers(where: str, experts: np.ndarray) -> np.ndarray:
    """Which layers of `experts [tokens, layers, k]` are MoE layers, `[layers]`; warns about the others.

    A layer that holds nothing but zeros (k > 1) or negative ids is dense or was not captured, and is to be left out."""
    kept = np.asarray((experts >= (experts.shape[2] > 1)).any(axis=(0, 2)))
    if not kept.any():
        raise BadTrace(f"{where}: experts holds zeros only; nothing was captured")
    if not kept.all():
        gone = short(np.flatnonzero(~kept).tolist())
        kind = "all zero" if (experts[:, ~kept] >= 0).all() else "empty"
        warn(where, f"layers {gone} are {kind}, as dense layers are; left out")
    return kept


def request_columns(lengths: np.ndarray, prefill: np.ndarray, first: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of requests one after the other, of `lengths` rows: the `prefill` first rows of each are one step and
    every other row is a step; positions start at `first`."""
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    decode = within >= np.repeat(prefill, lengths)
    return {
        "request": np.repeat(np.arange(len(lengths)), lengths),
        "step": np.cumsum(decode | (within == 0)) - 1,
        "position": within + np.repeat(first, lengths),
        "phase": decode.astype(np.uint8),
    }
