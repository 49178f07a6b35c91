"""Recordings of a record per prompt, token and layer: JSON lines or Parquet.

JSON lines begin with a header, {"model_name", "num_layers", "num_experts",
"top_k", "num_entries", ...}; Parquet has no header, only columns.

  JSON  Parquet
  p     prompt_id         the prompt: a request
  t     token_idx         the token's position, from 0 in each prompt
  l     layer_idx         the model's own layer number
  e     selected_experts  k expert ids
  s     router_scores     optional: k weights, by which ids are then ranked
  ti    token_id          optional
  ph    phase             optional: prefill or decode

Without a phase, the records of a prompt that come in a row at its first layer
are its prefill, since a forward pass is recorded layer by layer (with a single
MoE layer that shows nothing, and every token is a step of decode). Parquet does
not record the number of experts or the model: give --n-experts and --model.
Parquet of whole softmax distributions, without selected_experts, is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .cells import Cells
from .errors import BadTrace
from .importing import request_columns, short, warn
from .json_lines import first_record, records, text, whole
from .meta import MAX_EXPERTS, MAX_LAYERS
from .parquet import decoding, footer
from .pieces import Pieces
from .trace import Trace

name = "policylang"
description = "JSON lines or Parquet, a record per prompt, token and layer: p, t, l, e, s, ph, ti"
source = "moe-policylang (PyPI)"

COLUMNS = {"p": "prompt_id", "t": "token_idx", "l": "layer_idx", "e": "selected_experts"}
OPTIONAL = {"s": "router_scores", "ti": "token_id", "ph": "phase"}
HEADER = ("model_name", "num_layers", "num_experts", "top_k", "num_entries")
MOST = 2**31 - 1
ROWS_A_BYTE = 64  # generous: a row has k ids of its own, however well they compress


def sniff(path: Path, head: bytes) -> bool:
    if not head.startswith(b"PAR1"):
        return set(HEADER) <= first_record(path, head).keys()
    end = footer(path)
    return b"token_idx" in end and b"layer_idx" in end and b"slotwise.trace" not in end


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file. A prompt is a request: its prefill is one step, then a step a token."""
    if len(paths) > 1:
        raise BadTrace(f"{paths[1]}: a recording is one file; import {paths[0]} and this one by themselves")
    path = paths[0]
    with path.open("rb") as file:
        stored = file.read(4) == b"PAR1"
    said, found = _parquet(path) if stored else _json(path)
    cells = Cells(path, "row" if stored else "line", n_experts or said["num_experts"], top_k or said["top_k"])
    pieces, requests = Pieces(str(path), cells.n_experts), []
    for tokens in _prompts(path, found, cells):
        prompt, position = np.array(tokens.prompt), np.array(tokens.position)
        starts = np.append(np.flatnonzero(np.append(True, prompt[1:] != prompt[:-1])), len(prompt))
        prefill, lengths = tokens.prefill(path, starts), np.diff(starts)
        columns = request_columns(lengths, prefill, np.zeros_like(lengths))
        columns |= {"position": position, "token_id": np.array(tokens.token_id)}
        columns["request"] += len(requests)
        columns["step"] += pieces.n_steps
        experts, weights, layers = cells.grid(tokens.name, columns["phase"] == 0)
        pieces.add(columns, layers, experts, weights)
        requests += [
            {"id": len(requests) + i, "label": f"prompt {prompt[start]}", "prompt_tokens": int(prefill[i])}
            for i, start in enumerate(starts[:-1])
        ]
    if said["num_entries"] not in (None, cells.count):
        raise BadTrace(f"{path}: {cells.count} records, but its header says {said['num_entries']}; truncated?")
    if not cells.count:
        raise BadTrace(f"{path}: no records; a trace needs at least one token")
    cells.end()
    return pieces.trace(
        model=model or said["model_name"] or "",
        row_bytes=row_bytes,
        name=path.stem,
        captured_by="moe-policylang",
        source=f"policylang: {path.name}",
        requests=tuple(requests),
    )


class Tokens:
    """What is known of each token, in order of appearance: lists, one entry a token."""

    def __init__(self) -> None:
        self.prompt: list[int] = []
        self.position: list[int] = []
        self.token_id: list[int] = []
        self.phase: list[str | None] = []
        self.first_run: dict[int, int] = {}  # records in a row at the first layer of a prompt
        self.n_layers = 0

    def name(self, row: int) -> str:
        return f"prompt {self.prompt[row]} token {self.position[row]}"

    def prefill(self, path: Path, starts: np.ndarray) -> np.ndarray:
        """How many first tokens of each prompt are its prefill."""
        out = []
        if None in self.phase and self.n_layers == 1:
            warn(str(path), "no phases, and one layer: nothing tells the prompt from what follows; all is decode")
        for start, stop in pairwise(starts):
            phases = self.phase[start:stop]
            if None in phases:
                out.append(0 if self.n_layers == 1 else self.first_run[self.prompt[start]])
                continue
            out.append(phases.count("prefill"))
            if "prefill" in phases[out[-1] :]:
                raise BadTrace(f"{path}: prompt {self.prompt[start]} has prefill after decode; its prefill comes first")
        return np.array(out)


def _prompts(path: Path, found: Iterator[tuple[int, str, dict]], cells: Cells) -> Iterator[Tokens]:
    """Every record into `cells`, and the tokens that they are about: whole prompts, each time that many are held."""
    tokens, rows, layers, seen = Tokens(), {}, set(), set()
    first_layer, running, before = -1, False, -1
    for at, where, record in found:
        p = whole(where, record, "p", 0, MOST) if "p" in record else 0
        t, layer = whole(where, record, "t", 0, MOST), whole(where, record, "l", 0, MAX_LAYERS)
        phase, token = text(where, record, "ph"), record.get("ti")
        if phase not in (None, "prefill", "decode"):
            raise BadTrace(f"{where}: phase {short(phase)}; it is prefill or decode")
        token = -1 if token is None else whole(where, record, "ti", 0, MOST)
        if cells.full() and p != tokens.prompt[-1]:
            tokens.n_layers = len(layers)
            yield tokens
            tokens, rows = Tokens(), {}
        row = rows.setdefault((p, t), len(rows))
        if row == len(tokens.prompt):
            opens = not row or p != tokens.prompt[-1]
            if opens and p in seen:
                raise BadTrace(f"{where}: prompt {p} again, after prompt {before}; prompts follow each other")
            if opens:
                seen.add(p)
                before = p
                tokens.first_run[p], first_layer, running = 0, layer, True
            elif t < tokens.position[-1]:
                raise BadTrace(f"{where}: token {t} of prompt {p} after token {tokens.position[-1]}; tokens rise")
            tokens.prompt.append(p)
            tokens.position.append(t)
            tokens.token_id.append(token)
            tokens.phase.append(phase)
        elif (tokens.token_id[row], tokens.phase[row]) != (token, phase):
            raise BadTrace(
                f"{where}: token {t} of prompt {p} is ti={token}, ph={phase}, but ti={tokens.token_id[row]}, "
                f"ph={tokens.phase[row]} at another layer"
            )
        running = running and layer == first_layer
        tokens.first_run[p] += running
        layers.add(layer)
        cells.add(at, row, layer, record.get("e"), record.get("s"))
    if tokens.prompt:
        tokens.n_layers = len(layers)
        yield tokens


def _json(path: Path) -> tuple[dict[str, Any], Iterator[tuple[int, str, dict]]]:
    """(what the header says, the records)."""
    lines = records(path)
    _, where, header = next(lines, (1, f"{path} line 1", {}))
    said: dict[str, Any] = {"model_name": text(where, header, "model_name")}
    for key, high in (("num_experts", MAX_EXPERTS), ("top_k", MAX_EXPERTS), ("num_entries", 2**62)):
        said[key] = whole(where, header, key, 1, high)
    return said, lines


def _parquet(path: Path) -> tuple[dict[str, Any], Iterator[tuple[int, str, dict]]]:
    """(what the file shows in place of a header, its rows under the keys of JSON)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = str(path)
    with decoding(where):
        file = pq.ParquetFile(path)
        types = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
    named = COLUMNS | {key: column for key, column in OPTIONAL.items() if column in types}
    for key, column in named.items():
        kind = types.get(column, pa.null())
        value = kind.value_type if key in "es" and pa.types.is_list(kind) else kind
        right = {"s": pa.types.is_floating, "ph": pa.types.is_string}.get(key, pa.types.is_integer)
        if not right(value) or (key in "es") != pa.types.is_list(kind):
            raise BadTrace(f"{where}: column {column} is {types.get(column, 'missing')}; it does not hold {key!r}")
    n_rows, n_bytes = file.metadata.num_rows, path.stat().st_size
    if n_rows > 2**16 + ROWS_A_BYTE * n_bytes:  # the headers of columns say more, but Arrow aborts on damaged ones
        raise BadTrace(f"{where}: promises {n_rows} rows, which its {n_bytes} bytes cannot hold")

    def rows() -> Iterator[tuple[int, str, dict]]:
        at = 0
        with decoding(where):
            for batch in file.iter_batches(1 << 14, columns=list(named.values())):
                columns = [batch.column(column).to_pylist() for column in named.values()]
                for values in zip(*columns, strict=True):
                    yield at, f"{where} row {at}", dict(zip(named, values, strict=True))
                    at += 1

    return {"model_name": None, "num_experts": None, "top_k": None, "num_entries": n_rows}, rows()
