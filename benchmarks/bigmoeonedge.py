"""The published BigMoeOnEdge curves, reproduced from their traces: every budget and policy, both tables side by side.

    python benchmarks/bigmoeonedge.py FOLDER

FOLDER holds <model>-curve.csv beside <model>.route.csv. Their simulator fills past its limit and trims after every
tick, which is `overflow="exceed"`; `layer` and `layerlfu` are the policies with a pool per layer, the others share one.
Each published figure (hit rate in % of the whole run and of its decode, MiB read) is held against ours as it is
printed. Exit code 1 on any difference. `random` is printed alone: its draws come from a generator of theirs.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from peers import bench

import slotwise

SCOPES = {  # their name -> our policy and scope
    "belady": ("belady", "global"),
    "lru": ("lru", "global"),
    "lfu": ("lfu", "global"),
    "layer": ("lru", "layer"),
    "layerlfu": ("lfu", "layer"),
}
FIGURES = ("hit_pct_cum", "hit_pct_decode", "read_mib")


def ours(trace: slotwise.Trace, name: str, budget_mib: int) -> dict[str, str]:
    """The three figures of our run, rounded as theirs."""
    policy, scope = SCOPES[name]
    run = slotwise.replay(trace, policy, vram=budget_mib << 20, scope=scope, overflow="exceed")
    whole, decode = run.counters, run.by_phase["decode"]
    hit_rates = (f"{100 * part['hits'] / part['demands']:.3f}" for part in (whole, decode))
    return dict(zip(FIGURES, (*hit_rates, f"{whole['bytes_loaded'] / 2**20:.1f}"), strict=True))


def rows(asked):
    curves = sorted(Path(asked.folder).glob("*-curve.csv"))
    if not curves:
        raise SystemExit(f"{asked.folder}: no *-curve.csv; give the folder with the published tables and traces")
    for curve in curves:
        model = curve.name.removesuffix("-curve.csv")
        trace = slotwise.open_trace(curve.with_name(f"{model}.route.csv"))
        with curve.open() as file:
            table = list(csv.DictReader(file))
        for published in table[:3] if asked.tiny else table:
            shown = {"model": model, **published}
            if published["policy"] in SCOPES:
                found = ours(trace, published["policy"], int(published["budget_mib"]))
                equal = [found[name] == published[name] for name in FIGURES]
                yield {**shown, **{f"ours {name}": value for name, value in found.items()}, "equal": sum(equal)}
            else:
                yield {**shown, "not compared": "their draws come from a generator of their own"}


def main() -> int:
    with_folder = {"folder": {"metavar": "FOLDER", "help": "holds <model>-curve.csv and <model>.route.csv"}}
    compared = [row for row in bench("bigmoeonedge", __doc__, rows, **with_folder) if "equal" in row]
    right = sum(row["equal"] for row in compared)
    print(f"{right} of {len(FIGURES) * len(compared)} figures in {len(compared)} rows are equal to the last digit")
    return int(right != len(FIGURES) * len(compared))


if __name__ == "__main__":
    sys.exit(main())
