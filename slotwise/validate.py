"""A grid on the executor, interleaved and repeated, against the prices of the same grid."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.executor.executor import HEADROOM_BYTES
from slotwise.replay.errors import BadOption
from slotwise.replay.lag import settled
from slotwise.replay.machine import Machine, read_machine
from slotwise.replay.options import Options
from slotwise.replay.price import plain
from slotwise.replay.pricing import Pricing
from slotwise.replay.result import Result
from slotwise.replay.run import run as replay_run
from slotwise.replay.sizes import parse_bytes
from slotwise.traces import Trace, open_trace
from slotwise.traces.files import check_target

from .calibrate import calibrate, layout_of
from .callable_file import callable_as_its_function
from .report import VALIDATION
from .run_result import machine as processor
from .validate_blocks import blocks_of, load_now, load_since
from .validate_drift import drift_by_part, price_drift
from .validate_grid import Config, grid_of
from .validate_judge import FEWEST_BLOCKS, Evidence, judge
from .validate_runner import Runner

Progress = Callable[[int, int, str], None]


def validate(
    trace: Trace | str | Path,
    machine: Machine | str | Path,
    *,
    policies: Iterable[str] = ("lru", "lfru"),
    slots: Iterable[str | int] = ("25%", "50%"),
    widths: Iterable[int] = (0,),
    overlaps: Iterable[str] = ("on",),
    verify_tokens: Iterable[int] = (1,),
    misses: Iterable[str] = ("cpu",),
    draw: int | None = None,
    blocks: int = FEWEST_BLOCKS,
    dense_us: float = 0.0,
    alias_layers: int | None = None,
    headroom: int | str = HEADROOM_BYTES,
    again: bool = True,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs every combination in `blocks` blocks, prices the same, and says how far off the prices are.

    draw: so many settings of all but the policy in place of every combination, drawn such that each resource bounds as
    many as prices say it can; each policy at each. A guard has nothing to guard at width 0, and is left out there
    unless all policies have one.
    machine: one that `slotwise.calibrate` measured. Rows, backend, threads and whatever holds the machine back are
    those of that call; nothing is fitted to the runs.
    Before the blocks every combination runs once, timed tick by tick: its plan must be the replay's, and its busiest
    resource is its stratum. Then each warms the machine up, untimed as in a block, also where an interrupted call goes
    on. In a block each runs once, in a random order, and the first one of the grid, the sentinel, twice more.
    again: calibrate once more afterwards; without, nothing can be concluded. out: a new JSON file for what is returned;
    finished blocks are kept beside it, and the same call after an interruption goes on with them.
    dense_us, alias_layers, headroom: as `slotwise.run` takes them. options: those of `slotwise.replay`, steps and
    accept among them. progress: called with (runs done, runs in all, what).
    Raises BadTrace, BadPolicy, BadOption, BadExecutor, or CheckFailed (a RuntimeError) if a plan is not the replay's.
    """
    known = machine if isinstance(machine, Machine) else read_machine(machine)
    asked = known.details.get("asked")
    if known.label != "MEASURED" or not isinstance(asked, dict):
        raise BadOption(f"{known.name}: its figures come from no measurement here; `slotwise calibrate` makes one")
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise BadOption(f"blocks={blocks!r}: a whole number of at least 1")
    if out is not None:
        check_target(Path(out))
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    layout = layout_of(asked["shape"], asked["hidden"], asked["intermediate"], asked["dtype"])
    opened = opened.with_row_bytes([layout.row_bytes] * opened.n_layers)
    usual = Options.of(**{"policy": "lru", "slots": 1, **options})
    if not usual.steps_of(opened):
        raise BadOption(f"steps={usual.steps}: no step of {opened.name} is left to run; ask for at least 1")
    seed = usual.seed % 2**63

    overlaps = list(overlaps)

    def pricings_of(machine: Machine) -> dict[str, Pricing]:
        return {each: Pricing(machine, overlap=each, dense_us=dense_us, bounds=False) for each in overlaps}

    prices = pricings_of(known)

    def ask_of(one: Config) -> Options:
        chosen = {name: getattr(one, name) for name in ("policy", "slots", "width", "verify_tokens", "miss")}
        return settled(Options.of(**chosen, **options), opened, prices[one.overlap])

    def law_of(one: Config, ask: Options, prices: dict[str, Pricing] = prices) -> Result:
        return replay_run(opened, ask, pricing=prices[one.overlap])

    def drift_of(other: Machine) -> float:
        prices = pricings_of(other)
        return price_drift(laws, [law_of(*each, prices) for each in zip(grid, asks, strict=True)])

    if progress and draw:
        progress(0, 1, "what bounds each setting, by its price")
    axes = map(str, slots), widths, overlaps, verify_tokens, misses
    grid = grid_of(policies, *axes, draw=draw, seed=seed, bound_by=lambda one: _bound(law_of(one, ask_of(one))))
    asks = [ask_of(one) for one in grid]
    headroom_bytes = parse_bytes(headroom)
    total = len(grid) * (3 + blocks) + 2 * blocks
    said = _Said(progress, total)
    question = _question(opened, known, grid, options, dense_us, alias_layers)
    with blocks_of(out, question, [3] + [1] * (len(grid) - 1)) as kept:
        laws = []
        for one, ask in zip(grid, asks, strict=True):
            said(f"price of {one}")
            laws.append(law_of(one, ask.but(plan_hash=True)))
        with Runner(
            opened, known, asked, layout, dense_us=dense_us, headroom=headroom_bytes,
            alias_layers=alias_layers, seed=seed,
        ) as runner:  # fmt: skip
            timed = []
            for one, ask, law in zip(grid, asks, laws, strict=True):
                said(f"plan of {one}")
                timed.append(runner.closely(ask, one.overlap, law, str(one)))
            for one, ask in zip(grid, asks, strict=True) if len(kept.blocks) < blocks else ():
                said(f"warm-up: {one}")
                runner.tokens_per_s(ask, one.overlap)
            for number in range(len(kept.blocks), blocks):
                order = np.random.default_rng((seed, number)).permutation([*range(len(grid)), 0, 0])
                repeats: list[list[float]] = [[] for _ in grid]
                before = load_now()
                runner.told.clear()
                for i in order:
                    said(f"block {number + 1} of {blocks}: {grid[i]}")
                    repeats[i].append(runner.tokens_per_s(asks[i], grid[i].overlap))
                kept.add({"tokens_per_s": repeats, "load": load_since(before, runner.told)})
        said("calibrating once more" if again else "done")
        other = calibrate(**asked) if again else None
        drift = other and drift_by_part(known, other)
        per_block = kept.blocks[:blocks]
        found = Evidence(
            predicted=np.array([law.price.tokens_per_s for law in laws if law.price]),
            measured=np.array([[runs[0] for runs in block["tokens_per_s"]] for block in per_block]),
            sentinel=np.array([block["tokens_per_s"][0][1:] for block in per_block]),
            strata=[max(each["busy"], key=each["busy"].get) for each in timed],
            twins=[one[1:] for one in grid],
            misses=np.array([law.counters["misses"] / law.price.tokens for law in laws if law.price]),
            loads=np.array([law.counters["fills"] / law.price.tokens for law in laws if law.price]),
            drift=drift_of(other) if other else None,
            labels=[law.price.label for law in laws if law.price],
        )
        rows = f"{asked['shape'] or f'{layout.hidden} x {layout.inner}'}, {' + '.join(dict.fromkeys(layout.dtypes))}"
        result = {"rows": rows} | _result(opened, known, options, grid, laws, timed, per_block, found, drift)
        kept.finish(result)
    return result


def _bound(law: Result) -> str:
    """What a price says will be busiest, in the words of a stratum."""
    busy = law.price.busy if law.price else {}
    return {"gpu": "hot"}.get(found := max(busy, key=lambda of: busy[of]), found)


def _left_out(grid: Sequence[Config]) -> list[str]:
    """Policies that were not run at width 0, where others were."""
    there = {one.policy for one in grid if not one.width}
    return [name for name in dict.fromkeys(one.policy for one in grid) if there and name not in there]


class _Said:
    """Progress, one more at each call."""

    def __init__(self, progress: Progress | None, total: int):
        self._progress, self._total, self._done = progress, total, -1

    def __call__(self, what: str) -> None:
        self._done += 1
        if self._progress:
            self._progress(min(self._done, self._total), self._total, what)


def _question(trace: Trace, machine: Machine, grid: Sequence[Config], *more: Any) -> str:
    """What blocks must have in common to be counted together."""
    asked = [trace.content_sha256, machine.sha256, [list(one) for one in grid], *more, processor()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


TERMS = {  # seconds by cause of a timed run, and what a price says of the same
    "both_s": ("both_s",), "hot_alone_s": ("hot_alone_s",), "cold_alone_s": ("cold_alone_s",), "late_s": ("late_s",),
    "policy_s": ("policy_s",), "merge_s": ("merge_s",), "rest_s": ("host_s", "jitter_s"),
    "between_s": ("ids_s", "dense_s", "step_s"),
}  # fmt: skip


def _result(
    trace: Trace, machine: Machine, options: dict[str, Any], grid: Sequence[Config], laws: Sequence[Result],
    timed: Sequence[dict[str, Any]], blocks: Sequence[dict[str, Any]], found: Evidence, drift: dict[str, float] | None,
) -> dict[str, Any]:  # fmt: skip
    """What `--json` prints and `-o` keeps."""
    judged = judge(found)
    measured, intervals, fitted = (judged.pop(name) for name in ("measured", "intervals", "baseline"))
    rows = []
    for i, (one, law) in enumerate(zip(grid, laws, strict=True)):
        price = law.price
        assert price is not None
        rows.append(
            one._asdict()
            | {
                "label": price.label, "predicted": price.tokens_per_s, "measured": measured[i],
                "error": price.tokens_per_s / measured[i] - 1,
                "predicted_interval": price.intervals["tokens_per_s"], "measured_interval": intervals[i],
                "baseline": fitted[i], "stratum": found.strata[i], "busy": timed[i]["busy"], "priced_busy": price.busy,
                "terms": {
                    name: {
                        "measured": timed[i]["parts"][name] / timed[i]["seconds"],
                        "predicted": sum(price.parts[of] for of in parts) / timed[i]["seconds"],
                    }
                    for name, parts in TERMS.items()
                },
                "misses_per_token": float(found.misses[i]), "loads_per_token": float(found.loads[i]),
                "plan_sha256": law.plan_sha256,
            }
        )  # fmt: skip
    return plain(
        {
            "format": VALIDATION, "version": 1, **judged, "plans": "equal", "drift_by_part": drift,
            "left_out": _left_out(grid),
            "terms": {
                name: statistics.median(
                    row["terms"][name]["predicted"] - row["terms"][name]["measured"] for row in rows
                )
                for name in TERMS
            },
            "trace": trace.name, "content_sha256": trace.content_sha256, "options": options,
            "machine": machine.name, "machine_sha256": machine.sha256, "machine_date": machine.date,
            "backend": machine.backend, "device": machine.device, "processor": processor(),
            "restricted_to": machine.restricted_to, "configurations": rows, "each_block": list(blocks),
        }
    )  # fmt: skip


callable_as_its_function(__name__)
