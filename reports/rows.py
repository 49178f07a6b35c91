"""Result files -> checked rows: a dict per configuration with its identity, options, counters, and splits as arrays.

What it was priced at, if it was, is a list under "prices": one dict for each machine and way of pricing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadResult
from .metrics import COUNTERS, NULLABLE
from .opening import opened
from .prices import check_price

Row = dict[str, Any]
IDENTITY = {"trace": str, "trace_sha256": str, "content_sha256": str, "model": str} | dict.fromkeys(
    ("n_layers", "n_experts", "top_k", "n_tokens", "n_tokens_counted", "n_steps", "n_requests"), int
)
OPTIONS = {
    "policy": str, "slots": int, "slots_asked": str, "capacity_bytes": int, "scope": str, "contract": str,
    "width": int, "predictor": str, "horizon": int, "lag_demand": int, "lag_prefetch": int, "max_loads": int,
    "overflow": str, "reset": str, "miss": str, "prefill": str, "batch_gate": int, "phase": str, "steps": int,
    "verify_tokens": int, "accept": float, "seed": int, "row_bytes": int,
}  # fmt: skip
MAY_BE_NULL = {
    "slots",
    "capacity_bytes",
    "max_loads",
    "steps",
    "row_bytes",
    "slots_asked",
    "batch_gate",
    "token_cycle_bytes",
    *NULLABLE,
}
POSITIVE = {"n_layers", "n_experts", "top_k", "verify_tokens", "horizon"}
NESTED = ("by_layer", "by_phase", "by_request", "along")
SPLIT = ("demands", "hits", "misses")  # what must add up to the whole in every split


def read_rows(paths: Iterable[Path | str]) -> list[Row]:
    """Rows of all files in order; a configuration found twice with equal results is taken once.

    Raises:
        BadResult: a file that is empty, cut off, of another kind, or whose counters contradict each other.
        FileNotFoundError, IsADirectoryError, PermissionError: as from `open`.
    """
    rows: dict[tuple, Row] = {}
    for path in paths:
        for row in _read(Path(path)):
            key = tuple(row[name] for name in ("content_sha256", "slots_by_layer", *OPTIONS))
            seen = rows.setdefault(key, row)
            for name in COUNTERS:
                if seen[name] != row[name]:
                    raise BadResult(
                        f"{row['file']} row {row['index']}: {row['policy']} at {row['slots_asked']} slots is also in "
                        f"{seen['file']} row {seen['index']} with other counts ({name} {row[name]} and {seen[name]}); "
                        "report on one of the two"
                    )
            seen["prices"] += [price for price in row["prices"] if price not in seen["prices"]]
    if not rows:
        raise BadResult("nothing to report on: give at least one result file, such as `slotwise sweep` writes")
    return list(rows.values())


def _read(path: Path) -> list[Row]:
    with opened(path) as parquet:
        _check_columns(path, parquet.schema_arrow.names)
        table = parquet.read().combine_chunks()
        price = ["price"] * ("price" in table.column_names)
        rows = table.select([*kinds_of_columns(), "slots_by_layer", *price]).to_pylist()
        nested = {name: _split(path, table.column(name), len(rows)) for name in NESTED}
    if not rows:
        raise BadResult(f"{path}: holds no result rows; run the sweep again")
    for index, row in enumerate(rows):
        row["file"], row["index"] = path.name, index
        row["slots_by_layer"] = tuple(row["slots_by_layer"]) if row["slots_by_layer"] else None
        row |= {name: nested[name][index] for name in NESTED}
        row["prices"] = [each for each in [row.pop("price", None)] if each is not None]
        for each in row["prices"]:
            check_price(f"{path} row {index}", each)
        _check(f"{path} row {index}", row)
    return rows


def kinds_of_columns() -> dict[str, type]:
    """The flat columns of a result and the type of their values."""
    return IDENTITY | OPTIONS | dict.fromkeys((*COUNTERS, *NULLABLE, "token_cycle_bytes"), int)


def _check_columns(path: Path, names: list[str]) -> None:
    if any(name.startswith("experts.") for name in names):
        raise BadResult(f"{path}: is a trace, not a result; `slotwise compare` goes from a trace to a report")
    wanted = [*kinds_of_columns(), *NESTED, "slots_by_layer"]
    if missing := [name for name in wanted if name not in names]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadResult(
            f"{path}: no sweep result, column {missing[0]!r}{more} is missing; "
            "a report is made from what `slotwise sweep` writes"
        )


def _split(path: Path, column: Any, n_rows: int) -> list[dict[str, Any]]:
    """A column of structs -> per row a dict of scalars, of arrays, or of such dicts (`by_phase`)."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_struct(kind):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        fields = {kind.field(i).name: _split(path, array.field(i), n_rows) for i in range(kind.num_fields)}
        return [{name: values[row] for name, values in fields.items()} for row in range(n_rows)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not (pa.types.is_integer(kind.value_type) or pa.types.is_null(kind.value_type)):
            raise BadResult(f"{path}: a list of {kind.value_type} where counts are expected; no sweep result")
        offsets = column.offsets.to_numpy()
        values = column.values.to_numpy(zero_copy_only=False)
        return [values[offsets[row] : offsets[row + 1]] for row in range(n_rows)]
    return column.to_pylist()


def _check(where: str, row: Row) -> None:
    check_flat(where, row)
    for split in NESTED:
        _check_split(where, row, split)


def check_flat(where: str, row: Row) -> None:
    """Types, signs, and the sums that every replay and every run satisfies."""
    for name, kind in kinds_of_columns().items():
        value = row[name]
        if value is None and name in MAY_BE_NULL:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BadResult(f"{where}: {name} is {value!r}, but must be {kind.__name__}; no sweep result")
        if isinstance(value, int) and kind is int and name != "seed" and value < (least := int(name in POSITIVE)):
            raise BadResult(f"{where}: {name} is {value}, but must be {least} or more; no sweep result")
    for whole, parts in (("demands", ("hits", "misses")), ("hits", ("hits_demand", "prefetch_hits")),
                         ("loads_speculative", ("prefetch_hits", "used_late", "wasted", "unresolved"))):  # fmt: skip
        if whole == "loads_speculative" and row["phase"] != "all":
            continue  # this balance crosses phases
        if row[whole] != sum(row[part] for part in parts):
            sums = " + ".join(f"{part} {row[part]}" for part in parts)
            raise BadResult(f"{where}: {whole} {row[whole]} is not {sums}; the file is damaged")


def _check_split(where: str, row: Row, split: str) -> None:
    """Every count is there, once for each part, and the parts add up to the whole."""
    parts = row[split]
    labels = {"by_request": "request", "along": "first_step"}.get(split, "demands")
    if not isinstance(parts, dict) or not (split == "by_phase" or isinstance(parts.get(labels), np.ndarray)):
        raise BadResult(f"{where}: {split} is {type(parts).__name__}, but must hold counts; no sweep result")
    if split == "by_phase":
        found: list[Any] = [parts.get("prefill"), parts.get("decode")]
        if not all(isinstance(part, dict) for part in found):
            raise BadResult(f"{where}: by_phase must hold prefill and decode; no sweep result")
        parts = {name: np.array([part.get(name) for part in found]) for name in (*COUNTERS, "tokens")}
        n_parts = 2
    else:
        n_parts = row["n_layers"] if split == "by_layer" else len(parts[labels])
    step = parts.get("window_steps")
    if split == "along" and not (isinstance(step, int) and step > 0 and n_parts and parts[labels].dtype.kind in "iu"):
        raise BadResult(f"{where}: along must have first steps and a window of 1 step or more; no sweep result")
    for name in COUNTERS if split == "by_layer" else (*COUNTERS, "tokens"):
        values = parts.get(name)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu" or len(values) != n_parts:
            raise BadResult(f"{where}: {split} does not have {n_parts} counts of {name}; no sweep result")
        if name in SPLIT and values.sum() != row[name] and not (split == "by_phase" and row["phase"] != "all"):
            raise BadResult(
                f"{where}: {name} is {row[name]} in all, but {values.sum()} summed over {split}; the file is damaged"
            )
