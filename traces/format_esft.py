"""ESFT's routing logs: a text file per layer, a line per sequence.

The number that ends a file's name is its layer; the files of all layers are
imported together. A line holds k ids for each token of a sequence, an empty
field, then as many weights, by which ids are ranked, all tab-separated. A
sequence is a request, each token a step of decode. Give --n-experts, which is
not recorded, and --top-k where the ids leave it open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from .errors import BadTrace
from .importing import guessed_n_experts, ranked, request_columns, short, warn
from .trace import Trace

name = "esft"
description = "text, a file per layer (its number ends the file's name), a line per sequence: ids and weights"
source = "deepseek-ai/ESFT"

ALPHABET = frozenset(b"0123456789\t\r\n.eE+-naif")


def sniff(path: Path, head: bytes) -> bool:
    return re.match(rb"\d+\t\d", head) is not None and ALPHABET.issuperset(head)


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """The files of one run, one per layer. The sequences are teacher-forced: every token is a step of its own."""
    numbers = [_layer(path) for path in paths]
    order = sorted(range(len(paths)), key=lambda i: numbers[i])
    for a, b in pairwise(order):
        if numbers[a] == numbers[b]:
            raise BadTrace(
                f"{paths[b]}: layer {numbers[b]} again, after {paths[a]}; import the files of each run by themselves"
            )
    layers = [_lines(paths[i]) for i in order]
    first = paths[order[0]]
    lengths = layers[0][0]
    for i, (found, _, _) in zip(order, layers, strict=True):
        if not np.array_equal(found, lengths):
            raise BadTrace(
                f"{paths[i]}: {len(found)} sequences of {short(found.tolist())} ids, but {first} has "
                f"{len(lengths)} of {short(lengths.tolist())}; the layers of one run agree"
            )
    ids = np.stack([layer[1] for layer in layers])
    where = str(first)
    top_k = _top_k(where, ids, lengths, top_k)
    experts = ids.reshape(len(paths), -1, top_k).transpose(1, 0, 2)
    weights = np.stack([layer[2] for layer in layers]).reshape(len(paths), -1, top_k).transpose(1, 0, 2)
    experts, weights = ranked(where, experts, weights)
    tokens = lengths // top_k
    none = np.zeros_like(tokens)
    return Trace.from_arrays(
        experts,
        weights=weights,
        n_experts=guessed_n_experts(where, int(ids.max())) if n_experts is None else n_experts,
        **request_columns(tokens, none, none),
        model=model or "",
        model_layers=[numbers[i] for i in order],
        row_bytes=None if row_bytes is None else [row_bytes] * len(paths),
        name=first.stem,
        where=where,
        captured_by="ESFT",
        source="esft: " + ", ".join(paths[i].name for i in order),
        requests=[{"id": i, "label": None, "prompt_tokens": None} for i in range(len(tokens))],
    )


def _layer(path: Path) -> int:
    number = re.search(r"(\d+)$", path.stem)
    if not number:
        raise BadTrace(f"{path}: a file of this format is named after its layer, as in expert_weights_7.txt")
    return int(number[1])


def _lines(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids per line, all ids, all weights) of one file."""
    lengths, ids, weights = [], [], []
    with path.open(encoding="ascii", errors="replace") as file:
        for at, line in enumerate(file, 1):
            left, _, right = line.rstrip("\r\n").partition("\t\t")
            try:
                chosen, gates = (
                    np.array(left.split("\t"), np.int64),
                    np.array([w for w in right.split("\t") if right], np.float64),
                )
            except (ValueError, OverflowError) as error:
                raise BadTrace(
                    f"{path} line {at}: {short(str(error))}; a line is ids, an empty field, weights"
                ) from None
            if len(chosen) != len(gates):
                raise BadTrace(
                    f"{path} line {at}: {len(chosen)} ids and {len(gates)} weights; every id has one (truncated?)"
                )
            if chosen.min() < 0:
                raise BadTrace(f"{path} line {at}: expert {chosen.min()}; ids are not negative")
            lengths.append(len(chosen))
            ids.append(chosen)
            weights.append(gates)
    if not lengths:
        raise BadTrace(f"{path}: no sequences")
    return np.array(lengths), np.concatenate(ids), np.concatenate(weights)


def _top_k(where: str, ids: np.ndarray, lengths: np.ndarray, told: int | None) -> int:
    """The format does not record k: it divides every line, and no k ids in a row repeat one."""
    common = math.gcd(*lengths.tolist())
    if told is not None:
        if told < 1 or common % told:
            raise BadTrace(f"{where}: top_k={told} does not divide the lines, which hold {short(lengths.tolist())} ids")
        return told
    for k in sorted((d for d in range(1, min(common, 256) + 1) if common % d == 0), reverse=True):
        rows = np.sort(ids.reshape(-1, k), axis=1)
        if not (rows[:, 1:] == rows[:, :-1]).any():
            warn(
                where,
                f"top_k is not recorded; taken as {k}, the largest that divides the lines without repeating an "
                "expert (`slotwise trace import ... --top-k K` says better)",
            )
            return k
    raise AssertionError("k = 1 never repeats")
