"""How fast a replay is, on one core and at one capacity, against libCacheSim in the same run.

    python benchmarks/replay_speed.py [--tokens 100000] [--layers 48] [--runs 5] [--keep]

Ours: whole calls of slotwise.replay(threads=1) on a trace in memory, all counters, by layer, phase, request and window.
`call of one step` is the part that no trace makes longer: the same call with steps=1.
Peer: libCacheSim through its Python binding, one cache per layer over that layer's lookups, from files that are mapped
already; its result is a miss ratio. It has no look-ahead, so `lfru+guard` with width 4 is held against its plain LFU,
which does less. Routed ids per second, medians of runs that take turns: one core by the CPU time of its thread (neither
side starts another), two cores against one by wall time, which only an idle machine shows, and the same beyond the call
of one step, since no second core shortens what a call of a few milliseconds spends on its options and its result.
25 % of the experts is the capacity that targets are about, the others stand beside it: `lru` 5 times the peer,
`lfru+guard` 2 times, two cores 1.8 times one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from peers import bench, interleaved, peer_misses, peer_reader

import slotwise
from slotwise.traces import Trace

FRACTIONS = ("25%", "12.5%", "50%")
OURS = {"lru": 0, "lfru+guard": 4}  # policy -> width
PEERS = {"lru": "LRU", "lfru+guard": "LFU"}


def in_memory(trace: Trace) -> Trace:
    """The same trace without the cost of reading a file, which the benchmark of loading measures."""
    blocks = list(trace.blocks(predicted=True))

    def joined(parts):
        return np.concatenate(parts, axis=1).transpose(1, 0, 2)

    return Trace.from_arrays(
        joined([block.experts for block in blocks]),
        predicted=joined([block.predicted for block in blocks]),
        n_experts=trace.n_experts,
        name=trace.name,
        **trace.rows("request", "step", "phase"),
    )


def measure(trace: Trace, peer_layers: int, runs: int):
    """One row per capacity and policy, in millions of routed ids per second."""
    ids = trace.n_tokens * trace.top_k
    with tempfile.TemporaryDirectory() as folder:
        readers = []
        for layer in range(peer_layers):
            path = Path(folder) / f"{layer}.oracleGeneral"
            alone = trace.layer(layer)[:, None]  # every token a step of its own, so that all lookups count
            slotwise.export(Trace.from_arrays(alone, n_experts=trace.n_experts), path)
            readers.append(peer_reader(path))
        for fraction in FRACTIONS:
            slots = int(trace.n_experts * float(fraction[:-1]) / 100)
            jobs = {}
            for policy in OURS:
                for what, more in (("1", {"threads": 1}), ("2", {"threads": 2}), ("0", {"threads": 1, "steps": 1})):
                    jobs[f"{policy} {what}"] = ours(trace, policy, slots, more)
                jobs[f"{policy} peer"] = peer(PEERS[policy], readers, slots)
            seconds = interleaved(jobs, runs)
            for policy, width in OURS.items():
                one, two, short, peers = (seconds[f"{policy} {what}"] for what in ("1", "2", "0", "peer"))
                yield {
                    "trace": trace.name, "n_experts": trace.n_experts, "slots": slots, "policy": policy, "width": width,
                    "M ids/s": per_second(ids * trace.n_layers, one.cpu),
                    f"peer {PEERS[policy]}, M ids/s": per_second(ids * peer_layers, peers.cpu),
                    "times the peer": round(trace.n_layers / one.cpu / (peer_layers / peers.cpu), 2),
                    "wall, M ids/s": per_second(ids * trace.n_layers, one.wall),
                    "2 cores, wall, M ids/s": per_second(ids * trace.n_layers, two.wall),
                    "2 cores / 1": round(one.wall / two.wall, 2),
                    "beyond one step": round((one.wall - short.wall) / (two.wall - short.wall), 2)
                    if short.wall < min(one.wall, two.wall)
                    else None,  # the whole is hardly longer than a step
                    "call, ms": round(one.cpu * 1e3, 2), "call of one step, ms": round(short.cpu * 1e3, 2),
                }  # fmt: skip


def ours(trace: Trace, policy: str, slots: int, more: dict):
    return lambda: slotwise.replay(trace, policy, slots, width=OURS[policy], **more)


def peer(kind: str, readers: list, slots: int):
    return lambda: [peer_misses(kind, reader, slots) for reader in readers]


def per_second(ids: int, seconds: float) -> float:
    return round(ids / seconds / 1e6, 1)


def rows(asked):
    if asked.tiny:
        asked.tokens, asked.layers, asked.runs = 500, 4, 1
    sample = in_memory(slotwise.open_trace("sample"))
    yield from measure(sample, sample.n_layers, asked.runs)
    for n_experts in (128, 512):
        shape = {"n_tokens": asked.tokens, "n_layers": asked.layers, "n_experts": n_experts}
        trace = slotwise.synthesise(**shape, width=4, name=f"synthetic {asked.tokens} x {asked.layers}")
        yield from measure(trace, min(asked.peer_layers, asked.layers), asked.runs)


if __name__ == "__main__":
    bench("replay-speed", __doc__, rows, tokens=100_000, layers=48, peer_layers=4, runs=5)
