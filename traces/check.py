"""The rules that the rows of a trace must keep, checked in bulk; a broken one is named with its row and value."""

from __future__ import annotations

import numpy as np

from .errors import BadTrace


def id_dtype(n_experts: int) -> np.dtype:
    """The dtype of stored ids: uint8 up to 255 experts (255 means absent), else little-endian uint16."""
    return np.dtype(np.uint8) if n_experts <= 255 else np.dtype("<u2")


def absent(dtype: np.dtype) -> int:
    """The id that marks "no expert": all ones."""
    return int(np.iinfo(dtype).max)


def check_ids(ids: np.ndarray, n_experts: int, where: str, layer: int, first_row: int = 0) -> None:
    """`ids [n, k]` of one layer: every row is absent as a whole, or k different ids below `n_experts`."""
    if not ids.size:
        return
    if ids.max() >= n_experts:
        missing = ids == absent(ids.dtype)
        gone = missing.all(axis=1)
        wrong = np.flatnonzero(((ids >= n_experts) & ~gone[:, None]).any(axis=1))
        if wrong.size:
            row = wrong[0]
            rank = int(np.argmax(ids[row] >= n_experts))
            if missing[row, rank]:
                raise BadTrace(
                    f"{where}: row {first_row + row}, layer {layer}, rank {rank}: absent, but other ranks are "
                    "not; a row gives a layer all its top_k experts or none"
                )
            raise BadTrace(
                f"{where}: row {first_row + row}, layer {layer}, rank {rank}: expert {ids[row, rank]}, but "
                f"n_experts={n_experts}"
            )
        kept = np.flatnonzero(~gone)
        ids = ids[kept]
    else:
        kept = None
    by_rank = np.ascontiguousarray(ids.T)
    for apart in range(1, ids.shape[1]):
        same = by_rank[apart:] == by_rank[:-apart]
        if same.any():
            at = int(np.flatnonzero(same.any(axis=0))[0])
            expert = ids[at, int(np.argmax(same[:, at]))]
            row = first_row + (at if kept is None else int(kept[at]))
            raise BadTrace(
                f"{where}: row {row}, layer {layer}: expert {expert} twice in one top-{ids.shape[1]} "
                f"{ids[at].tolist()}; the experts of a row are different (a layer of zeros is a dense layer "
                "or was never captured: leave it out)"
            )


def check_weights(weights: np.ndarray, where: str, layer: int, first_row: int = 0) -> None:
    """`weights [n, k]` float16 of one layer: finite."""
    bad = (weights.view(np.uint16) & 0x7C00) == 0x7C00  # the exponent of NaN and the infinities; isfinite is 10x slower
    if bad.any():
        row, rank = (int(x) for x in np.argwhere(bad)[0])
        raise BadTrace(
            f"{where}: row {first_row + row}, layer {layer}, rank {rank}: weight {weights[row, rank]}; "
            "weights must be finite (leave them out if they are unknown)"
        )


def check_rows(rows: dict[str, np.ndarray], where: str, first_row: int = 0) -> None:
    """`request`, `step`, `position` are not negative, `step` never falls, `phase` is 0 (prefill) or 1 (decode)."""
    for name in ("request", "step", "position"):
        if name in rows and rows[name].size and rows[name].min() < 0:
            row = int(np.argmax(rows[name] < 0))
            raise BadTrace(f"{where}: row {first_row + row}: {name} {rows[name][row]}; it must not be negative")
    if "phase" in rows and rows["phase"].size and rows["phase"].max() > 1:
        row = int(np.argmax(rows["phase"] > 1))
        raise BadTrace(f"{where}: row {first_row + row}: phase {rows['phase'][row]}; it is 0 (prefill) or 1 (decode)")
    step = rows.get("step", np.zeros(0))
    falls = step[1:] < step[:-1]
    if falls.any():
        row = int(np.argmax(falls)) + 1
        raise BadTrace(
            f"{where}: row {first_row + row}: step {step[row]} after step {step[row - 1]}; steps never fall "
            "(several captures in one file? import them one by one)"
        )
