"""How much memory a replay needs beyond its program: peaks of whole commands, against the ids that are in flight.

    python benchmarks/memory.py [--tokens 200000] [--layers 48] [--runs 3] [--keep]

`slotwise replay FILE` streams a file by row groups, and all layers of one are in flight together: n_layers x rows x
(top_k + width) ids. What it takes above an empty replay should stay within 1.5 times that. Empty is a file of one token
and the same shape, so that everything is loaded that a replay ever loads; compiled code alone is tens of MB, which no
trace makes more (`loading code`: against the same file with `--steps 0`, which loads none). Each figure is the peak
resident memory (VmHWM) of a process of its own, median of runs.
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
SHAPES = ((128, 25_000), (512, 25_000), (128, 100_000))  # experts, rows of a group: what `save` writes, and larger ones
TOP_K = 8
CHILD = """
import sys
from pathlib import Path
from slotwise.cli.main import main
code = main(sys.argv[1:])
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""
SYNTH = """
import json, sys
import slotwise
shape, path, group = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
slotwise.synthesise(**shape).save(path, group_rows=group)
"""


def child(script: str, *words: object) -> str:
    """What a script prints in a process of its own: nothing is left over from run to run."""
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def peak(path: Path, policy: str, *more: object) -> int:
    """Peak bytes of `slotwise replay`."""
    words = ["replay", path, "--policy", policy, "--slots", "25%", "--width", POLICIES[policy], "--json", *more]
    return 1024 * int(child(CHILD, *words).split()[-1])


def measure(full: Path, empty: Path, policy: str, in_flight: int, runs: int) -> dict[str, float]:
    """Peaks in MB, and what the replay of `full` takes above that of `empty` as a multiple of the bytes in flight."""
    peak(empty, policy)  # its kernel may have to be compiled, which takes memory too
    commands = {"full": (full,), "empty": (empty,), "idle": (empty, "--steps", 0)}
    peaks = {
        name: statistics.median(peak(path, policy, *more) for _ in range(runs))
        for name, (path, *more) in commands.items()
    }
    above = peaks["full"] - peaks["empty"]
    sizes = {
        "peak": peaks["full"],
        "empty replay": peaks["empty"],
        "loading code": peaks["empty"] - peaks["idle"],
        "above empty": above,
        "ids in flight": in_flight,
    }
    return {f"{name}, MB": round(size / 1e6, 2) for name, size in sizes.items()} | {
        "above empty / ids in flight": round(above / in_flight, 2)
    }


def rows(asked):
    shapes, policies = SHAPES, list(POLICIES)
    if asked.tiny:
        asked.tokens, asked.runs, shapes, policies = 50_000, 1, SHAPES[:1], ["lru"]
    with tempfile.TemporaryDirectory() as folder:
        full, empty = Path(folder) / "full.parquet", Path(folder) / "empty.parquet"
        for n_experts, group in shapes:
            shape = {"n_layers": asked.layers, "n_experts": n_experts, "top_k": TOP_K, "width": max(POLICIES.values())}
            child(SYNTH, json.dumps(shape | {"n_tokens": 1}), empty, 1)
            child(SYNTH, json.dumps(shape | {"n_tokens": asked.tokens}), full, group)
            for policy in policies:
                id_bytes = 1 if n_experts <= 255 else 2
                in_flight = asked.layers * min(group, asked.tokens) * (TOP_K + POLICIES[policy]) * id_bytes
                about = {"n_experts": n_experts, "rows of a group": group, "policy": policy, "width": POLICIES[policy]}
                yield about | measure(full, empty, policy, in_flight, asked.runs)


if __name__ == "__main__":
    bench("memory", __doc__, rows, tokens=200_000, layers=48, runs=3)
