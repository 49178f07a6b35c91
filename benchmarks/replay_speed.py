"""How fast a replay is, on one core and one capacity, against libCacheSim in the same run.

    python benchmarks/replay_speed.py [--tokens 100000] [--runs 5] [--keep]

Ours replays whole traces from memory (threads=1), with every counter; the peer replays each layer's ids from a file through
its Python binding, with a miss ratio as its only result. Both in routed ids per second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import slotwise
from peers import interleaved, keep, machine, peer_misses, write_oracle_general
from slotwise.traces import Trace

FRACTIONS = ("12.5%", "25%", "50%")


def in_memory(trace: Trace) -> Trace:
    """The same trace without the cost of reading a file, which the benchmark of loading measures."""
    import numpy as np

    blocks = list(trace.blocks(predicted=bool(trace.predicted_width)))
    join = lambda parts: np.concatenate(parts, axis=1).transpose(1, 0, 2)  # noqa: E731
    more = {"predicted": join([b.predicted for b in blocks])} if trace.predicted_width else {}
    rows = trace.rows("request", "step", "phase")
    return Trace.from_arrays(join([b.experts for b in blocks]), n_experts=trace.n_experts, name=trace.name, **rows, **more)


def measure(trace: Trace, layers: int, runs: int) -> list[dict]:
    """One row per capacity: ids/s of ours and of the peer, and their ratios."""
    rows = []
    ids = trace.n_tokens * trace.top_k
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{layer}.oracleGeneral" for layer in range(layers)]
        for layer, path in enumerate(paths):
            write_oracle_general(trace.layer(layer), path)
        for fraction in FRACTIONS:
            slots = max(1, int(trace.n_experts * float(fraction[:-1]) / 100))
            ours = lambda policy, width, threads=1: lambda: slotwise.replay(  # noqa: E731
                trace, policy, slots, width=width, threads=threads
            )
            peer = lambda kind: lambda: [peer_misses(kind, path, slots) for path in paths]  # noqa: E731
            seconds = interleaved(
                {
                    "lru": ours("lru", 0), "peer LRU": peer("LRU"), "lru on 2 cores": ours("lru", 0, 2),
                    "lfru+guard width 4": ours("lfru+guard", 4), "peer LFU": peer("LFU"),
                    "lfru+guard width 4 on 2 cores": ours("lfru+guard", 4, 2),
                },
                runs,
            )  # fmt: skip
            speed = {n: ids * (layers if "peer" in n else trace.n_layers) / s for n, s in seconds.items()}
            rows.append({
                "trace": trace.name, "n_experts": trace.n_experts, "slots": slots,
                **{f"{name}, M ids/s": round(value / 1e6, 1) for name, value in speed.items()},
                "lru / peer LRU": round(speed["lru"] / speed["peer LRU"], 2),
                "lfru+guard width 4 / peer LFU": round(speed["lfru+guard width 4"] / speed["peer LFU"], 2),
                "lru, 2 cores / 1": round(speed["lru on 2 cores"] / speed["lru"], 2),
                "lfru+guard, 2 cores / 1": round(speed["lfru+guard width 4 on 2 cores"] / speed["lfru+guard width 4"], 2),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--peer-layers", type=int, default=4, help="layers of the synthetic traces that the peer replays")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/replay-speed-DATE.json")
    asked = parser.parse_args()
    print(json.dumps(machine()))
    sample = in_memory(slotwise.open_trace("sample"))
    rows = measure(sample, sample.n_layers, asked.runs)
    for n_experts in (128, 512):
        trace = slotwise.synthesise(
            n_tokens=asked.tokens, n_layers=asked.layers, n_experts=n_experts, width=4, name=f"synth E={n_experts}"
        )
        rows += measure(trace, min(asked.peer_layers, asked.layers), asked.runs)
    if asked.keep:
        print(keep("replay-speed", {"rows": rows}))


if __name__ == "__main__":
    main()
