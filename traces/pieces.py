"""Rows of a capture, piece after piece: few stay in memory, many go to a temporary file, and both become one trace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from .check import absent, check_ids, check_weights, id_dtype
from .errors import BadTrace
from .importing import guessed_n_experts
from .memory import columns_of, groups, of_layers
from .meta import MAX_EXPERTS, Meta, check_whole, checked
from .trace import GROUP_ROWS, Trace

HELD = 64 << 20  # bytes of ids and weights that stay in memory
KINDS = {"experts": np.dtype("<u2"), "weights": np.dtype("<f2")}
NONE = absent(KINDS["experts"])


@dataclass(eq=False)
class Piece:
    """Rows `first` to `first + n`: `[n_layers, n, k]` of each kind, an array or where it begins in the file."""

    first: int
    n: int
    n_layers: int
    kept: dict[str, Any]


class Pieces:
    """What an importer has read so far: `add` whole rows in their order, and `trace` at the end, once.

    Ids are below `n_experts` where that is known; else it is guessed at the end. A piece may lack the last layer in
    rows of prefill, as the parts of a long prompt do. Weights that some piece lacks are left out.
    """

    def __init__(self, where: str, n_experts: int | None) -> None:
        if n_experts is not None:
            check_whole(where, "n_experts", n_experts, 1, MAX_EXPERTS)
        self.where, self.n_experts = where, n_experts
        self.n_rows, self.n_steps, self.top_k, self.largest = 0, 0, 0, -1
        self.layers: list[int] = []
        self.file: IO[bytes] | None = None
        self._columns: dict[str, list[np.ndarray]] = {}
        self._pieces: list[Piece] = []
        self._held = 0

    def add(
        self, columns: dict[str, np.ndarray], layers: Sequence[int], experts: np.ndarray, weights: np.ndarray | None
    ) -> None:
        """`columns [n]` as `Trace.from_arrays` takes them, the model's layer numbers, and `[n, layers, k]` arrays, -1
        where an id is absent. All pieces have the same columns and k; unknown token ids are -1."""
        ids = np.ascontiguousarray(experts.transpose(1, 0, 2))
        self._layers(list(layers))
        if self.top_k not in (0, ids.shape[2]):
            raise BadTrace(f"{self.where}: top-{ids.shape[2]} after top-{self.top_k}; one capture has one top_k")
        self.largest = max(self.largest, int(ids.max()))
        check_whole(self.where, "n_experts", max(self.largest + 1, 1), 1, MAX_EXPERTS)
        kept = {"experts": ids.astype(KINDS["experts"])}
        if weights is not None:
            with np.errstate(over="ignore"):
                kept["weights"] = np.ascontiguousarray(weights.transpose(1, 0, 2)).astype(KINDS["weights"])
            kept["weights"][kept["experts"] == NONE] = 0
        for layer in range(len(layers)):
            check_ids(kept["experts"][layer], self.n_experts or MAX_EXPERTS, self.where, layer, self.n_rows)
            if weights is not None:
                check_weights(kept["weights"][layer], self.where, layer, self.n_rows)
        for name, column in columns.items():
            self._columns.setdefault(name, []).append(np.array(column))
        self._pieces.append(Piece(self.n_rows, ids.shape[1], len(layers), kept))
        self.n_rows, self.top_k, self.n_steps = self.n_rows + ids.shape[1], ids.shape[2], int(columns["step"][-1]) + 1
        self._held += sum(array.nbytes for array in kept.values())
        if self.file is None and self._held > HELD:
            self.file = tempfile.TemporaryFile(prefix="slotwise-")  # noqa: SIM115 - lives as long as the trace
        if self.file is not None:
            self._spill(self.file)

    def _layers(self, layers: list[int]) -> None:
        known = self.layers
        both = min(len(layers), len(known))
        if known and (layers[:both] != known[:both] or abs(len(layers) - len(known)) > 1):
            gone = sorted(set(layers) ^ set(known))[0]
            raise BadTrace(
                f"{self.where}: layer {gone} is in some tokens only, before or after row {self.n_rows}; every token "
                "passes every layer (truncated, or two captures in one file?)"
            )
        self.layers = max(layers, known, key=len)

    def _spill(self, file: IO[bytes]) -> None:
        """Writes what is still held."""
        for piece in reversed(self._pieces):
            if not isinstance(piece.kept["experts"], np.ndarray):
                break
            for kind, array in piece.kept.items():
                piece.kept[kind] = file.tell()
                file.write(array.data)
        file.flush()

    def trace(self, *, row_bytes: int | None, name: str, **record: Any) -> Trace:
        """All rows as one trace. `row_bytes` is that of every layer; `record` are fields of `Meta`."""
        n_layers = len(self.layers)
        columns = {key: np.concatenate(parts) for key, parts in self._columns.items()}
        if "token_id" in columns and (columns["token_id"] < 0).all():
            del columns["token_id"]
        columns = columns_of(self.where, self.n_rows, **columns)
        for piece in self._pieces:
            decode = np.flatnonzero(columns["phase"][piece.first : piece.first + piece.n])
            if piece.n_layers < n_layers and (decode.size or piece is self._pieces[-1]):
                row = piece.first + (int(decode[0]) if decode.size else piece.n - 1)
                raise BadTrace(
                    f"{self.where}: row {row} has no layer {self.layers[-1]}; every token passes every layer "
                    "(truncated?)"
                )
        meta = checked(
            Meta(
                n_layers=n_layers,
                n_experts=self.n_experts or guessed_n_experts(self.where, self.largest),
                top_k=self.top_k,
                model_layers=tuple(self.layers),
                row_bytes=None if row_bytes is None else (row_bytes,) * n_layers,
                **record,
            ),
            self.where,
        )
        stored = Spilled(self, columns, id_dtype(meta.n_experts))
        if self.file is not None:
            return Trace(stored, meta, name)
        layers = range(n_layers)
        kinds = ("experts", "weights") if stored.has_weights else ("experts",)
        arrays = {kind: stored.read(kind, layers, 0, self.n_rows) for kind in kinds}
        return of_layers(columns, arrays, meta, name=name, where=self.where)


class Spilled:
    """The store of rows that lie in pieces; `file` is unnamed and gone with the last trace that reads it."""

    def __init__(self, pieces: Pieces, columns: dict[str, np.ndarray], dtype: np.dtype) -> None:
        self.widths: dict[int, int] = {}
        self.where, self.columns, self.dtype = pieces.where, columns, dtype
        self.groups = groups(columns["step"], GROUP_ROWS)
        self._pieces, self._file, self._k = pieces._pieces, pieces.file, pieces.top_k
        self._firsts = np.array([piece.first for piece in self._pieces])

    @property
    def n_rows(self) -> int:
        return len(self.columns["step"])

    @property
    def has_weights(self) -> bool:
        return all("weights" in piece.kept for piece in self._pieces)

    @property
    def has_token_id(self) -> bool:
        return "token_id" in self.columns

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {name: self.columns[name][start:stop] for name in names}

    def read(self, kind: str, layers: range, start: int, stop: int) -> np.ndarray:
        dtype = self.dtype if kind == "experts" else KINDS[kind]
        out = np.full((len(layers), stop - start, self._k), absent(dtype) if kind == "experts" else 0, dtype)
        for piece, a, b in self._overlaps(start, stop):
            for layer in range(layers.start, min(layers.stop, piece.n_layers)):
                row = piece.first + a - start
                out[layer - layers.start, row : row + b - a] = self._part(piece, kind, layer, a, b).astype(dtype)
        return out

    def _part(self, piece: Piece, kind: str, layer: int, a: int, b: int) -> np.ndarray:
        kept = piece.kept[kind]
        if isinstance(kept, np.ndarray):
            return kept[layer, a:b]
        assert self._file is not None
        row = self._k * KINDS[kind].itemsize
        data = os.pread(self._file.fileno(), (b - a) * row, kept + (layer * piece.n + a) * row)
        return np.frombuffer(data, KINDS[kind]).reshape(b - a, self._k)

    def _overlaps(self, start: int, stop: int) -> Iterator[tuple[Piece, int, int]]:
        """(piece, first and last row inside it) of the rows start to stop."""
        for piece in self._pieces[int(np.searchsorted(self._firsts, start, side="right")) - 1 :]:
            if piece.first >= stop:
                return
            yield piece, max(start - piece.first, 0), min(stop - piece.first, piece.n)
