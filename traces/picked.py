"""Picked, a store of rows taken from other traces: what split, merge, cut and regroup make without copying anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from .check import absent
from .errors import BadTrace
from .memory import groups
from .meta import Meta, checked
from .trace import GROUP_ROWS, Trace

NEAR = 4096  # rows that are read and thrown away sooner than a row group is opened twice


@dataclass(frozen=True, eq=False)
class Picked:
    """Rows of `sources`, in the order of `take`; they are read from there when asked for, a row group at a time.

    `take [n_rows]` counts the sources' rows one source after the other. `columns` holds `request` and `step`, which an
    edit may change; all else is as it was. Kept in memory: 20 bytes a row. `layers` are those of the sources that stay.
    """

    where: str
    sources: tuple[Trace, ...]
    take: np.ndarray
    columns: dict[str, np.ndarray]
    layers: range
    without: frozenset[str]
    groups: np.ndarray

    @property
    def n_rows(self) -> int:
        return len(self.take)

    @property
    def dtype(self) -> np.dtype:
        return self.sources[0].dtype

    @property
    def widths(self) -> dict[int, int]:
        kept = {} if "predictions" in self.without else self.sources[0].store.widths
        return {horizon: width for horizon, width in kept.items() if horizon < len(self.layers)}

    @property
    def has_weights(self) -> bool:
        return "weights" not in self.without and self.sources[0].has_weights

    @property
    def has_token_id(self) -> bool:
        return "token-ids" not in self.without and any(source.store.has_token_id for source in self.sources)

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        out = {name: self.columns[name][start:stop] for name in names if name in self.columns}
        types = {"position": np.int32, "phase": np.uint8, "token_id": np.int32}
        new = {name: np.full(stop - start, -1 if name == "token_id" else 0, types[name]) for name in names
               if name not in self.columns}  # fmt: skip
        for store, a, b, at, of in self._runs(start, stop) if new else ():
            there = tuple(name for name in new if name != "token_id" or store.has_token_id)
            for name, column in store.rows(a, b, there).items():
                new[name][at] = column[of]
        return out | new

    def read(self, kind: str, layers: range, start: int, stop: int) -> np.ndarray:
        horizon = int(kind[11:]) if kind.startswith("predicted") else 0
        there = range(max(layers.start, horizon), max(layers.stop, horizon))
        width = self.widths[horizon] if horizon else self.sources[0].top_k
        dtype = np.dtype(np.float16) if kind == "weights" else self.dtype
        out = np.empty((len(layers), stop - start, width), dtype)
        blank = len(layers) - len(there)  # nothing comes before the first layers that could predict for them
        if blank:
            out[:blank] = absent(dtype)
        theirs = range(there.start + self.layers.start, there.stop + self.layers.start)
        for store, a, b, at, of in self._runs(start, stop) if there else ():
            out[blank:, at] = store.read(kind, theirs, a, b)[:, of]
        return out

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the sources begin (and the last ends), and where their row groups do, counted as `take` counts."""
        firsts = np.cumsum([0, *(source.n_tokens for source in self.sources)])
        begins = [s.store.groups[:-1] + first for s, first in zip(self.sources, firsts, strict=False)]
        return firsts, np.concatenate(begins)

    def _runs(self, start: int, stop: int) -> Iterator[tuple[Any, int, int, np.ndarray, np.ndarray]]:
        """What to read for these rows: (store, its rows a to b, places here, places from a), each row group once."""
        take = self.take[start:stop]
        order = np.argsort(take, kind="stable")
        rows = take[order]
        firsts, begins = self._places
        group = np.searchsorted(begins, rows, side="right")
        cuts = np.flatnonzero((group[1:] != group[:-1]) | (rows[1:] - rows[:-1] > NEAR)) + 1
        for i, j in pairwise([0, *cuts.tolist(), len(rows)]):
            source = int(np.searchsorted(firsts, rows[i], side="right")) - 1
            a, b = int(rows[i] - firsts[source]), int(rows[j - 1] - firsts[source]) + 1
            yield self.sources[source].store, a, b, order[i:j], rows[i:j] - rows[i]


def picked(
    sources: Sequence[Trace],
    take: np.ndarray,
    request: np.ndarray,
    step: np.ndarray,
    meta: Meta,
    *,
    name: str,
    done: str,
    layers: range | None = None,
    without: frozenset[str] = frozenset(),
) -> Trace:
    """The trace of these rows; `meta` is the sources', brought up to date here. `done` says in words what was done."""
    if not len(take):
        raise BadTrace(f"{name}: {done}: no row is left; a trace needs at least one")
    layers = range(meta.n_layers) if layers is None else layers
    step, request = step.astype(np.int64, copy=False), request.astype(np.int32, copy=False)
    cuts = groups(step, GROUP_ROWS)
    store = Picked(name, tuple(sources), take, {"request": request, "step": step}, layers, without, cuts)
    there = set(np.unique(request).tolist())
    horizon = min(store.widths, default=0)
    meta = replace(
        meta,
        n_layers=len(layers),
        model_layers=meta.model_layers[layers.start : layers.stop],
        row_bytes=meta.row_bytes and meta.row_bytes[layers.start : layers.stop],
        predictor={**(meta.predictor or {"kind": None}), "width": store.widths[horizon], "horizon": horizon}
        if horizon
        else None,
        requests=tuple(r for r in meta.requests if r["id"] in there),
        source=f"{done} of {' and '.join(_origin(source) for source in sources)}",
        sha256=None,
    )
    return Trace(store, checked(meta, name), name)


def _origin(trace: Trace) -> str:
    """What a derived trace says of one that it came from."""
    ids = f" (ids {trace.meta.sha256[:12]})" if trace.meta.sha256 else ""
    return f"{trace.name}{ids}" + (f" [{trace.meta.source}]" if trace.meta.source else "")
