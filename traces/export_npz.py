"""NumPy archives as `slotwise formats npz` describes them: importing one gives the trace back."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from .errors import BadTrace
from .exporting import one_after_the_other
from .trace import Trace

name, suffix = "npz", ".npz"
description = "numpy.savez's archive: experts [T, L, k], predicted, weights, offsets, labels, ...; read back as it was"
loses = "the model's name, provenance, predictions further ahead than a layer; requests are numbered from 0"
imported_by = "npz"


def write(trace: Trace, path: Path, advance: Callable[[int], None]) -> None:
    lengths, prefill, first = one_after_the_other(trace, name, counted=True)
    rows = trace.rows("request", *(["token_id"] if trace.store.has_token_id else []))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    small = {
        "n_experts": np.array(trace.n_experts),
        "offsets": offsets,
        "prefill_rows": prefill,
        "first_position": first,
        "layer_ids": np.array(trace.meta.model_layers),
    }
    if trace.row_bytes is not None:
        small["row_bytes"] = np.array(trace.row_bytes)
    if trace.store.has_token_id:
        small["token_ids"] = rows["token_id"]
    said = {r["id"]: r.get("label") for r in trace.meta.requests}
    labels = [said.get(request) for request in rows["request"][offsets[:-1]].tolist()]
    if any(label is not None for label in labels):
        small["labels"] = np.array(["" if label is None else str(label) for label in labels])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member, array in small.items():
            _add(archive, member, array.shape, array.dtype, [array])
        for kind, member in (("weights", "weights"), ("predicted.h1", "predicted"), ("experts", "experts")):
            if (kind == "weights" and not trace.has_weights) or (kind == "predicted.h1" and 1 not in trace.horizons):
                continue
            width = trace.store.widths[1] if member == "predicted" else trace.top_k
            dtype = np.dtype(np.float16) if kind == "weights" else trace.dtype
            pieces = _pieces(trace, kind, advance if kind == "experts" else lambda rows: None)
            _add(archive, member, (trace.n_tokens, trace.n_layers, width), dtype, pieces)


def _pieces(trace: Trace, kind: str, advance: Callable[[int], None]) -> Iterable[np.ndarray]:
    """`[rows, layers, width]` of each row group."""
    for a, b in pairwise(trace.store.groups.tolist()):
        piece = trace.read(kind, a, b)
        if kind == "weights" and (rising := piece[..., 1:] > piece[..., :-1]).any():
            row = a + int(np.argmax(rising.any(axis=(0, 2))))
            raise BadTrace(
                f"{trace.name}: row {row}: weights rise along the ranks, and whoever reads an npz ranks by weight; "
                "leave them out with `slotwise trace cut --without weights`"
            )
        yield np.ascontiguousarray(piece.transpose(1, 0, 2))
        advance(b - a)


def _add(
    archive: zipfile.ZipFile, member: str, shape: tuple[int, ...], dtype: np.dtype, pieces: Iterable[np.ndarray]
) -> None:
    """One array, piece by piece along its first dimension. All have one date: the same trace gives the same bytes."""
    info = zipfile.ZipInfo(f"{member}.npy")
    info.compress_type = zipfile.ZIP_DEFLATED
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(info, "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(piece.tobytes())
