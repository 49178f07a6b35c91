"""How far prices are off what this machine does: two shapes, real routing, the machine as it is and held back.

    python benchmarks/validation.py --backend cupy [--traces sample,T.npz] [--parts PART,PART] [--out DIR] [--keep]

A part is SHAPE[/DTYPE]@SETTING@TRACE*DRAW: rows, how the machine is held back (as-is; x16 and x4 as in
executor_speed.py), which of the traces, and how many settings of slots, width, overlap, verify tokens and misses are
drawn, such that each resource bounds some; each runs under each policy. The machine is calibrated before the first part
of its rows and setting and after the last. Of a trace the decode steps are run (--phase all: all), since a prompt would
outweigh them. Machines, validations and one over them all (all.json, for `slotwise report`) go to `--out`; the same
command goes on with what is there, block by block. A row says how far off the prices were, in all and by what bounds a
configuration, beside a line fitted to misses and loads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from executor_speed import SETTINGS, Setting
from peers import bench

import slotwise
from slotwise.replay.machine import write_machine
from slotwise.validate_merge import merge_validations

HELD_BACK: dict[str, tuple[Setting, float]] = {  # and microseconds of a layer's attention: its bytes at that speed
    "as-is": (SETTINGS[0], 30.0), "x16": (SETTINGS[1], 100.0), "x4": (SETTINGS[2], 100.0)
}  # fmt: skip
GRID = {
    "policies": ["lru", "lfru", "lfru+guard", "lru+gate"], "slots": ["12%", "25%", "50%", "75%", "90%"],
    "widths": [0, 2, 4, 8], "overlaps": ["on", "off"], "verify_tokens": [1, 4], "misses": ["cpu", "fetch"],
}  # fmt: skip
PARTS = (
    "Qwen3-30B-A3B@as-is@1*3,OLMoE-1B-7B/Q4_K@as-is@2*4,OLMoE-1B-7B/Q4_K@as-is@1*4,OLMoE-1B-7B/Q4_K@x16@2*6"
)  # fmt: skip


class Part(NamedTuple):
    """One validation: its rows and setting, which trace, how many settings are drawn."""

    rows: str
    setting: str
    trace: int
    draw: int

    @classmethod
    def spelled(cls, text: str) -> Part:
        rows, setting, rest = text.split("@")
        trace, draw = map(int, rest.split("*"))
        return cls(rows, setting, trace, draw)

    @property
    def what(self) -> str:
        """Also the name of its files."""
        return f"{self.rows.replace('/', '-')}-{self.setting}"

    def run(self, asked, out: Path, *, again: bool) -> dict:
        """Its validation, from the file where it is there."""
        (held, dense_us), (shape, _, dtype) = HELD_BACK[self.setting], self.rows.partition("/")
        machine = out / f"{self.what}.machine.json"
        if not machine.exists():
            how = {"dtype": dtype or None, "sms": held.sms or None, "link_pad": held.link_pad, "quick": asked.tiny}
            write_machine(slotwise.calibrate(backend=asked.backend, shape=shape, **how), machine)
        traces = asked.traces.split(",")
        name = traces[min(self.trace, len(traces)) - 1]
        done = out / f"{self.what}-{Path(name).stem}.validation.json"
        if not done.exists():
            trace = slotwise.open_trace(name)
            trace = slotwise.cut(trace, phase="decode") if asked.phase == "decode" else trace
            slotwise.validate(
                trace, machine, **GRID, draw=self.draw, steps=asked.steps, blocks=asked.blocks, dense_us=dense_us,
                predictor="trace" if trace.predicted_width else "previous", alias_layers=asked.alias_layers or None,
                headroom=0, again=again, out=done,
            )  # fmt: skip
        return json.loads(done.read_text())


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
        asked.parts, asked.steps, asked.blocks, asked.alias_layers = "tiny@as-is@1*2", 3, 2, 1
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    parts = [Part.spelled(text) for text in asked.parts.split(",")]
    found = []
    for i, part in enumerate(parts):
        again = part.what not in [each.what for each in parts[i + 1 :]]
        found.append(part.run(asked, out, again=again))
        yield figures(f"{part.rows}, {HELD_BACK[part.setting][0].name}, {found[-1]['trace']}", found[-1])
    whole = merge_validations(found)
    (out / "all.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    yield figures("all", whole)


if __name__ == "__main__":
    bench("validation", __doc__, rows, backend="numpy", parts=PARTS, traces="sample", phase="decode", steps=32,
          blocks=7, alias_layers=0, out="validation")  # fmt: skip
