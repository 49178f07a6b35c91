"""A trace in memory: arrays from anywhere, brought into one shape and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .check import absent, check_ids, check_rows, check_weights, id_dtype
from .errors import BadTrace
from .meta import MAX_EXPERTS, Meta, checked
from .trace import Trace

ROWS = {"request": np.int32, "step": np.int64, "position": np.int32, "phase": np.uint8, "token_id": np.int32}


@dataclass(frozen=True, eq=False)
class Memory:
    """Checked arrays, `[n_layers, n_rows, width]` each. Reading all rows copies nothing."""

    where: str
    columns: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]  # "experts", "weights", "predicted.h1", ...
    groups: np.ndarray

    @property
    def n_rows(self) -> int:
        return len(self.columns["step"])

    @property
    def dtype(self) -> np.dtype:
        return self.arrays["experts"].dtype

    @property
    def widths(self) -> dict[int, int]:
        return {int(kind[11:]): a.shape[2] for kind, a in self.arrays.items() if kind.startswith("predicted")}

    @property
    def has_weights(self) -> bool:
        return "weights" in self.arrays

    @property
    def has_token_id(self) -> bool:
        return "token_id" in self.columns

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {name: self.columns[name][start:stop] for name in names}

    def read(self, kind: str, layers: range, start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(self.arrays[kind][layers.start : layers.stop, start:stop])


def build(
    experts: np.ndarray,
    *,
    n_experts: int,
    request: Any = None,
    step: Any = None,
    position: Any = None,
    phase: Any = None,
    token_id: Any = None,
    predicted: Any = None,
    weights: Any = None,
    name: str = "arrays",
    group_rows: int | None = None,
    where: str | None = None,
    **record: Any,
) -> Trace:
    """See `Trace.from_arrays`. `where` is what messages call the trace, `group_rows` splits it into blocks."""
    where = where or name
    ids = _array(where, "experts", experts)
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        raise BadTrace(f"{where}: experts must be whole numbers [tokens, layers, k], not {ids.dtype} {list(ids.shape)}")
    n, n_layers, top_k = ids.shape
    if not n:
        raise BadTrace(f"{where}: no tokens; a trace needs at least one row")
    ahead = {} if predicted is None else predicted if isinstance(predicted, Mapping) else {1: predicted}
    ahead = {h: _predicted(_array(where, "predicted", a), h, ids.shape, where) for h, a in ahead.items()}
    if ahead:
        h = min(ahead)
        record["predictor"] = {
            "kind": None,
            **(record.get("predictor") or {}),
            "width": ahead[h].shape[2],
            "horizon": h,
        }
    meta = checked(Meta(n_layers=n_layers, n_experts=n_experts, top_k=top_k, **record), where)
    columns = columns_of(where, n, request, step, position, phase, token_id)
    arrays = {"experts": _ids(ids, meta.n_experts, where, "experts", strict=True)}
    for layer in range(n_layers):
        check_ids(arrays["experts"][layer], meta.n_experts, where, layer)
    if weights is not None:
        arrays["weights"] = _weights(_array(where, "weights", weights), arrays["experts"], where)
    for h, given in ahead.items():
        arrays[f"predicted.h{h}"] = out = _ids(given, meta.n_experts, where, "predicted", strict=False)
        out[:h] = absent(out.dtype)
    return of_layers(columns, arrays, meta, name=name, where=where, group_rows=group_rows)


def of_layers(
    columns: dict[str, np.ndarray],
    arrays: dict[str, np.ndarray],
    meta: Meta,
    *,
    name: str,
    where: str | None = None,
    group_rows: int | None = None,
) -> Trace:
    """A trace from arrays that are checked already: `columns` typed as stored, `arrays` laid out [layer, row, ...]."""
    return Trace(Memory(where or name, columns, arrays, groups(columns["step"], group_rows)), meta, name)


def _array(where: str, name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise BadTrace(f"{where}: {name} is no array ({error}); rows have equal lengths") from None


def groups(step: np.ndarray, group_rows: int | None) -> np.ndarray:
    """Row offsets that cut the rows at step boundaries into groups of at most `group_rows` (a longer step is alone)."""
    n = len(step)
    ends = np.append(np.flatnonzero(step[1:] != step[:-1]) + 1, n)
    cuts = [0]
    while group_rows and n - cuts[-1] > group_rows:
        fit = int(np.searchsorted(ends, cuts[-1] + group_rows, side="right")) - 1
        first = int(np.searchsorted(ends, cuts[-1], side="right"))
        cuts.append(int(ends[max(fit, first)]))
    return np.array(cuts if cuts[-1] == n else [*cuts, n])


def columns_of(
    where: str,
    n: int,
    request: Any = None,
    step: Any = None,
    position: Any = None,
    phase: Any = None,
    token_id: Any = None,
) -> dict[str, np.ndarray]:
    """The small columns as they are stored, `[n]` each, checked; what is not given is as `Trace.from_arrays` says."""
    given = {
        "request": np.zeros(n, np.int32) if request is None else request,
        "step": np.arange(n) if step is None else step,
        "position": position,
        "phase": np.ones(n, np.uint8) if phase is None else phase,
        "token_id": token_id,
    }
    columns = {}
    for name, value in given.items():
        if value is None:
            continue
        value = _array(where, name, value)
        if value.shape != (n,) or value.dtype.kind not in "iub":
            raise BadTrace(
                f"{where}: {name} must be {n} whole numbers, one per token, not {value.dtype} {list(value.shape)}"
            )
        low, high = (0, 1) if name == "phase" else (np.iinfo(ROWS[name]).min, np.iinfo(ROWS[name]).max)
        wrong = np.flatnonzero((value < low) | (value > high))
        if wrong.size:
            raise BadTrace(f"{where}: row {wrong[0]}: {name} {value[wrong[0]]}; it must lie in {low} to {high}")
        columns[name] = np.ascontiguousarray(value, ROWS[name])
    if position is None:
        columns["position"] = _counted(columns["request"])
    check_rows(columns, where)
    return columns


def _counted(request: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... within each request, in row order."""
    order = np.argsort(request, kind="stable")
    grouped = request[order]
    begins = np.flatnonzero(np.append(True, grouped[1:] != grouped[:-1]))
    position = np.empty(len(request), np.int32)
    position[order] = np.arange(len(request)) - np.repeat(begins, np.diff(np.append(begins, len(request))))
    return position


def _ids(ids: np.ndarray, n_experts: int, where: str, what: str, *, strict: bool) -> np.ndarray:
    """`[T, L, w]` of any integer type as `[L, T, w]` in the stored type. In uint8 255 is absent up to 255 experts."""
    dtype = id_dtype(n_experts)
    if ids.dtype.kind == "i":
        gone = ids < 0
    elif ids.dtype.itemsize == 1:
        if not strict and n_experts > 255:
            raise BadTrace(
                f"{where}: {what} is uint8, where 255 means none, but n_experts={n_experts}; store it as uint16"
            )
        gone = (ids == 255) if n_experts <= 255 else None
    else:
        gone = (ids == MAX_EXPERTS) if ids.dtype.itemsize == 2 else None
    high = n_experts if strict else absent(dtype)  # a wrong prediction is a fact, a wrong choice is not
    wrong = ids >= high
    if gone is not None:
        wrong &= ~gone
    if wrong.any():
        row, layer, rank = (int(x) for x in np.argwhere(wrong)[0])
        raise BadTrace(
            f"{where}: row {row}, layer {layer}, rank {rank}: {what} {ids[row, layer, rank]}, but n_experts={n_experts}"
        )
    out = np.empty((ids.shape[1], ids.shape[0], ids.shape[2]), dtype)
    np.copyto(out, ids.transpose(1, 0, 2), casting="unsafe")
    if gone is not None and gone.any():
        out[gone.transpose(1, 0, 2)] = absent(dtype)
    return out


def _predicted(ahead: np.ndarray, horizon: int, shape: tuple[int, ...], where: str) -> np.ndarray:
    n, layers, _ = shape
    if not isinstance(horizon, int) or not 1 <= horizon < layers:
        raise BadTrace(
            f"{where}: predictions at horizon {horizon!r} of a trace with {layers} layers; it must lie in 1 to "
            f"{layers - 1}"
        )
    if ahead.ndim != 3 or ahead.shape[:2] != (n, layers) or not ahead.shape[2] or ahead.dtype.kind not in "iu":
        raise BadTrace(
            f"{where}: predicted must be whole numbers [{n}, {layers}, P], not {ahead.dtype} {list(ahead.shape)}"
        )
    return ahead


def _weights(weights: np.ndarray, experts: np.ndarray, where: str) -> np.ndarray:
    layers, n, k = experts.shape
    if weights.shape != (n, layers, k) or weights.dtype.kind not in "fiu":
        raise BadTrace(
            f"{where}: weights must be numbers [{n}, {layers}, {k}] like experts, not {weights.dtype} "
            f"{list(weights.shape)}"
        )
    with np.errstate(over="ignore"):
        out = np.array(weights.transpose(1, 0, 2), np.float16, order="C")  # a copy: the caller's stay as they are
    out[experts == absent(experts.dtype)] = 0
    for layer in range(layers):
        check_weights(out[layer], where, layer)
    return out
