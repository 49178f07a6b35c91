"""Routing traces in JSON lines, version 1: an event per token and layer.

  {"record_type": "metadata", "format": "moe-cache-lab.routing-jsonl",
   "format_version": 1, "model_id": ..., "num_experts": E,
   "experts_per_token": k, ...}
  {"record_type": "routing_selection", "phase": "prompt", "token_position": 0,
   "layer": 0, "selected_experts": [...], "selected_probabilities": [...],
   "token_id": ...}

Prompt events come layer by layer, then generated ones token by token; any other
order is refused, as is a token that lacks a layer, but for the last layer of a
prompt. The prompt is one step of prefill, each generated token a step of decode.
Ids are ranked by probability where it is recorded. A file is a request; several
files of one model are one capture. Version 2 (encoder and decoder) is not read.
A file cut off after a whole token looks like a shorter one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .cells import Cells
from .errors import BadTrace
from .importing import guessed_n_experts, request_columns, short
from .json_lines import first_record, records, text, whole
from .meta import MAX_EXPERTS, MAX_LAYERS
from .trace import Trace

name = "moe-cache-lab"
description = "JSON lines v1: a metadata record, then routing_selection records; a file is a request"
source = "birkansit/moe-cache-lab"

FORMAT = "moe-cache-lab.routing-jsonl"
MOST = 2**31 - 1


def sniff(path: Path, head: bytes) -> bool:
    return first_record(path, head).get("format") == FORMAT


class Request(NamedTuple):
    """One file: arrays `[tokens, layers, k]`, columns `[tokens]`, and what its metadata says."""

    experts: np.ndarray
    weights: np.ndarray | None
    layers: list[int]
    position: np.ndarray
    token_id: np.ndarray
    n_prompt: int
    largest: int
    said: dict[str, Any]


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file, or one per request (their models, layers and k must agree; they are strung together)."""
    parts = [_request(path, n_experts, top_k) for path in paths]
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        for what, here, there in (
            ("model_id", part.said["model_id"], first.said["model_id"]),
            ("num_experts", part.said["num_experts"], first.said["num_experts"]),
            ("layers", part.layers, first.layers),
            ("top_k", part.experts.shape[2], first.experts.shape[2]),
        ):
            if here != there:
                raise BadTrace(
                    f"{path}: {what} {short(here)}, but {short(there)} in {paths[0]}; one capture's files agree"
                )
    where = str(paths[0])
    lengths, prompts = np.array([[len(part.position), part.n_prompt] for part in parts]).T
    columns = request_columns(lengths, prompts, np.zeros_like(lengths))
    tokens = np.concatenate([part.token_id for part in parts])
    weights = [part.weights for part in parts if part.weights is not None]
    return Trace.from_arrays(
        np.concatenate([part.experts for part in parts]),
        n_experts=n_experts or first.said["num_experts"] or guessed_n_experts(where, max(p.largest for p in parts)),
        weights=np.concatenate(weights) if len(weights) == len(parts) else None,
        **columns | {"position": np.concatenate([part.position for part in parts])},
        token_id=tokens if (tokens >= 0).any() else None,
        model=model or first.said["model_id"],
        revision=first.said["model_revision"],
        model_layers=first.layers,
        row_bytes=None if row_bytes is None else [row_bytes] * len(first.layers),
        name=paths[0].stem,
        where=where,
        captured_by=first.said["capture_method"],
        captured_at=first.said["created_at"],
        source="moe-cache-lab: " + ", ".join(path.name for path in paths),
        requests=[
            {"id": i, "label": path.stem if len(paths) > 1 else None, "prompt_tokens": part.n_prompt}
            for i, (path, part) in enumerate(zip(paths, parts, strict=True))
        ],
    )


def _request(path: Path, n_experts: int | None, top_k: int | None) -> Request:
    lines = records(path)
    said = _metadata(*next(lines, (1, str(path), {}))[1:])
    cells = Cells(path, "line", n_experts or said["num_experts"], top_k or said["experts_per_token"])
    rows: dict[int, int] = {}  # of a token, by its position
    tokens: list[int] = []
    before, n_prompt = (-1, -1, -1), 0
    for at, where, record in lines:
        if record.get("record_type") != "routing_selection":
            raise BadTrace(
                f"{where}: record_type {short(record.get('record_type'))}; only routing_selection follows the metadata "
                "(two captures in one file? import them as two files)"
            )
        phase = record.get("phase")
        if phase not in ("prompt", "generated"):
            raise BadTrace(f"{where}: phase {short(phase)}; it is prompt or generated")
        position, layer = whole(where, record, "token_position", 0, MOST), whole(where, record, "layer", 0, MAX_LAYERS)
        now = (0, layer, position) if phase == "prompt" else (1, position, layer)
        if now <= before:
            raise BadTrace(
                f"{where}: {phase} position {position} at layer {layer} comes too late; prompt events go layer by "
                "layer, then generated ones token by token (two captures in one file? import them as two files)"
            )
        before = now
        row = rows.setdefault(position, len(rows))
        token = -1 if record.get("token_id") is None else whole(where, record, "token_id", 0, MOST)
        if row == len(tokens):
            tokens.append(token)
            n_prompt += phase == "prompt"
        elif phase == "generated" and row < n_prompt:
            raise BadTrace(f"{where}: position {position} is generated, but it was part of the prompt")
        elif token != tokens[row]:
            raise BadTrace(f"{where}: token_id {token} at position {position}, but {tokens[row]} at the layer before")
        cells.add(at, row, layer, record.get("selected_experts"), record.get("selected_probabilities"))
    if not rows:
        raise BadTrace(f"{path}: a metadata record and no routing_selection (truncated?)")
    position = np.array(list(rows))
    falls = np.flatnonzero(np.diff(position) <= 0)
    if falls.size:
        a, b = position[falls[0] : falls[0] + 2]
        raise BadTrace(f"{path}: position {b} follows {a}; positions rise, the prompt's before the generated ones")
    experts, weights, layers = cells.grid(lambda row: f"position {position[row]}", np.arange(len(rows)) < n_prompt)
    return Request(experts, weights, layers, position, np.array(tokens), n_prompt, cells.largest, said)


def _metadata(where: str, record: dict) -> dict[str, Any]:
    """The fields of the first line that a trace keeps."""
    if record.get("record_type") != "metadata" or record.get("format") != FORMAT:
        raise BadTrace(f"{where}: the first record must be metadata with format {FORMAT!r}")
    if record.get("format_version") != 1:
        version = short(record.get("format_version"))
        raise BadTrace(f"{where}: format_version {version}; version 1 is read (2 has an encoder beside the decoder)")
    said: dict[str, Any] = {
        key: None if record.get(key) is None else whole(where, record, key, 1, MAX_EXPERTS)
        for key in ("num_experts", "experts_per_token")
    }
    for key in ("model_id", "model_revision", "capture_method", "created_at"):
        said[key] = text(where, record, key)
    if not said["model_id"]:
        raise BadTrace(f"{where}: no model_id; the metadata names the model")
    return said
