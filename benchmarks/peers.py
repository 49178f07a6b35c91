"""What benchmarks share: one command line, the machine in words, interleaved medians, and libCacheSim as the peer."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
PEER_HASHPOWER = (
    12  # 4096 buckets for at most a few thousand experts; the default, 2**24, costs more to make than to use
)


def bench(name: str, doc: str | None, rows: Callable[[argparse.Namespace], Iterable[dict]], **options) -> list[dict]:
    """The command line that every benchmark has: prints the machine, then each row of `rows(asked)` as a line of JSON.

    options: default values of further options (`--peer-layers 4` is `peer_layers=4`), or, for an argument, what
    argparse should know of it. `--tiny` shows in seconds that it works, on sizes that say nothing about speed.
    `--keep` writes benchmarks/results/NAME-DATE.json. Returns the rows.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, value in options.items():
        if isinstance(value, dict):
            parser.add_argument(option, **value)
        else:
            parser.add_argument(f"--{option.replace('_', '-')}", type=type(value), default=value, help=f"[{value}]")
    parser.add_argument("--tiny", action="store_true", help="only show that it works, in seconds")
    parser.add_argument("--keep", action="store_true", help=f"write benchmarks/results/{name}-DATE.json")
    asked = parser.parse_args()
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]  # no machine's own places
    record = {"command": " ".join([f"python benchmarks/{Path(sys.argv[0]).name}", *words]), "machine": machine()}
    print(json.dumps(record), flush=True)
    kept = []
    for row in rows(asked):
        kept.append(row)
        print(json.dumps(row), flush=True)
    if asked.keep:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}-{today}.json"
        path.write_text(json.dumps({"date": today, **record, "rows": kept}, indent=1) + "\n")
        print(path)
    return kept


def machine() -> dict[str, object]:
    """Processor, cores, load before we begin (processes that run beside us spoil figures), and versions."""
    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in about if line.startswith("model name")), platform.processor())
    versions = {"python": platform.python_version()}
    for package in ("numpy", "numba", "pyarrow", "libcachesim"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {"cpu": name, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), **versions}


class Seconds(NamedTuple):
    """Wall time, and CPU time of the calling thread: all the work of one core, without what others took of it."""

    wall: float
    cpu: float


def interleaved(jobs: Mapping[str, Callable[[], object]], runs: int) -> dict[str, Seconds]:
    """Medians of each job; the jobs take turns, after one warm-up each."""
    taken: dict[str, list[Seconds]] = {name: [] for name in jobs}
    for turn in range(runs + 1):
        for name, job in jobs.items():
            wall, cpu = time.perf_counter(), time.thread_time()
            job()
            if turn:
                taken[name].append(Seconds(time.perf_counter() - wall, time.thread_time() - cpu))
    return {name: Seconds(*map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()}


def libcachesim() -> Any:
    """The peer, of the extra `bench`: GPL, so no more than something to measure against."""
    return importlib.import_module("libcachesim")


def peer_reader(path: Path) -> Any:
    """libCacheSim's reader of such a file, which it maps into memory."""
    lcs = libcachesim()
    return lcs.TraceReader(str(path), lcs.TraceType.ORACLE_GENERAL_TRACE, lcs.ReaderInitParam(ignore_obj_size=True))


def peer_misses(kind: str, reader: Any, slots: int) -> int:
    """Misses of libCacheSim's cache `kind` ("LRU", "LFU", "Belady"), which it prints as a share of the lookups."""
    cache = getattr(libcachesim(), kind)(slots, hashpower=PEER_HASHPOWER)
    missed = cache.process_trace(reader)[0]
    reader.reset()
    return round(missed * reader.get_num_of_req())
