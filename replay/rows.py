"""The result file of a sweep: one Parquet row per configuration, with every option and the trace's identity."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .errors import BadOption
from .options import CHOICES, UNRECORDED, Options
from .price import CAUSES
from .tally import NAMES

FORMAT = b"slotwise.sweep"
VERSION = b"3"
_OPTIONS = [name for name in Options.__dataclass_fields__ if name not in (*UNRECORDED, "slots")]
_KEYED = (
    "trace",
    "content_sha256",
    "files_sha256",
    *_OPTIONS,
    "slots",
    "slots_asked",
    "slots_by_layer",
    "capacity_bytes",
)


PRICED = (
    "machine_sha256", "overlap", "when_late", "dense_us", "cpu_threads", "max_queued", "spec_chunk", "split_share",
)  # fmt: skip


def option_key(row: dict[str, Any], *, window=None, pollution=None, hashed=None, priced=None) -> str:
    """What makes two rows the same configuration."""
    values = [row.get(name) for name in _KEYED]
    values.append(row["along"]["window_steps"] if window is None else window)
    values.append(row["pollution"] is not None if pollution is None else pollution)
    values.append(row["plan_sha256"] is not None if hashed is None else hashed)
    price = row.get("price") if priced is None else priced
    values.append([price[name] for name in PRICED] if price else None)
    return json.dumps(values)


def whatever_the_files(key: str) -> str:
    """The key without what the files of its policy held."""
    values = json.loads(key)
    del values[_KEYED.index("files_sha256")]
    return json.dumps(values)


def flat_columns() -> list[tuple[str, Any]]:
    """Identity, options, counters and what they end with: (name, type of pyarrow)."""
    import pyarrow as pa

    text, whole, real = pa.string(), pa.int64(), pa.float64()
    counts = [(name, whole) for name in NAMES]
    identity = [("trace", text), ("trace_sha256", text), ("content_sha256", text), ("model", text)]
    identity += [(n, whole) for n in "n_layers n_experts top_k n_tokens n_steps n_requests n_tokens_counted".split()]
    kinds = {"accept": real, "policy": text, "predictor": text, **dict.fromkeys(CHOICES, text)}
    options = [(name, kinds.get(name, whole)) for name in _OPTIONS]
    options += [
        ("files_sha256", text),
        ("slots", whole),
        ("slots_asked", text),
        ("slots_by_layer", pa.list_(whole)),
        ("capacity_bytes", whole),
    ]
    tail = [("token_cycle_bytes", whole), ("plan_sha256", text), ("seconds", real)]
    return identity + options + counts + tail


def schema():
    """The file's columns and their types."""
    import pyarrow as pa

    whole = pa.int64()
    counts = [(name, whole) for name in NAMES]
    lists = [(name, pa.list_(whole)) for name in NAMES]
    nested = [
        ("by_layer", pa.struct(lists)),
        ("by_phase", pa.struct([(phase, pa.struct([("tokens", whole), *counts])) for phase in ("prefill", "decode")])),
        ("by_request", pa.struct([("request", pa.list_(whole)), ("tokens", pa.list_(whole)), *lists])),
        (
            "along",
            pa.struct([("window_steps", whole), *((n, pa.list_(whole)) for n in ("first_step", "tokens")), *lists]),
        ),
    ]
    nested.append(("price", _price()))
    return pa.schema(flat_columns() + nested, metadata={b"format": FORMAT, b"version": VERSION})


def _price():
    """The column of prices, null where no machine was given: what `Price.to_dict` holds."""
    import pyarrow as pa

    text, whole, real = pa.string(), pa.int64(), pa.float64()

    def each(kind: Any, names: str) -> list[tuple[str, Any]]:
        return [(name, kind) for name in names.split()]

    bound = pa.struct([("tokens_per_s", real), ("tokens_per_s_interval", pa.list_(real))])
    phase = pa.struct([("tokens", whole), ("seconds", real), ("tokens_per_s", real)])
    return pa.struct([
        ("lag_auto", pa.bool_()),
        *each(text, "label machine machine_sha256 machine_label machine_date overlap when_late policy_cost_of"),
        *each(real, "dense_us"), *each(whole, "cpu_threads max_queued spec_chunk"), *each(real, "split_share"),
        *each(whole, "tokens"),
        *each(real, "seconds tokens_per_s bytes_per_token gain tpot_p50_s tpot_p95_s tpot_p99_s"),
        *each(pa.list_(real), "tokens_per_s_interval hit_rate_interval bytes_per_token_interval gain_interval"),
        ("parts", pa.struct([(name, real) for name in CAUSES])),
        ("busy", pa.struct(each(real, "link gpu cold host"))),
        *each(whole, "late_hits late_ticks diverted ticks_overlapped ticks_serial"),
        *each(real, "lateness_mean_s lateness_worst_s"),
        *each(real, "base_s miss_s explained precision break_even_precision"),
        ("without", bound), ("ceiling", bound),
        ("by_phase", pa.struct([("prefill", phase), ("decode", phase)])),
    ])  # fmt: skip


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """One row per configuration, in a file that appears whole."""
    place(rows, schema(), path)


def place(rows: list[dict[str, Any]], columns: Any, path: Path, *, new: bool = False) -> None:
    """Writes beside and renames, so that a reader never sees half a file. `new`: FileExistsError if there is one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, schema=columns)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name[:32], suffix=".tmp", delete=False) as temporary:
        pass
    try:
        pq.write_table(table, temporary.name, compression="zstd")
        Path(temporary.name).chmod(0o644)
        if new:
            os.link(temporary.name, path)  # a rename would replace what came meanwhile
        else:
            Path(temporary.name).replace(path)
    finally:
        Path(temporary.name).unlink(missing_ok=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier sweep, [] if there is no such file. Raises BadOption if the file is something else."""
    if not path.exists():
        return []
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadOption(f"{path} exists and is not a sweep's result ({error}); choose another name") from error
    metadata = table.schema.metadata or {}
    if metadata.get(b"format") != FORMAT:
        raise BadOption(f"{path} exists and is not a sweep's result; choose another name")
    if metadata.get(b"version") != VERSION or table.schema.names != schema().names:
        version = metadata.get(b"version", b"?").decode(errors="replace")
        raise BadOption(f"{path} is a result of format version {version}, not {VERSION.decode()}; choose another name")
    return table.to_pylist()
