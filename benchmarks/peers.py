"""What benchmarks share: the machine in words, interleaved medians, and libCacheSim as the peer (GPL, never a dependency)."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str | int]:
    """Processor, cores, Python and library versions: printed beside every figure."""
    import os

    import numba

    name = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    versions = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
    return {"cpu": name or platform.processor(), "cores": os.cpu_count() or 0, "system": platform.system(), **versions}


def interleaved(jobs: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Median seconds of each job; the jobs take turns, after one warm-up each."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(runs + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if turn:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in taken.items()}


def write_oracle_general(ids: np.ndarray, path: Path) -> None:
    """One layer's ids [tokens, k] as a libCacheSim oracleGeneral trace: time, object, size, next access (1-based, -1 none)."""
    flat = ids.ravel().astype(np.uint64) + 1
    order = np.argsort(flat, kind="stable")
    following = np.full(flat.size, -1, np.int64)
    same = flat[order[:-1]] == flat[order[1:]]
    following[order[:-1][same]] = order[1:][same] + 1
    row = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    table = np.zeros(flat.size, row)
    table["time"] = np.arange(flat.size) // ids.shape[1]
    table["object"], table["size"], table["next"] = flat, 1, following
    table.tofile(path)


def peer_misses(kind: str, path: Path, slots: int) -> int:
    """Misses of libCacheSim's cache `kind` over an oracleGeneral file."""
    import libcachesim as lcs

    reader = lcs.TraceReader(
        str(path), lcs.TraceType.ORACLE_GENERAL_TRACE, lcs.ReaderInitParam(ignore_obj_size=True)
    )
    requests = path.stat().st_size // 24
    return round(getattr(lcs, kind)(slots, hashpower=12).process_trace(reader)[0] * requests)


def keep(name: str, figures: dict) -> Path:
    """Writes the figures with date and machine under benchmarks/results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{date.today().isoformat()}.json"
    path.write_text(json.dumps({"date": date.today().isoformat(), "machine": machine(), **figures}, indent=1) + "\n")
    return path
