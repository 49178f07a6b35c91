"""Event traces: events.safetensors beside its manifest.json.

An event is a layer of a forward cycle. It holds the set of experts that the
tokens of the cycle chose, and how many tokens chose each:

  scheduler_steps, forward_cycles, layer_ids, phases (0 prefill, 1 decode),
  request_indices (-1: several), token_counts   [events], in order of time
  offsets                                       [events + 1] into the next three
  expert_ids, assignment_counts, gate_mass      [accesses]

manifest.json says num_experts, top_k and the model; without it give --n-experts
and --top-k. Where it gives a SHA-256 of the events, the file must have it.

Which token chose which expert was not recorded. Demands, their counts and the
steps are exact; the rows of a step of several tokens are dealt out, the heaviest
experts first, so that each row has top_k different ones. A policy that goes by
the order of touches within a step (lru) sees that order and not the router's.
Rows of -1 belong to one request here; schedule.jsonl is not read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .importing import short, warn
from .json_lines import text, whole
from .meta import MAX_EXPERTS, check_whole
from .trace import Trace

name = "moe-cache-eval"
description = "safetensors and manifest.json: events of a layer each, the experts of all tokens and their counts"
source = "shijiuzhang/moe-cache-eval"

EVENTS = ("scheduler_steps", "forward_cycles", "layer_ids", "phases", "request_indices", "token_counts")
ACCESSES = ("expert_ids", "assignment_counts", "gate_mass")
DTYPES = {"U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "F32": "<f4"}
SCHEMA = re.compile(rb'"schema"\s*:\s*"moe-controller-events"')
MOST = 2**31 - 1


def sniff(path: Path, head: bytes) -> bool:
    return head[8:9] == b"{" and SCHEMA.search(head) is not None


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file. A forward cycle is a step; its tokens are rows that are dealt out, since only their sum is recorded."""
    if len(paths) > 1:
        raise BadTrace(f"{paths[1]}: an event trace is one file; import {paths[0]} and this one by themselves")
    path, where = paths[0], str(paths[0])
    data = _tensors(path)
    said = _manifest(path)
    n_experts, k = n_experts or said.get("num_experts"), top_k or said.get("top_k")
    for key, value, option in (("num_experts", n_experts, "--n-experts"), ("top_k", k, "--top-k")):
        if value is None:
            raise BadTrace(f"{where}: no manifest.json beside it says {key}; `slotwise trace import ... {option}` does")
        check_whole(where, key, value, 1, MAX_EXPERTS)
    assert n_experts
    assert k
    _check(where, data, n_experts)
    steps, layers, first, n_tokens = _steps(where, data, k)
    experts = np.empty((int(n_tokens.sum()), len(layers), k), np.int32)
    _deal(where, data, steps, np.cumsum(n_tokens) - n_tokens, experts)
    request = np.maximum(data["request_indices"][first], 0)
    names, request = np.unique(request, return_inverse=True)
    if (data["request_indices"] < 0).any():
        warn(where, "steps of several requests do not say which: their rows are one request (see schedule.jsonl)")
    if (n_tokens > 1).any():
        warn(
            where, "which token chose which expert is not recorded: the rows of a step are dealt out, demands are exact"
        )
    rows = np.repeat(request, n_tokens)
    order = np.argsort(rows, kind="stable")
    position = np.empty(len(rows), np.int64)
    position[order] = np.arange(len(rows)) - np.searchsorted(rows[order], rows[order])
    return Trace.from_arrays(
        experts,
        n_experts=n_experts,
        request=rows,
        step=np.repeat(np.arange(len(first)), n_tokens),
        position=position,
        phase=np.repeat(data["phases"][first], n_tokens),
        model=model or said.get("id") or "",
        revision=said.get("commit"),
        model_layers=layers.tolist(),
        row_bytes=None if row_bytes is None else [row_bytes] * len(layers),
        name=path.parent.resolve().name if path.stem == "events" else path.stem,
        where=where,
        captured_by="moe-cache-eval",
        source=f"moe-cache-eval: {path.name}",
        requests=[{"id": i, "label": f"request {n}", "prompt_tokens": None} for i, n in enumerate(names.tolist())],
    )


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of the file, the header held against its size first."""
    size = path.stat().st_size
    with path.open("rb") as file:
        n = int.from_bytes(file.read(8), "little")
        if size < 8 or n > size - 8:
            raise BadTrace(f"{path}: its header has {n} bytes, but the file {size}; damaged or truncated safetensors")
        try:
            header = json.loads(file.read(n))
        except (ValueError, RecursionError) as error:
            raise BadTrace(f"{path}: the header is not JSON ({short(str(error))}); damaged safetensors") from None
        out = {}
        for key in (*EVENTS, "offsets", *ACCESSES):
            said = header.get(key) if isinstance(header, dict) else None
            if not isinstance(said, dict):
                raise BadTrace(f"{path}: no tensor {key!r}; an event trace has {', '.join(EVENTS + ACCESSES)}, offsets")
            dtype, shape, span = said.get("dtype"), said.get("shape"), said.get("data_offsets")
            shape, span = (part if isinstance(part, list) else [-1] for part in (shape, span))
            if (
                (len(shape), len(span)) != (1, 2)
                or dtype not in DTYPES
                or any(type(v) is not int or v < 0 for v in (*shape, *span))
            ):
                raise BadTrace(f"{path}: tensor {key} is {short(said)}; it must be a list of {', '.join(DTYPES)}")
            kind = np.dtype(DTYPES[dtype])
            if (kind.kind == "f") != (key == "gate_mass"):
                raise BadTrace(f"{path}: tensor {key} is {dtype}; gate_mass is floats, the others are whole numbers")
            n_bytes = shape[0] * kind.itemsize
            if span[1] - span[0] != n_bytes or span[1] > size - 8 - n:
                raise BadTrace(
                    f"{path}: tensor {key} promises {dtype} {short(shape)} at {short(span)}, but {size - 8 - n} bytes "
                    "follow the header; damaged or truncated?"
                )
            file.seek(8 + n + span[0])
            values = np.frombuffer(file.read(n_bytes), kind)
            out[key] = values.astype(np.float64 if kind.kind == "f" else np.int64)
    return out


def _manifest(path: Path) -> dict[str, Any]:
    """What manifest.json says of the model; empty without one."""
    beside = path.with_name("manifest.json")
    if not beside.is_file():
        return {}
    where = str(beside)
    try:
        found = json.loads(beside.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadTrace(f"{where}: not JSON ({short(str(error))})") from None
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict):
        raise BadTrace(f"{where}: no 'model' in it; a manifest says num_experts and top_k")
    artifacts = found.get("artifacts")
    events = artifacts.get("events") if isinstance(artifacts, dict) else None
    expected = events.get("sha256") if isinstance(events, dict) else None
    if expected is not None:
        with path.open("rb") as file:
            there = hashlib.file_digest(file, "sha256").hexdigest()
        if there != expected:
            raise BadTrace(f"{path}: its SHA-256 is {there[:12]}..., but {where} says {short(expected)}; truncated?")
    said: dict[str, Any] = {key: whole(where, model, key, 1, MAX_EXPERTS) for key in ("num_experts", "top_k")}
    return said | {key: text(where, model, key) for key in ("id", "commit")}


def _check(where: str, data: dict[str, np.ndarray], n_experts: int) -> None:
    """Lengths agree and values lie in their ranges."""
    n, n_accesses, offsets = len(data["layer_ids"]), len(data["expert_ids"]), data["offsets"]
    for keys, length in ((EVENTS, n), (("offsets",), n + 1), (ACCESSES, n_accesses)):
        for key in keys:
            if len(data[key]) != length:
                raise BadTrace(f"{where}: {key} has {len(data[key])} entries, not {length}")
    if not n:
        raise BadTrace(f"{where}: no events; a trace needs at least one")
    if offsets[0] or offsets[-1] != n_accesses or (np.diff(offsets) < 0).any():
        raise BadTrace(f"{where}: offsets must rise from 0 to the {n_accesses} accesses, not {short(offsets.tolist())}")
    ranges = {
        "phases": (0, 1),
        "token_counts": (1, MOST),
        "expert_ids": (0, n_experts - 1),
        "assignment_counts": (1, MOST),
        "gate_mass": (0, 1e9),
    }
    for key, (low, high) in (dict.fromkeys(EVENTS, (0, MOST)) | {"request_indices": (-1, MOST)} | ranges).items():
        wrong = np.flatnonzero(~((data[key] >= low) & (data[key] <= high)))
        if wrong.size:
            raise BadTrace(f"{where}: {key}[{wrong[0]}]={data[key][wrong[0]]}; it must lie in {low} to {high}")
    n_bytes, assigned = Path(where).stat().st_size, int(data["assignment_counts"].sum())
    if assigned > 2**20 + 256 * n_bytes:  # a pass of 4096 tokens has 25 a byte
        raise BadTrace(f"{where}: {assigned} assignments in {n_bytes} bytes; no forward pass has so many tokens")


def _steps(where: str, data: dict[str, np.ndarray], k: int) -> tuple[np.ndarray, ...]:
    """(step of each event, layers, first event of each step, tokens of each step); what must agree in a step does."""
    cycle, layer = (data["scheduler_steps"], data["forward_cycles"]), data["layer_ids"]
    change = (np.diff(cycle[0]) != 0) | (np.diff(cycle[1]) != 0)
    back = (np.diff(cycle[0]) < 0) | ((np.diff(cycle[0]) == 0) & (np.diff(cycle[1]) < 0))
    wrong = np.flatnonzero(back | (~change & (np.diff(layer) <= 0)))
    if wrong.size:
        e = wrong[0] + 1
        raise BadTrace(
            f"{where}: event {e} (step {cycle[0][e]}, cycle {cycle[1][e]}, layer {layer[e]}) after step "
            f"{cycle[0][e - 1]}, cycle {cycle[1][e - 1]}, layer {layer[e - 1]}; events go by step, "
            "cycle, layer, each once"
        )
    steps = np.append(0, np.cumsum(change))
    first = np.flatnonzero(np.append(True, change))
    layers = np.unique(layer)
    short_of = np.flatnonzero(np.diff(np.append(first, len(layer))) != len(layers))
    if short_of.size:
        e = first[short_of[0]]
        n = int((steps == short_of[0]).sum())
        raise BadTrace(f"{where}: the step of event {e} has {n} of {len(layers)} layers; truncated?")
    for key in ("phases", "request_indices", "token_counts"):
        wrong = np.flatnonzero(data[key] != data[key][first][steps])
        if wrong.size:
            raise BadTrace(
                f"{where}: {key}[{wrong[0]}]={data[key][wrong[0]]}, but {data[key][first][steps][wrong[0]]} at the "
                "first layer of its step; all layers see the same tokens"
            )
    chosen = np.bincount(_event(data), data["assignment_counts"], len(layer))
    wrong = np.flatnonzero(chosen != k * data["token_counts"])
    if wrong.size:
        e = wrong[0]
        raise BadTrace(
            f"{where}: event {e} has {chosen[e]:.0f} assignments by {data['token_counts'][e]} tokens; each token makes "
            f"top_k={k} at every layer"
        )
    return steps, layers, first, data["token_counts"][first]


def _event(data: dict[str, np.ndarray]) -> np.ndarray:
    """The event of each access."""
    return np.repeat(np.arange(len(data["layer_ids"])), np.diff(data["offsets"]))


def _deal(where: str, data: dict[str, np.ndarray], steps: np.ndarray, row: np.ndarray, experts: np.ndarray) -> None:
    """Fills `experts [rows, layers, k]`; `row` is the first row of each step.

    The assignments of an event lie in a line, expert by expert, and are dealt round its n rows: an expert that at most
    n tokens chose never comes to a row twice.
    """
    event, ids, counts = _event(data), data["expert_ids"], data["assignment_counts"]
    order = np.lexsort((ids, -data["gate_mass"], event))
    by_id = np.lexsort((ids, event))
    again = np.flatnonzero((np.diff(ids[by_id]) == 0) & (np.diff(event[by_id]) == 0))
    if again.size:
        raise BadTrace(
            f"{where}: event {event[by_id[again[0]]]} has expert {ids[by_id[again[0]]]} twice; a set has it once"
        )
    wrong = np.flatnonzero(counts > data["token_counts"][event])
    if wrong.size:
        at = wrong[0]
        raise BadTrace(
            f"{where}: event {event[at]}: expert {ids[at]} was chosen {counts[at]} times by "
            f"{data['token_counts'][event[at]]} tokens; a token chooses an expert once"
        )
    dealt, of = np.repeat(ids[order], counts[order]), np.repeat(event[order], counts[order])
    place = np.arange(len(of)) - np.searchsorted(of, of)
    n = data["token_counts"][of]
    layer = np.unique(data["layer_ids"], return_inverse=True)[1]
    experts[row[steps[of]] + place % n, layer[of], place // n] = dealt
