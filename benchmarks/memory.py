"""How much memory a replay needs beyond its program: peaks of whole commands, against the ids that are in flight.

    python benchmarks/memory.py [--tokens 400000] [--layers 24] [--runs 3] [--keep]

`slotwise replay FILE` streams a file by row groups, and all layers of one are in flight together: n_layers x rows x
(top_k + width) ids. What it takes above an empty replay should stay within 1.5 times that. Empty is a file of one token
and the same shape, so that everything is loaded that a replay ever loads: compiled code alone is tens of MB, which no
trace makes more (`loading code, MB`: the same file with `--steps 0`, where none is loaded). Each figure is the peak resident
memory (VmHWM) of a process of its own, median of runs. The larger row groups show what is left when fixed costs fade.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import bench

POLICIES = {"lru": 0, "lfru+guard": 4}  # policy -> width
GROUPS = (25_000, 200_000)  # rows; the first is what `save` writes
CHILD = """
import sys
from pathlib import Path
from slotwise.cli.main import main
code = main(sys.argv[1:])
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""
SYNTH = """
import sys, json, slotwise
shape, path, group = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
slotwise.synthesise(**shape).save(path, group_rows=group)
"""


def child(script: str, *words: object) -> str:
    """What a script prints in a process of its own: ours stays small, and nothing is left over from run to run."""
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def peak(path: Path, policy: str, *more: object) -> int:
    """Peak bytes of `slotwise replay`."""
    words = ["replay", path, "--policy", policy, "--slots", "25%", "--width", POLICIES[policy], "--json", *more]
    return 1024 * int(child(CHILD, *words).split()[-1])


def rows(asked):
    if asked.tiny:
        asked.tokens, asked.runs = 30_000, 1
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.parquet"
        shape = {"n_layers": asked.layers, "width": max(POLICIES.values())}
        child(SYNTH, json.dumps({"n_tokens": 1, **shape}), empty, 1)
        for group in GROUPS:
            path = Path(folder) / f"{group}.parquet"
            child(SYNTH, json.dumps({"n_tokens": asked.tokens, **shape}), path, group)
            for policy, width in POLICIES.items():
                peak(empty, policy)  # its kernel may have to be compiled, which takes memory too
                kinds = {"replay": (path,), "empty": (empty,), "none": (empty, "--steps", 0)}
                peaks = {
                    kind: statistics.median(peak(what, policy, *more) for _ in range(asked.runs))
                    for kind, (what, *more) in kinds.items()
                }
                in_flight = asked.layers * min(group, asked.tokens) * (8 + width)
                above = peaks["replay"] - peaks["empty"]
                yield {
                    "tokens": asked.tokens, "layers": asked.layers, "row group": group, "policy": policy, "width": width,
                    "peak, MB": megabytes(peaks["replay"]), "empty, MB": megabytes(peaks["empty"]),
                    "loading code, MB": megabytes(peaks["empty"] - peaks["none"]),
                    "ids in flight, MB": megabytes(in_flight), "above empty, MB": megabytes(above),
                    "times the ids in flight": round(above / in_flight, 2),
                }  # fmt: skip


def megabytes(n_bytes: float) -> float:
    return round(n_bytes / 1e6, 2)


if __name__ == "__main__":
    bench("memory", __doc__, rows, tokens=400_000, layers=24, runs=3)
