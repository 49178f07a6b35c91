"""What a price costs beside the replay that it prices, on one core.

    python benchmarks/pricing_speed.py [--tokens 20000] [--layers 48] [--runs 5] [--keep]

The same call of slotwise.replay(threads=1) on a trace in memory, with a machine and without (bounds=False: one replay).
CPU time of its thread, medians of runs that take turns, a quarter of the experts in slots. `priced / replay` is what
both take over what the replay alone takes: a price that costs as much as its replay makes it 2, which is the target.
"""

from __future__ import annotations

from peers import bench, interleaved
from replay_speed import in_memory

import slotwise
from slotwise.traces import Trace

CASES = (
    ("lru", {}),
    ("lfru+guard", {}),
    ("lfru+guard", {"width": 4}),
    ("lru", {"width": 4}),
    ("lru", {"width": 4, "miss": "fetch"}),
)
VERIFY = ("lfru+guard", {"width": 4, "verify_tokens": 4})


def measure(trace: Trace, runs: int, cases):
    """One row per case: nanoseconds a tick, replayed and priced."""
    machine = slotwise.estimate_machine(["rtx-3060-x16", "ddr5"])
    for policy, options in cases:

        def call(policy=policy, options=options, **priced):
            return slotwise.replay(trace, policy, "25%", threads=1, row_bytes=4_718_592, **options, **priced)

        result = call(machine=machine, bounds=False)
        seconds = interleaved({"alone": call, "priced": lambda call=call: call(machine=machine, bounds=False)}, runs)
        ticks = result.identity["n_steps"] * trace.n_layers
        alone, priced = seconds["alone"].cpu, seconds["priced"].cpu
        yield {
            "trace": trace.name, "policy": policy, **options, "ticks": ticks,
            "replay, ns a tick": round(1e9 * alone / ticks, 1), "priced, ns a tick": round(1e9 * priced / ticks, 1),
            "priced / replay": round(priced / alone, 2), "replay, ms": round(1e3 * alone, 2),
            "priced, ms": round(1e3 * priced, 2),
        }  # fmt: skip


def rows(asked):
    if asked.tiny:
        asked.tokens, asked.layers, asked.runs = 500, 4, 1
    sample = in_memory(slotwise.open_trace("sample"))
    yield from measure(sample, asked.runs, CASES)
    trace = slotwise.synthesise(n_tokens=asked.tokens, n_layers=asked.layers, n_experts=128, width=4, name="synthetic")
    yield from measure(trace, asked.runs, (*CASES, VERIFY))


if __name__ == "__main__":
    bench("pricing-speed", __doc__, rows, tokens=20_000, layers=48, runs=5)
