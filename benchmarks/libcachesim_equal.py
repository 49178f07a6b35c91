"""Whether an independent simulator counts the same misses: libCacheSim's LRU and Belady, under the contract they share.

    python benchmarks/libcachesim_equal.py [TRACE ...] [--contract sequential]

One pool for all layers (scope global), looked up expert by expert: the sequential contract. Every token is a step, so
that no lookup is merged with another of its step: layers ascending, router rank ascending, absent entries left out.
Their object is layer x n_experts + expert. `belady` admits every miss, as theirs does. Prints both counts at several
capacities of the sample and of each trace given; exit code 1 on any difference, which `--contract event` shows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from peers import bench, peer_misses, peer_reader

import slotwise
from slotwise.traces import Trace

PEERS = {"lru": "LRU", "belady": "Belady"}
FRACTIONS = (0.01, 0.05, 0.125, 0.25, 0.5, 0.9)  # of all keys; at 1 % an lru below the token cycle, which never hits


def token_by_token(trace: Trace, tokens: int) -> Trace:
    """The same routing (the first so many tokens), every token a step of its own."""
    ids = np.stack([trace.layer(layer)[:tokens] for layer in range(trace.n_layers)], axis=1)
    return Trace.from_arrays(ids, n_experts=trace.n_experts, name=trace.name)


def rows(asked):
    for path in ["sample", *(path for path in asked.traces if path != "sample")]:
        trace = token_by_token(slotwise.open_trace(path), 300 if asked.tiny else asked.tokens)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lookups.oracleGeneral"
            slotwise.export(trace, file)
            reader = peer_reader(file)
            lookups = reader.get_num_of_req()
            for slots in sorted({max(1, int(share * trace.n_layers * trace.n_experts)) for share in FRACTIONS}):
                for policy, kind in PEERS.items():
                    run = slotwise.replay(trace, policy, slots, scope="global", contract=asked.contract)
                    theirs = peer_misses(kind, reader, slots)
                    yield {
                        "trace": trace.name, "lookups": lookups, "slots": slots, "policy": policy,
                        "misses": run.counters["misses"], f"libCacheSim {kind}": theirs,
                        "equal": run.counters["misses"] == theirs and run.counters["demands"] == lookups,
                    }  # fmt: skip


if __name__ == "__main__":
    traces = {"nargs": "*", "help": "further traces, in any format", "metavar": "TRACE"}
    found = bench("libcachesim-equal", __doc__, rows, traces=traces, contract="sequential", tokens=1_000_000)
    sys.exit(not all(row["equal"] for row in found))
