"""What deciding costs a live engine: host time of one Pool.step and one Pool.prefetch, for every ranked policy.

    python benchmarks/live_calls.py [--tokens 2000] [--keep]

One token at a time: step(layer, 8 ids), then prefetch(next layer, 8 predictions), from ready arrays of the pool's own
type, as an engine calls them. Medians over the decode steps and layers of the sample (E = 128, 32 slots, uint8), with
the clock's own cost taken off; beside them a synthetic trace with E = 512 and 256 slots (uint16). Targets at E = 128:
1 us a step, 2 us a prefetch.
"""

from __future__ import annotations

import time

import numpy as np
from peers import bench

import slotwise
from slotwise.traces import Trace

MORE = ("lfru(half_life=16)", "lfru(half_life=16)+guard", "lfu(half_life=16)", "lru+gate")


def ranked_policies() -> list[str]:
    """Every policy that ranks residents without knowing the future, alone and with the guard; and some with parameters.

    Not `static`: it evicts nobody, and needs a profile.
    """
    found = [row["name"] for row in slotwise.list_policies() if not row["needs_future"]]
    alone = [name for name in found if not name.startswith("+") and name != "static"]
    return [*alone, *(f"{name}+guard" for name in alone), *MORE]


def calls_of(trace: Trace, most: int) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Of each decode step of one token: the ids of every layer, and the 8 best predictions for every layer."""
    steps = []
    for block in trace.blocks(predicted=True):
        assert block.predicted is not None
        for row in block.starts[np.flatnonzero((np.diff(block.starts) == 1) & (block.phase == 1))]:
            ids, ahead = block.experts[:, row], block.predicted[:, row, :8]
            steps.append(([np.array(each) for each in ids], [np.array(each) for each in ahead]))
    return steps[:most]


def measure(policy: str, trace: Trace, slots: int, calls, clock_ns: float) -> dict:
    """Median and 99th percentile of both calls, in ns."""
    pool = slotwise.Pool(policy, n_layers=trace.n_layers, n_experts=trace.n_experts, slots=slots)
    pool.step(0, calls[0][0][0])  # compiles
    pool.prefetch(1, calls[0][1][1])
    pool.reset()
    now, step, prefetch, last = time.perf_counter_ns, pool.step, pool.prefetch, trace.n_layers - 1
    stepped, offered = [], []
    for ids, ahead in calls:
        for layer in range(trace.n_layers):
            mine, theirs = ids[layer], ahead[min(layer + 1, last)]
            began = now()
            step(layer, mine)
            stepped.append(now() - began)
            if layer < last:
                began = now()
                prefetch(layer + 1, theirs)
                offered.append(now() - began)
    figures = {"trace": trace.name, "n_experts": trace.n_experts, "slots": slots, "policy": policy}
    for name, taken in (("step", stepped), ("prefetch", offered)):
        half, most = np.percentile(taken, (50, 99)) - clock_ns
        figures |= {f"{name}, ns": round(half), f"{name} p99, ns": round(most)}
    return figures


def cost_of_the_clock() -> float:
    """Median ns between two looks at the clock with nothing in between."""
    now, taken = time.perf_counter_ns, []
    for _ in range(20_000):
        began = now()
        taken.append(now() - began)
    return float(np.median(taken))


def rows(asked):
    tokens = 20 if asked.tiny else asked.tokens
    wide = slotwise.synthesise(n_tokens=tokens, n_experts=512, width=8, name="synthetic")
    traces = [(slotwise.open_trace("sample"), 32), (wide, 256)]
    ready = [(trace, slots, calls_of(trace, tokens)) for trace, slots in traces]
    clock_ns = cost_of_the_clock()
    for policy in ("lru", "lfru+guard") if asked.tiny else ranked_policies():
        for trace, slots, calls in ready:
            yield measure(policy, trace, slots, calls, clock_ns)


if __name__ == "__main__":
    bench("live-calls", __doc__, rows, tokens=2000)
