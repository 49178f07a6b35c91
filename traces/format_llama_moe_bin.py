"""Routing by patched llama.cpp, a stream of little-endian int32.

  bare   records  layer, n_tokens, k, ids [n_tokens * k], a token's k together
  MBLT   header   0x544C424D ("MBLT"), 1, n_expert
         records  layer, k, n_tokens, ids [n_tokens * k]

Records stand in the order of execution. A forward pass ends where the layer
number no longer rises, and is a step: prefill if it has several tokens, else
decode (a batch of several sequences looks like a prompt, and the last piece of
a prompt, if it is one token, like decode). The last layer of a prompt may hold
the final token alone, or nothing: the rest is absent there. Prefill after
decode, or a second header, opens a request. Bare streams need --n-experts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .errors import BadTrace
from .meta import MAX_EXPERTS, MAX_LAYERS
from .passes import Passes, one_path
from .trace import Trace

name = "llama-moe-bin"
description = "int32 stream of llama.cpp: layer, n_tokens, k, ids; or MBLT: header, then layer, k, n_tokens, ids"
source = "patches of llama.cpp; mbolt (MBOLT_TRACE)"

MAGIC = 0x544C424D
MAX_K = 1024


def sniff(path: Path, head: bytes) -> bool:
    """The magic number; or a first record whose numbers are small, whose ids differ, and which another follows."""
    if head.startswith(struct.pack("<I", MAGIC)):
        return True
    if len(head) < 16:
        return False
    words = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    layer, n, k = (int(w) for w in words[:3])
    ids = words[3 : 3 + k]
    return (
        0 <= layer < 1024
        and 0 < k <= 64
        and 0 < n < 2**20
        and 4 * (3 + n * k) <= path.stat().st_size
        and path.stat().st_size % 4 == 0
        and len(np.unique(ids)) == k
        and ids.min() >= 0
        and ids.max() < MAX_EXPERTS
    )


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a stream of this format")
    passes = Passes(path, "byte", by_row=True, n_experts=n_experts, top_k=top_k)
    with path.open("rb") as file:
        _records(file, passes, path.stat().st_size)
    return passes.trace(
        row_bytes=row_bytes,
        model=model or "",
        captured_by="llama.cpp",
        source=f"llama-moe-bin: {path.name}",
    )


def _records(file: BinaryIO, passes: Passes, size: int) -> None:
    """Reads every record into `passes`, and the number of experts, if a header says it."""
    n_experts, opens, at = None, False, 0
    mblt = file.read(4) == struct.pack("<I", MAGIC)
    file.seek(0)
    while at < size:
        if size - at < 12:
            passes.refuse(at, f"{size - at} bytes left, but a record begins with 12; truncated?")
        first, second, third = struct.unpack("<3i", file.read(12))
        if mblt and first == MAGIC:
            if second != 1:
                passes.refuse(at + 4, f"version {second} of MBLT; this reader knows version 1")
            if n_experts not in (None, third):
                passes.refuse(at + 8, f"n_expert {third} after {n_experts}; are these captures of two models?")
            if not 0 < third <= MAX_EXPERTS:
                passes.refuse(at + 8, f"n_expert {third}, but it is a number from 1 to {MAX_EXPERTS}")
            n_experts, opens, at = third, at > 0, at + 12
            passes.pieces.n_experts = passes.pieces.n_experts or third
            continue
        n, k = (third, second) if mblt else (second, third)
        if not (0 <= first < MAX_LAYERS and n >= 0 and 0 < k <= MAX_K):
            passes.refuse(at, f"layer {first}, n_tokens {n}, k {k} is no record; damaged, or not this format")
        if 4 * n * k > size - at - 12:
            passes.refuse(at, f"{n} tokens of {k} ids promised, but {size - at - 12} bytes follow; truncated?")
        for row, ids in enumerate(np.frombuffer(file.read(4 * n * k), "<i4").reshape(n, k).tolist()):
            passes.add(at, first, row, ids, opens=opens)
            opens = False
        at += 12 + 4 * n * k
    if mblt and n_experts is None:
        raise BadTrace(f"{passes.path}: no header")
