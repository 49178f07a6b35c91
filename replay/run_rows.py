"""The result file of runs: the flat columns of a sweep's rows, and what only a run has. Measured, not simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .rows import flat_columns, place

FORMAT = b"slotwise.run"
VERSION = b"1"
SETTINGS = {
    "overlap": str, "backend": str, "device": str, "machine": str, "weights": str, "hidden": int, "intermediate": int,
    "dtypes": list, "cold": str, "host": str, "merge": str, "when_late": str, "split_share": float, "spec_chunk": int,
    "max_queued": int, "staging": int, "headroom_bytes": int, "alias_layers": int, "cpu_threads": int, "spin_us": float,
    "activations": str, "sms": int, "link_pad": int, "restricted_to": str, "dense_us": float, "checked": bool,
    "lag_auto": bool, "machine_sha256": str,
}  # fmt: skip


def schema():
    """The file's columns and their types."""
    import pyarrow as pa

    text, whole, real, truth = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    kinds = {str: text, int: whole, float: real, bool: truth, list: pa.list_(text)}

    def reals(*names: str) -> list[tuple[str, Any]]:
        return [(name, real) for name in names]

    def wholes(*names: str) -> list[tuple[str, Any]]:
        return [(name, whole) for name in names]

    parts = reals(*"both_s hot_alone_s cold_alone_s late_s policy_s merge_s rest_s between_s".split())
    seconds = "hot_s cold_s copies_s policy_s wait_s late_s merge_s tick_s".split()
    timing = [
        *wholes("steps", "tokens", "repeats"),
        *reals("seconds", "timed_s", "tokens_per_s", "step_p50_s", "step_p95_s", "step_p99_s", *seconds),
        ("tokens_per_s_range", pa.list_(real)),
        ("tokens_per_s_runs", pa.list_(real)),
        ("parts", pa.struct(parts)),
        *reals("overlap_efficiency"),
        *wholes("diverted", "copies", "copy_batches", "bytes_copied", "bytes_hot", "bytes_cold"),
        *wholes("reader_waits", "bytes_padded", "hurried", "overtaken", "requeued", "ticks_overlapped", "ticks_serial"),
    ]
    rates = reals("copy_rows_per_s", "copy_large_per_s", "host_read_per_s", "device_read_per_s")
    ceilings = [*rates, *wholes("store_bytes", "l3_bytes", "read_bytes")]
    where = [("step", whole), ("layer", whole), ("phase", text), ("load", whole), ("kind", text)]
    tick = [
        *wholes("step", "layer", "hits", "misses", "loads"),
        *reals("at_s", "total_s", "policy_s", "merge_s"),
        *((spans, pa.list_(pa.struct(reals("at_s", "seconds")))) for spans in ("hot", "cold", "late")),
    ]
    rows = [("layers", text), ("intermediate", whole), ("dtypes", pa.list_(text)), ("row_bytes", whole)]
    nested = [
        ("incomplete", pa.struct([("steps", whole), ("error", text)])),
        ("largest_error", real),
        ("rows_by_layer", pa.list_(pa.struct(rows))),
        ("timing", pa.struct(timing)),
        ("achieved", pa.struct(reals("copies_per_s", "cold_per_s", "hot_per_s"))),
        ("ceilings", pa.struct(ceilings)),
        ("failures", pa.list_(pa.struct(where))),
        (
            "stretch",
            pa.struct(
                [
                    ("ticks", pa.list_(pa.struct(tick))),
                    ("copies", pa.list_(pa.struct([*reals("at_s", "seconds"), *wholes("bytes")]))),
                ]
            ),
        ),
    ]
    own = [("measured", truth), *((name, kinds[kind]) for name, kind in SETTINGS.items())]
    return pa.schema([*flat_columns(), *own, *nested], metadata={b"format": FORMAT, b"version": VERSION})


def row_of(run: dict[str, Any]) -> dict[str, Any]:
    """A run as `slotwise run --json` prints it, as one row: counters beside the options, the rest as it is."""
    return {name: value for name, value in run.items() if name != "counters"} | run["counters"]


def write_runs(runs: list[dict[str, Any]], path: Path) -> None:
    """One row per run, in a new file that appears whole. Raises FileExistsError."""
    place([row_of(run) for run in runs], schema(), path, new=True)
