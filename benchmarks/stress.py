"""Whether an executor holds out: a prefill of 1,900 tokens, then 400 verify steps of 4 tokens, at 96 slots of 128.

    python benchmarks/stress.py [--backend cupy] [--hidden 2048] [--inner 768] [--dtype bf16] [--layers 4] [--keep]

Synthetic routing, `lfru+guard` at width 4. `step` are percentiles of a verify step by the host's clock. `allocations`
are device allocations after the executor has opened, `device bytes taken` what the device had less of at the end than
at step 100, `grown` what the process had more of in RAM. It ends with an error if any of these is more than nothing,
but for a MiB and a thousandth of RAM.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from peers import bench

from slotwise.executor.backend import make_backend
from slotwise.executor.checks import audit
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.drive import drive
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.replay.options import Options
from slotwise.traces.synth import synthesise

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def stress(asked) -> dict:
    """One executor through the whole of it."""
    layout = RowLayout(asked.hidden, asked.inner, (asked.dtype,) * 3)
    options = Options(policy="lfru+guard", slots=asked.slots, width=4, verify_tokens=4, accept=0.7)
    trace = synthesise(
        n_tokens=asked.prompt + 4 * asked.steps, n_layers=asked.layers, width=4, prompt_tokens=asked.prompt, seed=1
    )
    source, n_steps = options.source(trace), 1 + asked.steps
    allocations, seen = [], []
    with ColdChain(asked.threads or None) as chain:
        backend, kept = make_backend(asked.backend), make_backend(asked.backend)
        store = HostStore([layout] * asked.layers, trace.n_experts, kept).fill(0, chain)
        pool = options.pool(trace, options.size(trace), full=True, future=False)
        with Executor(pool, store, backend, chain, top_k=trace.top_k) as executor:
            allocate = backend.device_memory
            vars(backend)["device_memory"] = lambda n_bytes: allocations.append(n_bytes) or allocate(n_bytes)

            def look(*_: float) -> None:
                seen.append((resident_bytes(), backend.free_bytes()))

            driven = drive(executor, source, options.predictor_of(trace), n_steps=n_steps, progress=look)
            audit(executor)
            counters, waits = pool.counters, backend.reader_waits
        kept.close()
    warm, end = seen[min(100, len(seen) // 2)], seen[-1]
    milliseconds = 1e3 * np.array(driven.step_s)
    return {
        "device": getattr(backend, "device_name", "host memory"), "cold threads": chain.threads,
        "row bytes": layout.row_bytes, "slots": asked.slots,
        "hit rate": round(counters["hits"] / counters["demands"], 3),
        "prefill, ms": round(float(milliseconds[0]), 2), "steps": asked.steps, "tokens": driven.tokens,
        **{f"step p{q}, ms": round(float(np.percentile(milliseconds[1:], q)), 3) for q in (50, 95, 99)},
        "reader waits": waits, "allocations": len(allocations),
        "device bytes taken": 0 if warm[1] is None else warm[1] - end[1],
        "resident after prefill, MiB": round(seen[0][0] / MIB, 1), "resident at the end, MiB": round(end[0] / MIB, 1),
        "grown, KiB": (end[0] - warm[0]) >> 10,
    }  # fmt: skip


def rows(asked):
    if asked.tiny:
        asked.hidden, asked.inner, asked.layers = 64, 32, 2
    row = stress(asked)
    yield row
    most = 1024 + row["resident at the end, MiB"] * 1.024  # a MiB, and a thousandth of what is there
    if row["allocations"] or row["device bytes taken"] > 0 or row["grown, KiB"] > most:
        raise SystemExit("memory was taken after the executor had opened")


if __name__ == "__main__":
    bench("stress", __doc__, rows, backend="numpy", hidden=2048, inner=768, dtype="bf16", layers=4, slots=96,
          prompt=1900, steps=400, threads=0)  # fmt: skip
