"""Files of `slotwise run` -> checked rows, and these by what may share a figure: one trace, one machine, one shape."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from . import metrics
from .errors import BadResult
from .opening import opened
from .rows import IDENTITY, OPTIONS, Row, check_flat, kinds_of_columns

SETTINGS = {
    "overlap": str, "backend": str, "device": str, "machine": str, "weights": str, "hidden": int, "intermediate": int,
    "dtypes": list, "cold": str, "host": str, "merge": str, "when_late": str, "split_share": float, "spec_chunk": int,
    "max_queued": int, "staging": int, "headroom_bytes": int, "alias_layers": int, "cpu_threads": int, "spin_us": float,
    "activations": str, "sms": int, "link_pad": int, "restricted_to": str, "dense_us": float, "checked": bool,
    "lag_auto": bool, "machine_sha256": str,
}  # fmt: skip
OPTIONAL = {
    "intermediate", "dtypes", "split_share", "spec_chunk", "max_queued", "staging", "alias_layers", "sms",
    "restricted_to", "machine_sha256",
}  # fmt: skip
NESTED = ("timing", "achieved", "ceilings", "stretch")
PARTS = {  # of a run's seconds: field -> name
    "both_s": "hot and cold at once", "hot_alone_s": "hot alone", "cold_alone_s": "cold alone",
    "late_s": "awaited copies", "policy_s": "policy", "merge_s": "merge", "rest_s": "rest of the ticks",
    "between_s": "between ticks",
}  # fmt: skip
SECONDS = "seconds timed_s step_p50_s step_p95_s step_p99_s hot_s cold_s copies_s policy_s wait_s late_s".split()
SECONDS += "merge_s tick_s".split()
COUNTS = "steps tokens repeats diverted copies copy_batches bytes_copied bytes_hot bytes_cold bytes_padded".split()
COUNTS += "reader_waits hurried overtaken requeued".split()
ENGINES = (  # name, what it achieved, its ceiling
    ("copies", "copies_per_s", "copy_rows_per_s"),
    ("cold chain", "cold_per_s", "host_read_per_s"),
    ("hot chain", "hot_per_s", "device_read_per_s"),
)
TICK = "step layer hits misses loads at_s total_s policy_s merge_s".split()
LAYERS = {"layers", "intermediate", "dtypes", "row_bytes"}
SPANS = ("hot", "cold", "late")
SPAN, BATCH = ("at_s", "seconds"), ("at_s", "seconds", "bytes")
MOST_SECONDS, MOST_RATE = 1e9, 1e18  # of one run, and a second: what is more was never measured
LEAST = 1e-12  # of a rate that is not 0: nothing can be divided by less; seconds may be less, by rounding
# What runs of one chapter have in common; whatever else they differ in is in their names.
SHARED = (
    "content_sha256", "machine", "backend", "device", "hidden", "intermediate", "dtypes", "row_bytes", "steps",
    "verify_tokens", "accept", "contract", "dense_us",
)  # fmt: skip
NAMED = (  # options in the order in which they set the names of configurations apart
    "scope", "miss", "split_share", "host", "merge", "cold", "activations", "when_late", "spec_chunk", "max_queued",
    "restricted_to", "predictor", "horizon", "lag_demand", "lag_prefetch", "max_loads", "overflow", "reset", "prefill",
    "batch_gate", "cpu_threads", "spin_us", "alias_layers", "staging", "seed", "weights", "headroom_bytes", "file",
)  # fmt: skip


def read_runs(paths: Iterable[Path | str]) -> list[Row]:
    """Rows of all files in order. Raises BadResult for a file that is damaged, or whose figures cannot be."""
    return [row for path in dict.fromkeys(map(Path, paths)) for row in _read(path)]


def _read(path: Path) -> list[Row]:
    with opened(path) as parquet:
        wanted = [*kinds_of_columns(), "slots_by_layer", "rows_by_layer", "incomplete", "measured", *SETTINGS, *NESTED]
        if missing := [name for name in wanted if name not in parquet.schema_arrow.names]:
            raise BadResult(f"{path}: no result of a run, column {missing[0]!r} is missing; run it again")
        rows = parquet.read(columns=wanted).to_pylist()
    if not rows:
        raise BadResult(f"{path}: holds no runs; run it again")
    for index, row in enumerate(rows):
        row["file"], row["index"], row["path"] = path.name, index, str(path.resolve())
        check_run(f"{path} row {index}", row)
    return rows


def check_run(where: str, row: Row) -> None:
    """Types, signs and sums of the flat columns; numbers within bounds where the figures need them.

    Raises:
        BadResult: one line that names `where`, the value and its rule.
    """
    check_flat(where, row)
    if row["measured"] is not True:
        raise BadResult(f"{where}: measured is {row['measured']!r}, but a run is measured; no result of a run")
    for name, kind in SETTINGS.items():
        if not (isinstance(row[name], kind) or (row[name] is None and name in OPTIONAL)):
            raise BadResult(f"{where}: {name} is {row[name]!r}, but must be {kind.__name__}; no result of a run")
    if row["overlap"] not in ("on", "off", "auto"):
        raise BadResult(f"{where}: overlap is {row['overlap']!r}, but must be on, off or auto; no result of a run")
    for name in ("accept", *(name for name, kind in SETTINGS.items() if kind is float)):
        if row[name] is not None and not 0 <= row[name] <= MOST_SECONDS:  # nan is neither
            raise BadResult(f"{where}: {name} is {row[name]}, but must be from 0 to 1e9; no result of a run")
    broken = row["incomplete"]
    if broken is not None and not (_counts(broken, "steps") and isinstance(broken.get("error"), str)):
        raise BadResult(f"{where}: incomplete is {broken!r}, not steps and an error; no result of a run")
    for part in _listed(where, "rows_by_layer", row["rows_by_layer"] or []):
        known = _counts(part, "intermediate", "row_bytes") and part.keys() >= LAYERS
        if not (known and isinstance(part["layers"], str) and isinstance(part["dtypes"], list)):
            raise BadResult(f"{where}: rows_by_layer has {part!r}, not the rows of some layers; no result of a run")
    for name in NESTED:
        if not isinstance(row[name], dict):
            raise BadResult(f"{where}: {name} is {row[name]!r}, but must hold figures; no result of a run")
    for name, value in _figures(where, row):
        _check_figure(where, name, value)
    timing = row["timing"]
    speed, ends = timing["tokens_per_s"], timing["tokens_per_s_range"]
    if ends and not ends[0] <= speed <= ends[1]:
        raise BadResult(f"{where}: timing.tokens_per_s is {speed}, outside its range {ends}; no result of a run")


def _counts(value: Any, *names: str) -> bool:
    """Whether a dict has whole numbers from 0 under these names."""
    return isinstance(value, dict) and all(type(value.get(name)) is int and value[name] >= 0 for name in names)


def _figures(where: str, row: Row) -> Iterator[tuple[str, Any]]:
    """Path -> figure of everything that is nested; what is missing is said to be. What may be null is left out if so.

    Raises:
        BadResult: something else where a list or a dict of figures must be.
    """
    timing, rates = row["timing"], [name for _, *names in ENGINES for name in names]
    parts = timing.get("parts") or {}
    yield from _fields(where, "timing.parts", parts, PARTS)
    flat = {name: value for name, value in timing.items() if not isinstance(value, (list, dict))}
    lists = ("tokens_per_s_range", "tokens_per_s_runs")
    figures = dict(_fields(where, "timing", flat, (*SECONDS, *COUNTS, "tokens_per_s", "overlap_efficiency")))
    for name in ("parts", *lists):
        figures.pop(f"timing.{name}", None)  # null: none of them, as said beside
    bests = row["achieved"] | row["ceilings"]
    figures |= dict(_fields(where, "bandwidths", bests, (*rates, "copy_large_per_s")))
    for name, value in figures.items():
        may_be_null = name.startswith("bandwidths.") or name in ("timing.tokens_per_s", "timing.overlap_efficiency")
        if value is not None or not may_be_null:
            yield name, value
    ends, runs = (_listed(where, f"timing.{name}", timing.get(name) or []) for name in lists)
    if not (len(ends) == (2 if timing["tokens_per_s"] else 0) and bool(ends) == bool(runs)):
        raise BadResult(f"{where}: {len(ends)} ends of the range of {len(runs)} runs; no result of a run")
    for name, values in zip(lists, (ends, runs), strict=True):
        yield from ((f"timing.{name}[{i}]", value) for i, value in enumerate(values))
    for i, tick in enumerate(_listed(where, "stretch.ticks", row["stretch"].get("ticks"))):
        at, spans = f"stretch.ticks[{i}]", {}
        if isinstance(tick, dict):
            spans = {name: tick.get(name) for name in SPANS}
            tick = {name: value for name, value in tick.items() if name not in SPANS}
        yield from _fields(where, at, tick, TICK)
        for name, values in spans.items():
            for j, span in enumerate(_listed(where, f"{at}.{name}", values)):
                yield from _fields(where, f"{at}.{name}[{j}]", span, SPAN)
    for i, batch in enumerate(_listed(where, "stretch.copies", row["stretch"].get("copies"))):
        yield from _fields(where, f"stretch.copies[{i}]", batch, BATCH)


def _fields(where: str, path: str, value: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise BadResult(f"{where}: {path} is {value!r}, but must hold figures; no result of a run")
    yield from ((f"{path}.{name}", one) for name, one in (dict.fromkeys(names, "missing") | value).items())


def _listed(where: str, path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadResult(f"{where}: {path} is {value!r}, but must be a list; no result of a run")
    return value


def _check_figure(where: str, path: str, value: Any) -> None:
    """A finite number within the bounds that its name sets: a rate, seconds, or else a count, which is whole."""
    name = path.rpartition(".")[2]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadResult(f"{where}: {path} is {value!r}, but must be a number; no result of a run")
    least, most = 0.0, math.inf
    if "_per_s" in name:
        most = MOST_RATE
    elif name.endswith("_s") or name == "seconds":
        most = MOST_SECONDS
        least = -most if name == "at_s" else 0.0  # a copy may have begun before the first tick that is kept
    elif name == "overlap_efficiency":
        least, most = -MOST_SECONDS, MOST_SECONDS
    elif not isinstance(value, int):
        raise BadResult(f"{where}: {path} is {value!r}, but must be whole; no result of a run")
    if value < least:
        raise BadResult(f"{where}: {path} is {value}, but must be {least:g} or more; no result of a run")
    if "_per_s" in name and 0 < value < LEAST:
        raise BadResult(f"{where}: {path} is {value}, but must be 0, or {LEAST:g} or more; no result of a run")
    if value > most:
        raise BadResult(f"{where}: {path} is {value}, but must be {most:g} at most; no result of a run")


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of one trace on one machine with one shape of rows."""

    rows: list[Row]
    title: str
    label = "MEASURED"

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def about(self) -> str:
        return f"contract {self.first['contract']} · scope {self.first['scope']}"

    @cached_property
    def configurations(self) -> dict[str, dict[str, Row]]:
        """Name -> its sides, {"on": row, "off": row} or one of them; in file order."""
        groups: dict[tuple, dict[str, Row]] = {}
        for row in self.rows:
            groups.setdefault(_key(row), {})[row["overlap"]] = row
        firsts = [next(iter(sides.values())) for sides in groups.values()]
        ahead = [row for row in firsts if row["width"]]
        rows_of = {name: ahead if name in ("predictor", "horizon") else firsts for name in NAMED if name != "file"}
        varying = [name for name, rows in rows_of.items() if len({str(row[name]) for row in rows}) > 1]
        names = [_name(row, varying) for row in firsts]
        if len(set(names)) < len(names):
            names = [_name(row, [*varying, "file"]) for row in firsts]
        again = [names[:i].count(name) for i, name in enumerate(names)]  # of files of one name in several folders
        names = [f"{name}, {n + 1}" if n else name for name, n in zip(names, again, strict=True)]
        return dict(zip(names, [dict(sorted(sides.items(), reverse=True)) for sides in groups.values()], strict=True))


def _key(row: Row) -> tuple:
    """What the two sides of one configuration have in common."""
    named = (*OPTIONS, *(name for name in SETTINGS if name != "overlap"), "slots_by_layer", "path")
    return tuple(str(row[name]) for name in named)


def _name(row: Row, varying: Sequence[str]) -> str:
    """'lfru+guard, 32 slots, width 4', and what else sets it apart."""
    slots = f"{row['slots']} slots" if row["slots"] is not None else f"{row['slots_asked']} slots"
    words = [row["policy"], slots, f"width {row['width']}"]
    for name in varying:
        if name in ("predictor", "horizon") and not row["width"]:
            continue
        word, value = name.replace("_", " "), row[name]
        words.append(f"no {word}" if value is None else str(value) if name == "file" else f"{word} {value}")
    return ", ".join(words)


def runs_of(rows: Sequence[Row]) -> list[Runs]:
    """The rows by what they share, in file order; what sets one trace's groups apart is in their titles."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in SHARED), []).append(row)
    out = []
    for members in groups.values():
        first = members[0]
        siblings = [other[0] for other in groups.values() if other[0]["trace"] == first["trace"]]
        varying = [name for name in SHARED if len({str(other[name]) for other in siblings}) > 1]
        words = [f"{name.removesuffix('_sha256').replace('_', ' ')} {_short(first[name])}" for name in varying]
        out.append(Runs(members, ", ".join([f"{first['trace']}, runs", *words])))
    return out


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(dict.fromkeys(map(str, value)))
    text = metrics.DASH if value is None else str(value)
    return text[:8] if len(text) == 64 else text


def identity_columns() -> list[str]:
    """The flat columns of a run that say what was asked, in the order of the CSV."""
    return [*IDENTITY, *OPTIONS, *SETTINGS]
