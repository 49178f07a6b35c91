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
from typing import Any

import numpy as np

from .cells import Cells
from .errors import BadTrace
from .importing import request_columns, short
from .json_lines import first_record, records, text, whole
from .meta import MAX_EXPERTS, MAX_LAYERS
from .pieces import Pieces
from .trace import Trace

name = "moe-cache-lab"
description = "JSON lines v1: a metadata record, then routing_selection records; a file is a request"
source = "birkansit/moe-cache-lab"

FORMAT = "moe-cache-lab.routing-jsonl"
MOST = 2**31 - 1


def sniff(path: Path, head: bytes) -> bool:
    return first_record(path, head).get("format") == FORMAT


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file, or one per request (their models, layers and k must agree; they are strung together)."""
    heads = [_metadata(*next(records(path), (1, str(path), {}))[1:]) for path in paths]
    said = heads[0]
    pieces, lengths = Pieces(str(paths[0]), n_experts or said["num_experts"]), []
    for i, (path, head) in enumerate(zip(paths, heads, strict=True)):
        for what in ("model_id", "num_experts"):
            if head[what] != said[what]:
                raise BadTrace(
                    f"{path}: {what} {short(head[what])}, but {short(said[what])} in {paths[0]}; one capture's files "
                    "agree"
                )
        lengths.append(_request(path, i, pieces, top_k or head["experts_per_token"]))
    return pieces.trace(
        model=model or said["model_id"],
        revision=said["model_revision"],
        row_bytes=row_bytes,
        name=paths[0].stem,
        captured_by=said["capture_method"],
        captured_at=said["created_at"],
        source="moe-cache-lab: " + ", ".join(path.name for path in paths),
        requests=tuple(
            {"id": i, "label": path.stem if len(paths) > 1 else None, "prompt_tokens": n}
            for i, (path, n) in enumerate(zip(paths, lengths, strict=True))
        ),
    )


def _request(path: Path, request: int, pieces: Pieces, top_k: int | None) -> int:
    """The records of one file into `pieces`; how many tokens its prompt has."""
    lines = records(path)
    next(lines, None)
    cells = Cells(path, "line", pieces.n_experts, top_k)
    rows: dict[int, int] = {}  # of a token among those that are held, by its position
    tokens: list[int] = []
    before, n_prompt, last = (-1, -1, -1), 0, -1
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
        if cells.full() and phase == "generated" and position not in rows:
            last = _put(path, request, pieces, cells, list(rows), tokens, n_prompt, last)
            rows, tokens = {}, []
        row = rows.setdefault(position, len(rows))
        token = -1 if record.get("token_id") is None else whole(where, record, "token_id", 0, MOST)
        if row == len(tokens):
            tokens.append(token)
            n_prompt += phase == "prompt"
        elif phase == "generated" and row < n_prompt and last < 0:
            raise BadTrace(f"{where}: position {position} is generated, but it was part of the prompt")
        elif token != tokens[row]:
            raise BadTrace(f"{where}: token_id {token} at position {position}, but {tokens[row]} at the layer before")
        cells.add(at, row, layer, record.get("selected_experts"), record.get("selected_probabilities"))
    if not rows:
        raise BadTrace(f"{path}: a metadata record and no routing_selection (truncated?)")
    _put(path, request, pieces, cells, list(rows), tokens, n_prompt, last)
    cells.end()
    return n_prompt


def _put(
    path: Path, request: int, pieces: Pieces, cells: Cells, rows: list[int], tokens: list[int], n_prompt: int, last: int
) -> int:
    """The tokens that are held, at the positions `rows` after position `last`, become a piece; the last position."""
    position = np.array([last, *rows])
    falls = np.flatnonzero(np.diff(position) <= 0)
    if falls.size:
        a, b = position[falls[0] : falls[0] + 2]
        raise BadTrace(f"{path}: position {b} follows {a}; positions rise, the prompt's before the generated ones")
    n_prompt = n_prompt if last < 0 else 0  # of these tokens: the first piece has the prompt as a whole
    columns = request_columns(np.array([len(rows)]), np.array([n_prompt]), np.zeros(1, np.int64))
    columns |= {"request": columns["request"] + request, "step": columns["step"] + pieces.n_steps}
    columns |= {"position": position[1:], "token_id": np.array(tokens)}
    experts, weights, layers = cells.grid(lambda row: f"position {rows[row]}", np.arange(len(rows)) < n_prompt)
    pieces.add(columns, layers, experts, weights)
    return int(position[-1])


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
