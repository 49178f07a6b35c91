"""SGLang's recordings of expert ids per token: the .pt file of its recorder.

Written with --expert-distribution-recorder-mode per_token, a record a forward
pass; read with torch (optional, `pip install torch`) and weights_only:

  records[]                       forward_mode 1 extend, 2 decode, 3 mixed, 4 idle
    topk_ids_of_layer [L, n, 8]   ids of physical experts, -1 for none: in columns
                                  past k, in dense layers, in rows of padding
    positions, input_ids [n]      of the tokens
    extend_seq_lens               tokens of each sequence of an extend or a mixed
  last_physical_to_logical_map [L, P]   by which the ids are mapped

A pass is a step. The map is the last one: ids from before a rebalancing come out
wrong, and nothing shows it. Request ids are not recorded: a sequence that goes on
where one stopped is taken for the same request, the oldest first, and one at
position 0, or where none stopped, for a new one. Speculative passes are refused,
and so are the counts that mode stat writes (logical_count), which have no order.
Each rank writes a file: import one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .importing import moe_layers, short, warn
from .json_lines import whole
from .meta import MAX_EXPERTS
from .torch_file import is_torch, load, numbers
from .trace import Trace

name = "sglang"
description = ".pt of the expert distribution recorder, per_token: physical ids, mapped to logical ones; needs torch"
source = "sgl-project/sglang"

EXTEND, DECODE, MIXED, IDLE = 1, 2, 3, 4
MOST = 2**31 - 1


def sniff(path: Path, head: bytes) -> bool:
    return is_torch(head)


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file. A forward pass is a step; rows of padding are left out."""
    if len(paths) > 1:
        raise BadTrace(f"{paths[1]}: every rank writes what it saw; import {paths[0]} and this one by themselves")
    path, where = paths[0], str(paths[0])
    found = load(path)
    if isinstance(found, dict) and "logical_count" in found:
        raise BadTrace(
            f"{where}: counts only (logical_count, of the recorder's mode stat): they have no order and cannot be "
            "replayed; record with mode per_token"
        )
    if not isinstance(found, dict) or not isinstance(found.get("records"), list):
        raise BadTrace(f"{where}: no 'records' in it; a recording has records and last_physical_to_logical_map")
    passes = _passes(path, found["records"])
    ids = np.concatenate([each["ids"] for each in passes]).astype(np.int64)
    columns = {key: np.concatenate([each[key] for each in passes]) for key in ("position", "phase", "token_id")}
    columns["request"] = _requests([each["position"] for each in passes], [each["lengths"] for each in passes])
    columns["step"] = np.repeat(np.arange(len(passes)), [len(each["ids"]) for each in passes])
    padding = (ids < 0).all(axis=(1, 2))
    if padding.any():
        warn(where, f"{np.count_nonzero(padding)} of {len(ids)} rows are -1 at every layer, as padding is; left out")
        ids, columns = ids[~padding], {key: column[~padding] for key, column in columns.items()}
    if not len(ids):
        raise BadTrace(f"{where}: every row is -1 at every layer; nothing was captured")
    warn(where, "request ids are not recorded; sequences are told apart by their positions")
    kept = moe_layers(where, ids)
    ids, k = _logical(where, ids, numbers(where, found, "last_physical_to_logical_map", 2), kept)
    if top_k not in (None, k):
        raise BadTrace(f"{where}: top_k={top_k} was asked for, but {k} columns hold ids")
    names, request = np.unique(columns["request"], return_inverse=True)
    return Trace.from_arrays(
        ids,
        n_experts=n_experts or int(found["last_physical_to_logical_map"].max()) + 1,
        **columns | {"request": request},
        model=model or "",
        model_layers=np.flatnonzero(kept).tolist(),
        row_bytes=None if row_bytes is None else [row_bytes] * int(kept.sum()),
        name=path.stem,
        where=where,
        captured_by="SGLang",
        source=f"sglang: {path.name}",
        requests=[{"id": i, "label": None, "prompt_tokens": None} for i in range(len(names))],
    )


def _passes(path: Path, records: list[Any]) -> list[dict[str, Any]]:
    """Per forward pass that had tokens: ids `[n, layers, columns]`, their columns, and the lengths of the sequences."""
    passes, n_bytes = [], 0
    for i, record in enumerate(records):
        where = f"{path} record {i}"
        if not isinstance(record, dict):
            raise BadTrace(f"{where}: {short(record)}; a record is a dict")
        mode = whole(where, record, "forward_mode", 0, 99)
        if mode not in (EXTEND, DECODE, MIXED, IDLE):
            raise BadTrace(f"{where}: forward_mode={mode}; read are 1 extend, 2 decode, 3 mixed and 4 idle")
        ids = numbers(where, record, "topk_ids_of_layer", 3)
        n = ids.shape[1]
        if mode == IDLE or not n:
            continue
        n_bytes += ids.nbytes
        if n_bytes > path.stat().st_size:
            raise BadTrace(f"{where}: {n_bytes} bytes of ids up to here, more than the file has; is one stored twice?")
        if passes and ids.shape[::2] != passes[0]["ids"].shape[1:]:
            raise BadTrace(
                f"{where}: ids {list(ids.shape)}, but {list(passes[0]['ids'].shape[1:])} layers and columns before"
            )
        position, tokens = (_column(where, record, key, n) for key in ("positions", "input_ids"))
        lengths = np.ones(n, np.int64)
        if mode != DECODE:
            lengths = numbers(where, record, "extend_seq_lens", 1).astype(np.int64)
            if (lengths < 0).any() or lengths.sum() != n:
                raise BadTrace(f"{where}: extend_seq_lens {short(lengths.tolist())} are no parts of its {n} tokens")
            lengths = lengths[lengths > 0]
        decode = np.repeat(lengths == 1, lengths) if mode == MIXED else np.full(n, mode == DECODE)
        passes.append(
            {
                "ids": ids.transpose(1, 0, 2),
                "position": position,
                "token_id": tokens,
                "phase": decode,
                "lengths": lengths,
            }
        )
    if not passes:
        raise BadTrace(f"{path}: none of its {len(records)} records has a token; a trace needs at least one")
    return passes


def _column(where: str, record: dict, key: str, n: int) -> np.ndarray:
    values = numbers(where, record, key, 1).astype(np.int64)
    if len(values) != n:
        raise BadTrace(f"{where}: {key} has {len(values)} entries for {n} tokens")
    wrong = np.flatnonzero((values < 0) | (values > MOST))
    if wrong.size:
        raise BadTrace(f"{where}: {key}[{wrong[0]}]={values[wrong[0]]}; it must be a whole number from 0 to {MOST}")
    return values


def _requests(positions: list[np.ndarray], lengths: list[np.ndarray]) -> np.ndarray:
    """The request of every row: the oldest one that stopped just before a sequence begins, else a new one."""
    out, stopped, n_requests = [], defaultdict(list), 0
    for position, parts in zip(positions, lengths, strict=True):
        went_on = []
        ends = np.cumsum(parts)
        for start, stop in zip((ends - parts).tolist(), ends.tolist(), strict=True):
            before = stopped[int(position[start]) - 1]
            if position[start] and before:
                request = before.pop(before.index(min(before)))
            else:
                request, n_requests = n_requests, n_requests + 1
            went_on.append((int(position[stop - 1]), request))
            out.append(np.full(stop - start, request))
        for last, request in went_on:  # only now: a sequence goes on in a later pass
            stopped[last].append(request)
    return np.concatenate(out)


def _logical(where: str, ids: np.ndarray, mapping: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, int]:
    """(logical ids `[rows, MoE layers, k]`, k) of physical ones `[rows, layers, columns]`."""
    if len(mapping) != ids.shape[1] or not mapping.size:
        raise BadTrace(f"{where}: last_physical_to_logical_map is {list(mapping.shape)} for {ids.shape[1]} layers")
    n_physical = mapping.shape[1]
    wrong = (mapping < 0) | (mapping >= MAX_EXPERTS)
    if wrong.any():
        layer, at = (int(x) for x in np.argwhere(wrong)[0])
        raise BadTrace(f"{where}: last_physical_to_logical_map[{layer}][{at}]={mapping[layer, at]} is no expert")
    wrong = (ids < -1) | (ids >= n_physical)
    if wrong.any():
        row, layer, rank = (int(x) for x in np.argwhere(wrong)[0])
        raise BadTrace(
            f"{where}: row {row}, layer {layer}, rank {rank}: physical expert {ids[row, layer, rank]}, but the map has "
            f"{n_physical}, and none is -1"
        )
    n_logical = int(mapping.max()) + 1
    if n_physical > n_logical:
        warn(where, f"{n_physical} physical experts hold {n_logical}; mapped as at the end, wrong before a rebalancing")
    k = int(np.flatnonzero((ids >= 0).any(axis=(0, 1)))[-1]) + 1
    layers = np.flatnonzero(kept)
    ids = ids[:, layers, :k]
    return np.where(ids < 0, -1, mapping[layers[None, :, None], ids]), k
