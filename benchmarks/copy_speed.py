"""Speed of the copy engine: page-locked rows into VRAM, each figure beside the peak that the same run measured.

    python benchmarks/copy_speed.py --keep

It needs CuPy, cuda.bindings and numpy. The peak is one large copy of page-locked memory. `sustained` is many rows in
batches, `batch` one batch from the call of submit until the host sees that it has landed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from peers import bench

from slotwise.executor.cupy_copies import WAYS, CopyEngine
from slotwise.executor.cupy_driver import calls, need_cupy, refused
from slotwise.executor.cupy_small import page_locked

EXPERT = 3 * 2048 * 768 * 2  # a bf16 row, 9 MiB
TARGETS = {1 << 14: None, 1 << 16: 0.88, 1 << 18: 0.95, 1 << 20: 0.98, EXPERT: 0.98}


def seconds(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def rows(asked: argparse.Namespace) -> Iterator[dict]:
    cupy = need_cupy()
    about = cupy.cuda.runtime.getDeviceProperties(0)
    store_bytes = 1 << 27 if asked.tiny else 1 << 30
    rounds = 2 if asked.tiny else 7
    store = page_locked(store_bytes)
    store[:] = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).repeat(store_bytes >> 20)
    there = cupy.empty(store_bytes, np.uint8)
    engines = {how: CopyEngine(how=how) for how in WAYS}

    def whole() -> None:
        stream = engines["loop"].stream
        refused(calls().copy_to_device(there.data.ptr, store.ctypes.data, store_bytes, stream.ptr))
        stream.synchronize()

    def all_rows(engine: CopyEngine, row_bytes: int, count: int, to: np.ndarray, source: np.ndarray) -> None:
        sizes = np.full(count, row_bytes, np.uint64)
        for i in range(0, count, 256):
            ticket = engine.submit(to[i : i + 256], source[i : i + 256], sizes[i : i + 256])
        engine.wait(ticket)

    whole()
    peak = store_bytes / min(seconds(whole) for _ in range(rounds))
    yield {
        "device": about["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "page_locked_peak_bytes_per_s": round(peak),
        "one_copy_of_bytes": store_bytes,
    }
    draw = np.random.default_rng(1)
    for row_bytes, target in TARGETS.items():
        count = store_bytes // row_bytes
        starts = draw.permutation(count).astype(np.uint64) * np.uint64(row_bytes)
        to, source = starts + np.uint64(there.data.ptr), draw.permutation(starts) + np.uint64(store.ctypes.data)
        taken: dict[str, list[float]] = {how: [] for how in ("whole", *engines)}
        for _ in range(rounds):  # they take turns
            taken["whole"].append(seconds(whole))
            for how, engine in engines.items():
                taken[how].append(
                    seconds(lambda e=engine, c=count, b=row_bytes, t=to, s=source: all_rows(e, b, c, t, s))
                )
        ceiling = store_bytes / statistics.median(taken.pop("whole"))
        for how, each in taken.items():
            reached = count * row_bytes / statistics.median(each)
            row = {"what": "sustained", "how": how, "row_bytes": row_bytes, "bytes_per_s": round(reached)}
            yield {**row, "peak_bytes_per_s": round(ceiling), "share": round(reached / ceiling, 3), "target": target}
    for row_bytes in (1 << 16, 1 << 20, EXPERT):
        for count in (1, 2, 4, 8):
            for how, engine in engines.items():
                to = (np.arange(count) * row_bytes + there.data.ptr).astype(np.uint64)
                source = (np.arange(count) * row_bytes + store.ctypes.data).astype(np.uint64)
                yield {"what": "batch", "how": how, "rows": count, "row_bytes": row_bytes} | batch(
                    engine, to, source, np.full(count, row_bytes, np.uint64), peak, 10 if asked.tiny else 60
                )
    for engine in engines.values():
        engine.close()


def batch(engine: CopyEngine, to, source, sizes, peak: float, turns: int) -> dict[str, float]:
    """Medians of one batch from submit to landed, and of submit alone."""
    submit_s, landed_s = [], []
    for _ in range(turns):
        begin = time.perf_counter()
        ticket = engine.submit(to, source, sizes)
        submit_s.append(time.perf_counter() - begin)
        while not engine.landed(ticket):
            pass
        landed_s.append(time.perf_counter() - begin)
    wire_s = float(sizes.sum()) / peak
    return {
        "submit_us": round(statistics.median(submit_s) * 1e6, 1),
        "landed_us": round(statistics.median(landed_s) * 1e6, 1),
        "wire_us": round(wire_s * 1e6, 1),
        "target_us": round((15e-6 + wire_s / 0.97) * 1e6, 1),
    }


if __name__ == "__main__":
    bench("copy-speed", __doc__, rows)
