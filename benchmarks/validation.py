"""How far prices are off what this machine does: two shapes, real routing, the machine as it is and held back.

    python benchmarks/validation.py --backend cupy [--traces sample,T.npz] [--settings as-is,x16] [--out DIR] [--keep]
        [--phase all]

For each shape and setting the machine is calibrated, `draw` settings of slots, width, overlap, verify tokens and misses
run under each policy on every trace, and the machine is calibrated again after the last one. Of a trace the decode
steps are run, since a prompt would outweigh them. Machines, validations and one over them all (all.json, for `slotwise
report`) go to `--out`; the same command goes on with what is there, block by block. A row says how far off the prices
were, in all and by what bounds a configuration, beside a line fitted to misses and loads.
"""

from __future__ import annotations

import json
from pathlib import Path

from executor_speed import SETTINGS, Setting
from peers import bench

import slotwise
from slotwise.replay.machine import write_machine
from slotwise.validate_merge import merge_validations

HELD_BACK: dict[str, Setting] = dict(zip(("as-is", "x16", "x4"), SETTINGS, strict=True))
GRID = {
    "policies": ["lru", "lfru", "lfru+guard", "lru+gate"], "slots": ["12%", "25%", "38%", "50%", "75%"],
    "widths": [0, 2, 4, 8], "overlaps": ["on", "off"], "verify_tokens": [1, 4], "misses": ["cpu", "fetch"],
}  # fmt: skip


def part(asked, out: Path, shape: str, setting: str) -> list[dict]:
    """The validations of one shape under one setting, a trace each."""
    held, found = HELD_BACK[setting], []
    path = out / f"{shape}-{setting}.machine.json"
    if not path.exists():
        how = {"sms": held.sms or None, "link_pad": held.link_pad}
        write_machine(slotwise.calibrate(backend=asked.backend, shape=shape, quick=asked.tiny, **how), path)
    traces = asked.traces.split(",")
    for name in traces:
        trace = slotwise.open_trace(name)
        trace = slotwise.cut(trace, phase="decode") if asked.phase == "decode" else trace
        done = out / f"{shape}-{setting}-{Path(name).stem}.validation.json"
        if not done.exists():
            slotwise.validate(
                trace, path, **GRID, draw=asked.draw, steps=asked.steps, blocks=asked.blocks, dense_us=asked.dense_us,
                predictor="trace" if trace.predicted_width else "previous", alias_layers=asked.alias_layers or None,
                headroom=0, again=name == traces[-1], out=done,
            )  # fmt: skip
        found.append(json.loads(done.read_text()))
    return found


def figures(what: str, found: dict) -> dict:
    """One row."""
    whole, pairs = found["all"], found["pairs"]
    return {
        "what": what, "verdict": found["verdict"], "configurations": whole["configurations"],
        **{f"{name} error, %": round(100 * whole[name], 2) for name in ("median", "p95", "worst")},
        "median error of a fitted line, %": round(100 * whole["baseline"]["median"], 2),
        "by bound": {
            name: {
                "configurations": each["configurations"], "median error, %": round(100 * each["median"], 2),
                "of the line, %": round(100 * each["baseline"]["median"], 2),
            }
            for name, each in found["strata"].items()
        },
        "pairs decided": pairs["decided"], "wrong sign": pairs["wrong_sign"], "wrong size": pairs["wrong_size"],
        "Kendall tau": found["kendall_tau"] and round(found["kendall_tau"], 3), "reasons": found["reasons"],
        "missed by cause, % of the time": {name: round(100 * share, 2) for name, share in found["terms"].items()},
        "noise, %": round(100 * found["noise_floor"], 2), "blocks dropped": found["blocks_dropped"],
        "drift, %": None if found["drift"] is None else round(100 * found["drift"], 2),
    }  # fmt: skip


def rows(asked):
    if asked.tiny:
        asked.shapes, asked.draw, asked.steps, asked.blocks, asked.alias_layers = "tiny", 2, 3, 2, 1
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for shape in asked.shapes.split(","):
        for setting in asked.settings.split(",") if asked.backend == "cupy" else ["as-is"]:
            mine = part(asked, out, shape, setting)
            found += mine
            yield figures(f"{shape}, {HELD_BACK[setting].name}", merge_validations(mine))
    whole = merge_validations(found)
    (out / "all.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    yield figures("all", whole)


if __name__ == "__main__":
    bench("validation", __doc__, rows, backend="numpy", shapes="Qwen3-30B-A3B,OLMoE", settings="as-is,x16,x4",
          traces="sample", phase="decode", draw=5, steps=40, blocks=7, dense_us=30.0, alias_layers=0,
          out="validation")  # fmt: skip
