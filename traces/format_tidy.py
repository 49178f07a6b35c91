"""Tidy lines, as `slotwise trace export` writes them: a line per token, layer and rank, in Parquet or CSV.

  token     the row, from 0; the lines of a token follow each other
  request   of the token, and so on:
  step      the forward pass; it never falls
  position  place in the request
  phase     prefill or decode
  layer     the MoE layer, from 0
  rank      the router's rank, from 0; each layer of a token has all its ranks
  expert    the id
  weight    optional

A layer without lines did not see the token. Parquet of ours has a JSON record
`slotwise.tidy` in its metadata: number of experts, the model's layer numbers,
row sizes, model, labels and provenance come back from it. CSV has no such
record: give --n-experts, and --row-bytes and --model. Predictions and token ids
are in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from .errors import BadTrace
from .importing import short
from .meta import MAX_EXPERTS, MAX_LAYERS, Meta, check_whole, parse
from .parquet import decoding, footer
from .passes import one_path
from .pieces import Pieces
from .trace import Trace

if TYPE_CHECKING:
    import pyarrow

name = "tidy"
description = "Parquet or CSV, a line per token, layer and rank, as `slotwise trace export` writes it"
source = "slotwise"

KEY = b"slotwise.tidy"
PER_TOKEN = ("request", "step", "position", "phase")
NAMES = ("token", *PER_TOKEN, "layer", "rank", "expert")
LINES = 1 << 16  # of a batch
BLOCK = 1 << 22  # bytes of text that are parsed at a time
ABSENT = 64  # layers that may be absent for one that is there

Batch = dict[str, np.ndarray]


def sniff(path: Path, head: bytes) -> bool:
    if head.startswith(b"PAR1"):
        end = footer(path)
        named = all(word in end for word in (b"token", b"position", b"layer", b"rank", b"expert"))
        return KEY in end or (named and b"slotwise.trace" not in end)
    return head.partition(b"\n")[0].strip().split(b",")[: len(NAMES)] == [name.encode() for name in NAMES]


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a tidy table")
    with path.open("rb") as file:
        stored = file.read(4) == b"PAR1"
    said = _record(path) if stored else None
    if said:
        n_experts, top_k = n_experts or said.n_experts, top_k or said.top_k
    lines = _Lines(path, "row" if stored else "line", n_experts, top_k)
    lines.model_layers = said.model_layers if said else ()
    lines.n_layers = said.n_layers if said else _n_layers(lines, _batches(path, stored, ["layer"]))
    for batch in _batches(path, stored, [*NAMES, "weight"]):
        lines.take(batch)
    lines.put(last=True)
    about = {} if said is None else {key: said[key] for key in ("revision", "router", "captured_by", "captured_at",
                                                                "source", "licence", "requests", "sha256")}  # fmt: skip
    trace = lines.pieces.trace(
        row_bytes=row_bytes,
        name=path.stem,
        model=model or (said.model if said else ""),
        **{"source": f"tidy: {path.name}"} | about,
    )
    return trace.with_row_bytes(said.row_bytes) if said and said.row_bytes and row_bytes is None else trace


class _Lines:
    """Batches of lines, cut between tokens and made into rows."""

    def __init__(self, path: Path, unit: str, n_experts: int | None, top_k: int | None) -> None:
        if top_k is not None:
            check_whole(str(path), "top_k", top_k, 1, MAX_EXPERTS)
        self.path, self.unit, self.top_k = path, unit, top_k
        self.pieces = Pieces(str(path), n_experts)
        self.model_layers: tuple[int, ...] = ()
        self.n_layers = self.lines = 0  # lines that are put into `pieces`
        self.held: Batch = {}

    def refuse(self, at: int | np.integer, why: str) -> NoReturn:
        """`at` counts the held lines; in text the first line is the head."""
        raise BadTrace(f"{self.path} {self.unit} {self.lines + int(at) + 2 * (self.unit == 'line')}: {why}")

    def take(self, batch: Batch) -> None:
        """Puts the tokens of the lines so far, but for the last one, which may go on."""
        self.held = {key: np.concatenate([self.held[key], c]) for key, c in batch.items()} if self.held else batch
        if len(self.held["token"]) >= LINES:
            self.put(last=False)

    def put(self, *, last: bool) -> None:
        if not self.held:
            raise BadTrace(f"{self.path}: a head and no lines; a trace needs at least one token")
        token = self.held["token"]
        n = len(token) if last else int(np.flatnonzero(np.append(-1, token[:-1]) != token)[-1])
        if not n:
            return
        rest = {key: column[n:] for key, column in self.held.items()}
        self.held = {key: column[:n] for key, column in self.held.items()}
        self._rows()
        self.held, self.lines = rest, self.lines + n

    def _rows(self) -> None:
        """The held lines, of whole tokens, become a piece."""
        lines = self.held
        token, layer, rank, expert = (lines[key] for key in ("token", "layer", "rank", "expert"))
        self.top_k = k = self.top_k or int(np.argmax(np.append(rank[1:] == 0, True))) + 1
        first, n = self.pieces.n_rows, len(token)
        for key, high in (("layer", self.n_layers), ("rank", k), ("expert", self.pieces.n_experts or MAX_EXPERTS)):
            wrong = np.flatnonzero((lines[key] < 0) | (lines[key] >= high))
            if wrong.size:
                self.refuse(wrong[0], f"{key} {lines[key][wrong[0]]}; here it lies in 0 to {high - 1}")
        place = np.arange(n) % k
        begins = np.arange(n) - place
        wrong = np.flatnonzero((rank != place) | (layer != layer[begins]) | (token != token[begins]))
        if wrong.size or n % k:
            at = wrong[0] if wrong.size else n - 1
            self.refuse(
                at,
                f"rank {rank[at]} of layer {layer[at]} of token {token[at]}; each layer of a token has the ranks 0 to "
                f"{k - 1}, in order (truncated?)",
            )
        cells = slice(0, n, k)
        step = np.append(token[0] - (first - 1), np.diff(token[cells]))  # 0 within a token
        falls = (step == 0) & np.append(False, np.diff(layer[cells]) <= 0)
        wrong = np.flatnonzero((step < 0) | (step > 1) | falls)
        if wrong.size:
            at = int(wrong[0]) * k
            self.refuse(
                at,
                f"token {token[at]} layer {layer[at]}; tokens count from 0 by one, and layers rise (lines lost, "
                "or two tables in one file?)",
            )
        rows = token[cells] - first
        starts = np.flatnonzero(step == 1) * k
        for key in PER_TOKEN:
            wrong = np.flatnonzero(lines[key] != lines[key][starts][token - first])
            if wrong.size:
                self.refuse(wrong[0], f"{key} {lines[key][wrong[0]]}, but another one in the lines of its token before")
        if len(starts) * self.n_layers > ABSENT * (n // k + 1024):
            self.refuse(
                n - 1,
                f"{n // k} layers in {len(starts)} tokens of {self.n_layers} layers; of so few a trace is not made",
            )
        shape = len(starts), self.n_layers, k
        experts, weights = np.full(shape, -1, np.int32), None
        experts[rows, layer[cells]] = expert.reshape(-1, k)
        if "weight" in lines:
            weights = np.zeros(shape)
            weights[rows, layer[cells]] = lines["weight"].reshape(-1, k)
        columns = {key: lines[key][starts] for key in PER_TOKEN}
        self.pieces.add(columns, self.model_layers or range(self.n_layers), experts, weights)


def _n_layers(lines: _Lines, batches: Iterator[Batch]) -> int:
    """The largest layer and one more: nothing else says how many there are."""
    seen = np.zeros(MAX_LAYERS, np.bool_)
    for batch in batches:
        layer = batch["layer"]
        wrong = np.flatnonzero((layer < 0) | (layer >= MAX_LAYERS))
        if wrong.size:
            lines.refuse(wrong[0], f"layer {layer[wrong[0]]}; layers count from 0 and below {MAX_LAYERS}")
        seen[layer] = True
        lines.lines += len(layer)
    lines.lines = 0
    return int(np.flatnonzero(seen).max(initial=-1)) + 1


def _record(path: Path) -> Meta | None:
    """What the export says about the trace, if this is one of ours."""
    import pyarrow.parquet as pq

    with decoding(str(path)):
        record = (pq.read_schema(path).metadata or {}).get(KEY)
    return None if record is None else parse(record, str(path))


def _batches(path: Path, stored: bool, names: list[str]) -> Iterator[Batch]:
    """The lines as arrays, int64 and float64, a batch after the other; "weight" is left out where there is none."""
    with decoding(str(path)) if stored else _parsing(path):
        yield from (_arrays(path, batch) for batch in (_stored if stored else _text)(path, names))


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Arrow's complaints about text, as ours."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: no table of numbers ({short(' '.join(str(error).split()))}); truncated?") from None


def _stored(path: Path, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    types = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
    for name in names:
        kind = types.get(name, pa.null())
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        right = {"phase": texts, "weight": pa.types.is_floating(kind)}.get(name, pa.types.is_integer(kind))
        if not right and (name in types or name != "weight"):
            raise BadTrace(f"{path}: column {name} is {types.get(name, 'missing')}; it does not hold a {name}")
    yield from file.iter_batches(LINES, columns=[name for name in names if name in types], use_threads=False)


def _text(path: Path, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa
    from pyarrow import csv

    with path.open("rb") as file:
        head = file.readline(1 << 16).decode("utf-8-sig", "replace").strip().split(",")
        file.seek(-1, 2)
        if file.read() != b"\n":
            raise BadTrace(f"{path}: the last line has no end; truncated?")
    if head[: len(NAMES)] != list(NAMES) or head[len(NAMES) :] not in ([], ["weight"]):
        raise BadTrace(f"{path} line 1: {short(','.join(head))}; the head is {','.join(NAMES)} and maybe weight")
    types = dict.fromkeys(head, pa.int64()) | {"phase": pa.string(), "weight": pa.float64()}
    convert = csv.ConvertOptions(
        column_types=types, include_columns=[name for name in names if name in head], null_values=[],
        strings_can_be_null=False,
    )  # fmt: skip
    yield from csv.open_csv(path, csv.ReadOptions(use_threads=False, block_size=BLOCK), None, convert)


def _arrays(path: Path, batch: pyarrow.RecordBatch) -> Batch:
    import pyarrow as pa
    from pyarrow import compute as pc

    out = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count:
            raise BadTrace(f"{path}: column {name} has nulls; every line says all of it")
        if name == "phase":
            text = column.cast(pa.string())
            decode, prefill = (
                pc.equal(text, word).to_numpy(zero_copy_only=False)  # pyright: ignore[reportAttributeAccessIssue]
                for word in ("decode", "prefill")
            )
            if not (decode | prefill).all():
                other = text[int(np.argmin(decode | prefill))].as_py()
                raise BadTrace(f"{path}: phase {short(other)}; it is prefill or decode")
            out[name] = decode.astype(np.int64)
        else:
            kind = np.float64 if name == "weight" else np.int64
            values = column.to_numpy(zero_copy_only=False)
            out[name] = values.astype(kind)
    return out
