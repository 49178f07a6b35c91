"""NumPy archives of `numpy.savez`: ids of the chosen experts, the rest optional.

T rows (a token each, in order), L layers, k experts per token and layer, R
requests. Only `experts` must be there:

  experts        [T, L, k]  whole   expert ids from 0, best first; a layer that is
                                    all zero is taken as dense and left out
  n_experts      []         whole   experts per layer; without it the largest id
                                    + 1 is taken, with a warning
  row_bytes      [] or [L]  whole   bytes of one expert; without it VRAM and bytes
                                    moved are unknown
  predicted      [T, L, P]  whole   ids predicted for this layer one layer before,
                                    best first; 255 (uint8), 65535 (uint16) or a
                                    negative number for none
  weights        [T, L, k]  floats  router weights, by which ids are then ranked
  offsets        [R + 1]    whole   row where each request starts, and T at the
                                    end; without it there is one request
  labels         [R]        text    names of the requests
  prefill_rows   [R]        whole   so many first rows of a request were one
                                    prefill step; without it each row is a step
                                    of decode
  first_position [R]        whole   position of a request's first row, else 0
  token_ids      [T]        whole   ids of the tokens
  layer_ids      [L]        whole   the model's own numbers of these layers

vLLM's file of one request, `routed_experts [T, L, k]`, is read the same way.
Several files are one capture, a request each. Nothing is unpickled.
"""

from __future__ import annotations

import difflib
import lzma
import math
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .importing import guessed_n_experts, moe_layers, ranked, request_columns, short, warn
from .npy import header
from .reading import hold_size
from .torch_file import is_torch
from .trace import Trace

name = "npz"
description = (
    "NumPy zip: experts [T, L, k], predicted, weights, offsets, labels, prefill_rows, ...; vLLM's routed_experts"
)
source = "numpy.savez; vLLM"

MEMBERS = {  # name -> (dimensions, kinds of dtype)
    "experts": (3, "iu"),
    "routed_experts": (3, "iu"),
    "predicted": (3, "iu"),
    "weights": (3, "f"),
    "offsets": (1, "iu"),
    "labels": (1, "US"),
    "prefill_rows": (1, "iu"),
    "first_position": (1, "iu"),
    "token_ids": (1, "iu"),
    "layer_ids": (1, "iu"),
    "n_experts": (0, "iu"),
    "row_bytes": (None, "iu"),
}
PER_TOKEN = ("predicted", "weights", "token_ids")
PER_REQUEST = ("labels", "prefill_rows", "first_position")
DEFLATE = 1032  # bytes that one byte of a deflate stream can become, at most
# What zipfile and its decompressors raise about damage.
ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError, ValueError,
    OverflowError, MemoryError,
)  # fmt: skip


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(b"PK") and not is_torch(head)


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file, or one per request (their layers and k must agree; they are strung together)."""
    parts = [_members(path) for path in paths]
    return assembled(name, paths, parts, n_experts=n_experts, top_k=top_k, row_bytes=row_bytes, model=model)


def assembled(
    kind: str,
    paths: Sequence[Path],
    parts: list[dict],
    *,
    n_experts: int | None,
    top_k: int | None,
    row_bytes: int | None,
    model: str | None,
) -> Trace:
    """The trace of `parts`, known arrays by name (see `MEMBERS`), each from the path at its place."""
    for path, part in zip(paths, parts, strict=True):
        for what, here, there in (
            ("members", sorted(part), sorted(parts[0])),
            ("layers and k", part["experts"].shape[1:], parts[0]["experts"].shape[1:]),
        ):
            if here != there:
                raise BadTrace(f"{path}: its {what} are {here}, but {there} in {paths[0]}; one capture's files agree")
    where, first = str(paths[0]), parts[0]
    experts = np.concatenate([part["experts"] for part in parts]) if len(parts) > 1 else first["experts"]
    predicted, weights, tokens = (_joined(parts, key) for key in PER_TOKEN)
    if top_k not in (None, experts.shape[2]):
        raise BadTrace(f"{where}: top_k={top_k} was asked for, but experts holds {experts.shape[2]} per row")
    if n_experts is None:
        n_experts = int(first["n_experts"]) if "n_experts" in first else guessed_n_experts(where, _largest(experts))
    if weights is not None:
        if weights.shape != experts.shape:
            raise BadTrace(f"{where}: weights {list(weights.shape)}, but experts {list(experts.shape)}")
        experts, weights = ranked(where, experts, weights)
    kept = moe_layers(where, experts)
    numbers = _per_layer(where, "layer_ids", first.get("layer_ids", np.arange(len(kept))), kept)
    sizes = _per_layer(where, "row_bytes", np.asarray(first.get("row_bytes", row_bytes or 0)), kept)
    if not kept.all():
        experts = experts[:, kept]
        predicted, weights = (None if a is None else a[:, kept] for a in (predicted, weights))
    columns, requests = _requests(paths, parts)
    return Trace.from_arrays(
        experts,
        n_experts=n_experts,
        predicted=predicted,
        weights=weights,
        token_id=tokens,
        **columns,
        requests=requests,
        model_layers=numbers,
        row_bytes=sizes if any(sizes) else None,
        model=model or "",
        name=paths[0].stem,
        where=where,
        source=f"{kind}: " + ", ".join(dict.fromkeys(p.name for p in paths)),
    )


def _requests(paths: Sequence[Path], parts: list[dict]) -> tuple[dict[str, np.ndarray], list[dict]]:
    """The columns per token, and the record per request."""
    lengths, prefill, first, requests = [], [], [], []
    for path, part in zip(paths, parts, strict=True):
        n_rows = len(part["experts"])
        offsets = np.asarray(part.get("offsets", [0, n_rows]), np.int64)
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != n_rows or (np.diff(offsets) <= 0).any():
            raise BadTrace(
                f"{path}: offsets must rise from 0 to the {n_rows} rows of experts, not {short(offsets.tolist())}"
            )
        n = len(offsets) - 1
        for key in PER_REQUEST:
            if key in part and len(part[key]) != n:
                raise BadTrace(f"{path}: {key} has {len(part[key])} entries for the {n} requests of offsets")
        lengths.append(np.diff(offsets))
        prefill.append(np.asarray(part.get("prefill_rows", np.zeros(n)), np.int64))
        first.append(np.asarray(part.get("first_position", np.zeros(n)), np.int64))
        wrong = np.flatnonzero((prefill[-1] < 0) | (prefill[-1] > lengths[-1]))
        if wrong.size:
            raise BadTrace(
                f"{path}: prefill_rows[{wrong[0]}]={prefill[-1][wrong[0]]}, but request {wrong[0]} has "
                f"{lengths[-1][wrong[0]]} rows"
            )
        prompts = (prefill[-1] + first[-1]).tolist() if {"prefill_rows", "first_position"} & set(part) else [None] * n
        labels = _labels(path, part["labels"]) if "labels" in part else [path.stem if len(parts) > 1 else None] * n
        requests += [{"id": len(requests) + i, "label": labels[i], "prompt_tokens": prompts[i]} for i in range(n)]
    return request_columns(*(np.concatenate(part) for part in (lengths, prefill, first))), requests


def _labels(path: Path, labels: np.ndarray) -> list[str]:
    """Text of either kind of NumPy string; bytes are UTF-8."""
    if labels.dtype.kind == "U" and (codes := labels.view(labels.dtype.str[0] + "u4")).max(initial=0) > sys.maxunicode:
        raise BadTrace(f"{path}: labels are not text (there is no character {codes.max():#x})")
    try:
        return (np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels).tolist()
    except ValueError as error:
        raise BadTrace(f"{path}: labels are not text ({short(str(error))})") from None


def _largest(experts: np.ndarray) -> int:
    """The largest id. A row of nothing but all ones is absent, unless 255 can be the one expert of a top-1."""
    if experts.dtype.kind == "i" or (experts.shape[2] == 1 and experts.dtype.itemsize == 1):
        return int(experts.max())
    there = (experts != np.iinfo(experts.dtype).max).any(axis=2, keepdims=True)
    return int(experts.max(initial=0, where=there))


def _per_layer(where: str, key: str, values: np.ndarray, kept: np.ndarray) -> list[int]:
    if values.ndim > 1 or (values.ndim and len(values) != len(kept)):
        raise BadTrace(f"{where}: {key} has shape {list(values.shape)}, but experts has {len(kept)} layers")
    return [int(v) for v in np.broadcast_to(values, len(kept))[kept]]


def _joined(parts: list[dict], key: str) -> Any:
    if key not in parts[0]:
        return None
    return parts[0][key] if len(parts) == 1 else np.concatenate([part[key] for part in parts])


def _members(path: Path) -> dict[str, np.ndarray]:
    """The known arrays of the archive."""
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                found = {i.filename.removesuffix(".npy"): i for i in archive.infolist() if i.filename.endswith(".npy")}
                hold_size(str(path), sum(found[key].file_size for key in MEMBERS if key in found))
                part = {key: _array(path, archive, found[key], key) for key in MEMBERS if key in found}
        except BadTrace:
            raise
        except ZIP_ERRORS as error:
            raise BadTrace(f"{path}: damaged or truncated npz ({short(str(error))})") from None
    if unknown := sorted(set(found) - set(MEMBERS)):
        near = [(name, difflib.get_close_matches(name, MEMBERS, 1)) for name in unknown]
        hint = "".join(f" (did you mean {close[0]}?)" for _, close in near[:1] if close)
        warn(str(path), f"array {', '.join(map(repr, unknown))} is not read{hint}; known: {', '.join(MEMBERS)}")
    if "routed_experts" in part and "experts" not in part:
        part["experts"] = part.pop("routed_experts")
    if "experts" not in part:
        raise BadTrace(f"{path}: no member 'experts' [tokens, layers, k]; it holds {short(sorted(found))}")
    if not part["experts"].size:
        raise BadTrace(f"{path}: experts is {list(part['experts'].shape)}: no tokens; a trace needs at least one row")
    for key in PER_TOKEN:
        if key in part and len(part[key]) != len(part["experts"]):
            raise BadTrace(f"{path}: {key} has {len(part[key])} rows, but experts has {len(part['experts'])}")
    return part


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> np.ndarray:
    """One member. Its header is held against the zip before anything is allocated; nothing is unpickled."""
    dimensions, kinds = MEMBERS[key]
    with archive.open(info) as file:
        shape, fortran, dtype = header(f"{path}: member {key}", file, dimensions, kinds)
        promised, there = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
        if promised != there or min(shape, default=0) < 0:
            raise BadTrace(
                f"{path}: member {key} promises {promised} bytes ({dtype} {list(shape)}), but {there} follow"
            )
        if promised > DEFLATE * info.compress_size + 4096:
            raise BadTrace(
                f"{path}: member {key} promises {promised} bytes in {info.compress_size} compressed, which no "
                "zip can hold"
            )
        data = file.read()
    if len(data) != promised:
        raise BadTrace(f"{path}: member {key} has {len(data)} bytes of the {promised} that it promises")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
