"""Counts of how often each expert was chosen: no trace, but a profile.

  .coli_usage  colibri: lines of `layer expert count`, in newer versions after
               a line `-1 layers experts`
  .npy         MoE-Infinity: [sequences, layers, experts], or [layers, experts],
               whole numbers, stored as such or as floats
  .pt          SGLang's recorder in mode stat: logical_count [steps, layers,
               experts]; read with torch

Counts have no order, so that no cache can be replayed over them, and what they
were counted over (which prompts, prefill too or not, how far decayed) is not
recorded. `slotwise trace profile` makes a profile of them, for the policy static
and for pins: `--format counts` where an .npy holds whole numbers, which vLLM's
ids do too. Layers that count nothing are dense, and left out. What to record
instead: a trace, such as colibri's ROUTE_TRACE.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import BadTrace
from .importing import guessed_n_experts, short, warn
from .meta import MAX_EXPERTS, MAX_LAYERS
from .npy import header
from .passes import whole_lines
from .torch_file import is_torch, load, numbers
from .trace import Trace

name = "counts"
description = "counts per layer and expert: no order, so no trace; `slotwise trace profile` makes a profile of them"
source = "colibri (.coli_usage), MoE-Infinity (.npy), SGLang's recorder in mode stat (.pt)"

LINES = re.compile(rb"(?:-1 \d+ \d+\r?\n)?(?:\d+ \d+ \d+\r?\n){2,}(?:\d+ ?){0,3}")
LINE = re.compile(rb"(\d{1,6}) (\d{1,6}) (\d{1,18})")
FLOATS = re.compile(rb"\x93NUMPY.{4}.{0,4}\{'descr': '[<>=|]?f", re.DOTALL)
NUMPY = b"\x93NUMPY"


@dataclass(frozen=True, eq=False)
class Counts:
    """`counts [n_layers, n_experts]` of one file; layers that count nothing are left out."""

    name: str
    counts: np.ndarray
    sha256: str  # of the file


def sniff(path: Path, head: bytes) -> bool:
    return LINES.fullmatch(head) is not None or FLOATS.match(head) is not None


def read(paths: Sequence[Path], **hints: object) -> Trace:
    """Raises BadTrace: there is nothing to replay in counts."""
    raise BadTrace(
        f"{paths[0]}: counts only (layer, expert, count): they have no order and cannot be replayed; `slotwise trace "
        "profile` makes a profile of them, for static and pins; record a trace to replay"
    )


def read_counts(path: Path, *, told: bool = False, n_experts: int | None = None) -> Counts | None:
    """The counts in a file; None if it holds something else, unless we are `told` that it holds counts."""
    from hashlib import sha256

    where = str(path)
    with path.open("rb") as file:
        head = file.read(4096)
    if head.startswith(NUMPY):
        counts = _npy(path) if told or sniff(path, head) else None
    elif is_torch(head):
        found = load(path)
        there = isinstance(found, dict) and "logical_count" in found
        counts = numbers(where, found, "logical_count", 3).sum(axis=0, dtype=np.int64) if there else None
    else:
        counts = _text(path, n_experts) if told or sniff(path, head) else None
    if counts is None:
        if told:
            raise BadTrace(f"{where}: no counts in it; read are lines of `layer expert count`, .npy and SGLang's .pt")
        return None
    if n_experts not in (None, counts.shape[1]):
        raise BadTrace(f"{where}: n_experts={n_experts} was asked for, but {counts.shape[1]} are counted")
    if counts.size and counts.min() < 0:
        layer, expert = np.argwhere(counts < 0)[0]
        raise BadTrace(f"{where}: count {counts[layer, expert]} of expert {expert} in layer {layer}; it is below 0")
    kept = counts.any(axis=1)
    if not kept.any():
        raise BadTrace(f"{where}: every count is 0; nothing was counted")
    if not kept.all():
        warn(where, f"layers {short(np.flatnonzero(~kept).tolist())} count nothing, as dense layers do; left out")
    return Counts(path.name, counts[kept], sha256(path.read_bytes()).hexdigest())


def _npy(path: Path) -> np.ndarray:
    where = str(path)
    with path.open("rb") as file:
        shape, fortran, dtype = header(where, file, None, "iuf")
        if len(shape) not in (2, 3):
            raise BadTrace(f"{where} is {list(shape)}; counts are [sequences, layers, experts] or [layers, experts]")
        promised, there = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if promised != there or min(shape) < 1:
            raise BadTrace(f"{where} promises {promised} bytes ({dtype} {list(shape)}), but {there} follow; truncated?")
        array = np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")
    whole = (array >= 0) & (array < 2**53) & (array == np.floor(array))
    if not whole.all():
        at = tuple(int(i) for i in np.argwhere(~whole)[0])
        raise BadTrace(f"{where}: {array[at]} at {list(at)}; a count is a whole number from 0")
    return array.astype(np.int64).reshape(-1, *shape[-2:]).sum(axis=0)


def _text(path: Path, n_experts: int | None) -> np.ndarray:
    where = str(path)
    found: dict[tuple[int, int], int] = {}
    recorded: tuple[int, int] | None = None
    for at, line in whole_lines(path):
        if at == 1 and (head := re.fullmatch(rb"-1 (\d{1,6}) (\d{1,6})", line)):
            recorded = int(head[1]), int(head[2])
            continue
        parts = LINE.fullmatch(line)
        if not parts:
            raise BadTrace(
                f"{where} line {at}: {short(line[:60].decode('utf-8', 'replace'))} is no 'layer expert count'"
            )
        layer, expert, count = (int(text) for text in parts.groups())
        if layer >= MAX_LAYERS or expert >= (n_experts or MAX_EXPERTS) or (layer, expert) in found:
            raise BadTrace(
                f"{where} line {at}: expert {expert} of layer {layer}; each comes once, layers below {MAX_LAYERS}, "
                f"experts below {n_experts or MAX_EXPERTS}"
            )
        found[layer, expert] = count
    if not found:
        raise BadTrace(f"{where}: no counts in it")
    layers = sorted({layer for layer, _ in found})
    largest = max(expert for _, expert in found)
    if recorded and (recorded[1] <= largest or recorded[1] > MAX_EXPERTS):
        raise BadTrace(f"{where}: {recorded[1]} experts in its head, but expert {largest} is counted")
    width = n_experts or (recorded[1] if recorded else guessed_n_experts(where, largest))
    if len(layers) * width > 64 * (len(found) + 65536):
        raise BadTrace(
            f"{where}: {len(found)} counts for {len(layers)} layers of {width} experts; is it a list of counts?"
        )
    counts = np.zeros((len(layers), width), np.int64)
    row = {layer: i for i, layer in enumerate(layers)}
    for (layer, expert), count in found.items():
        counts[row[layer], expert] = count
    return counts
