"""Router probabilities, a binary record per token and layer, little endian.

  header   "RTRACE01", int32 n_experts, int32 version (1)
  records  int32 token, int32 layer, float32 probs [n_experts]

The chosen experts are not recorded: they are the --top-k largest probabilities,
ties to the lowest id, and their probabilities are the weights. A forward pass
ends where (layer, token) no longer rises, and is a step: prefill if it has
several tokens, else decode. A pass that begins at a lower token than the one
before, or prefill after decode, opens a request.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import BadTrace
from .meta import MAX_EXPERTS
from .passes import Passes, one_path
from .trace import Trace

name = "rtrace"
description = "binary RTRACE01: n_experts, version, then token, layer, float32 probs[n_experts]; top-k is derived"
source = "RTRACE01"

CHUNK = 1 << 22  # bytes that are read at a time


def sniff(path: Path, head: bytes) -> bool:
    return head.startswith(b"RTRACE01")


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file. `top_k` is needed."""
    path = one_path(paths, "a file of this format")
    with path.open("rb") as file:
        head = file.read(16)
        if len(head) < 16:
            raise BadTrace(f"{path}: {len(head)} bytes, but the header has 16; truncated?")
        recorded, version = struct.unpack("<2i", head[8:])
        if version != 1 or not 0 < recorded <= MAX_EXPERTS:
            raise BadTrace(
                f"{path}: version {version} with n_experts={recorded}; it must be version 1 with 1 to {MAX_EXPERTS}"
            )
        if n_experts not in (None, recorded):
            raise BadTrace(f"{path}: n_experts={n_experts} was asked for, but the file says {recorded}")
        if top_k is None or not 0 < top_k <= recorded:
            raise BadTrace(
                f"{path}: top_k={top_k}, but a number from 1 to {recorded} is needed: the file holds probabilities of "
                "all experts, and `slotwise trace import ... --top-k K` says how many the model takes"
            )
        kind = np.dtype([("token", "<i4"), ("layer", "<i4"), ("probs", "<f4", (recorded,))])
        left, over = divmod(path.stat().st_size - 16, kind.itemsize)
        if over:
            raise BadTrace(f"{path}: {over} bytes after {left} records of {kind.itemsize}; truncated?")
        passes = Passes(path, "record", by_row=False, restarts=True, n_experts=recorded)
        while left:
            n = min(left, max(CHUNK // kind.itemsize, 1))
            _take(passes, np.frombuffer(file.read(n * kind.itemsize), kind), top_k)
            left -= n
    return passes.trace(row_bytes=row_bytes, model=model or "", source=f"rtrace: {path.name}")


def _take(passes: Passes, some: np.ndarray, top_k: int) -> None:
    first, probs = passes.count + passes.padding, some["probs"]
    wrong = ~((probs >= 0) & (probs < np.inf)).all(axis=1)
    if wrong.any():
        at = int(np.argmax(wrong))
        bad = probs[at][~((probs[at] >= 0) & (probs[at] < np.inf))][0]
        passes.refuse(first + at, f"probability {bad}; probabilities are finite and not negative")
    order = np.argsort(-probs, axis=1, kind="stable")[:, :top_k]
    best = np.take_along_axis(probs, order, 1)
    for i, (ids, weights) in enumerate(zip(order.tolist(), best.tolist(), strict=True)):
        passes.add(first + i, int(some["layer"][i]), int(some["token"][i]), ids, weights)
