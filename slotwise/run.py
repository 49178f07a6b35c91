"""A trace through the real executor: plans are the replay's, bytes move, experts are computed, seconds are measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.executor import ceilings
from slotwise.executor.backend import make_backend
from slotwise.executor.checks import check_size
from slotwise.executor.cold import SPIN_US, ColdChain
from slotwise.executor.drive import drive
from slotwise.executor.errors import (
    BadExecutor,
    BrokenOff,
    CheckFailed,
    CopyDoubtful,
    CopyRefused,
    ExecutorWarning,
)
from slotwise.executor.executor import HEADROOM_BYTES, Executor
from slotwise.executor.shapes import as_recorded, shape_for, shape_of
from slotwise.executor.store import HostStore
from slotwise.executor.timeline import write_timeline
from slotwise.executor.watch import Watch
from slotwise.policies import Pool
from slotwise.replay.lag import settled
from slotwise.replay.machine import Machine
from slotwise.replay.options import Options, warn_idle
from slotwise.replay.run import run as replay_run
from slotwise.replay.run_rows import write_runs
from slotwise.replay.sizes import parse_bytes
from slotwise.traces import Trace, open_trace

from .run_result import Outcome, hold_together, outcome, row
from .run_setup import check_dense, check_outputs, gate_of, layouts_of, priced_on, restricted_to, share_of, weights_of
from .telemetry import Telemetry

SIDES = {"on": ("on",), "off": ("off",), "both": ("on", "off"), "auto": ("auto",)}


def run(
    trace: Trace | str | Path,
    policy: str = "lru",
    slots: str | int | None = None,
    *,
    backend: str = "numpy",
    weights: str | Path | None = None,
    shape: str | None = None,
    hidden: int | None = None,
    intermediate: int | None = None,
    dtype: str | None = None,
    overlap: str = "on",
    miss: str = "cpu",
    split_share: float | None = None,
    late: str = "wait",
    spec_chunk: int | None = None,
    max_queued: int | str | None = None,
    host: str = "pinned",
    force: bool = False,
    merge: str = "gpu",
    link_pad: int = 0,
    staging: int | None = None,
    headroom: int | str = HEADROOM_BYTES,
    device: int | None = None,
    sms: int | None = None,
    device_bytes: int | str | None = None,
    alias_layers: int | None = None,
    cpu_threads: int | None = None,
    spin_us: float = SPIN_US,
    activations: str = "float32",
    cold: str = "native",
    dense_us: float | str = 0.0,
    machine: Machine | str | Path | None = None,
    repeats: int = 1,
    check: bool = False,
    timeline: str | Path | None = None,
    out: str | Path | None = None,
    plan_hash: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Carries out one configuration and returns {"runs": [one per side of `overlap`]}.

    trace, policy, slots and the other options: as `slotwise.replay`. backend: `slotwise backends` lists them.
    weights: a folder with a Hugging Face checkpoint (safetensors), or a GGUF file; without, random rows of a seed.
    Layers may differ in dtypes and intermediate size; a global pool's slots are then as wide as the widest row.
    shape: a preset of `executor.shapes`, by default the trace's model; hidden, intermediate and dtype override it.
    dense_us: microseconds of device time a layer that stand for attention and all else that is dense; `auto` makes them
    of the preset's dense weights and the device's read rate, as measured.
    machine: a machine file, or what is in one; `overlap="auto"` and `lag_prefetch="auto"` follow from it.
    cold: the kind of cold chain, `native` or, where that was not built, `numba`: slower, for f32, f16, bf16 and Q8_0.
    device, sms: of cupy, the GPU and how many of its SMs; device_bytes: memory of the numpy backend's device.
    host: the memory that rows are copied from: `pinned` (page-locked), `registered` (huge pages) or `staged` (ordinary,
    through a small page-locked ring); its speed is measured. force: go on where it seems to be more than there is.
    spec_chunk, max_queued, late, split_share, headroom, staging, link_pad: as `Executor` takes them; bytes may be
    written as "64MiB"; by default split_share is what the link is of link and CPU together, as measured. merge: on
    `cpu` or `gpu`. cpu_threads, spin_us, activations: as `ColdChain` takes them.
    overlap: on, off, both, interleaved, or auto: at the ticks where the machine file expects a gain. repeats: runs of
    each side for tokens per second, given with their range; one more run of each side says where the time went, since
    looking at every tick costs some. timeline: a file for Perfetto, of that run (the first side). out: a new Parquet
    file for what is returned, one row per side.
    check: replays the same trace and holds plans and counters against it, a sample of ticks against float64, a sample
    of slots against their rows, and the outputs of all runs against each other.
    progress: called with (steps done, steps in all, what the run says of itself), by the clock, not by the step.
    Each run holds its options, counters, plan_sha256 (with plan_hash or check), failures, timing in seconds, the
    bandwidths achieved beside the ceilings measured in the same call, and a stretch of its ticks one by one. Where the
    device or a worker gave out, `incomplete` says after how many steps and why: the counts and seconds are theirs.
    Raises BadTrace, BadPolicy, BadOption or BadExecutor; CheckFailed, a RuntimeError, where a check fails.
    """
    if overlap not in SIDES or repeats < 1:
        raise BadExecutor(f"overlap={overlap!r}, repeats={repeats}: on, off, both or auto, and at least 1")
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    checkpoint = weights_of(opened, weights, hidden=hidden, intermediate=intermediate, dtype=dtype) if weights else None
    preset = shape_of(shape) if shape else shape_for(opened.model)
    layouts = checkpoint.layouts if checkpoint else layouts_of(opened, preset, hidden, intermediate, dtype)
    if options.get("row_bytes") is not None:
        raise BadExecutor(f"row_bytes={options['row_bytes']}: rows of a run are as large as its weights; leave it out")
    captured, opened = opened, opened.with_row_bytes([layout.row_bytes for layout in layouts])
    asked = Options.of(policy=policy, slots=slots, **{"miss": "cpu" if miss == "split" else miss, **options})
    check_outputs(timeline, out, trace, weights)
    dense = check_dense(dense_us, preset, opened, hidden)
    pricing = (
        None if machine is None else priced_on(machine, overlap, dense if dense_us != "auto" else preset, cpu_threads)
    )
    asked = settled(asked, opened, pricing)
    gate = gate_of(pricing, asked, opened) if overlap == "auto" else None
    headroom = parse_bytes(headroom)
    warn_idle(options.get("predictor"), [asked.width])
    source, size = asked.source(opened), asked.size(opened)
    check_size(size.pool_bytes, layouts)
    n_steps = asked.steps_of(source)
    max_tokens = 1
    for block in source.blocks(n_steps=n_steps):
        asked.check_requests(block)
        max_tokens = max(max_tokens, int(np.diff(block.starts).max()))
    sides, seed = SIDES[overlap], asked.seed % 2**63
    turns = [(side, False) for _ in range(repeats) for side in sides] + [(side, True) for side in sides]
    total = n_steps * len(turns)
    given = {"device": device, "sms": sms, "device_bytes": None if device_bytes is None else parse_bytes(device_bytes)}
    given = {name: value for name, value in given.items() if value is not None}
    given |= {"host": host, "merge": merge, "cold": cold}
    max_queued = None if max_queued is None else parse_bytes(max_queued)
    _warm_up(asked.pool(opened, size, full=True, future=False))
    outcomes: dict[str, list[Outcome]] = {side: [] for side in sides}
    incomplete = None
    with (
        ColdChain(cpu_threads, spin_us=spin_us, activations=activations, kind=cold) as chain,
        closing(make_backend(backend, **given)) as kept,
    ):
        store = HostStore(layouts, opened.n_experts, kept, alias_layers=alias_layers, force=force)
        store = checkpoint.fill(store) if checkpoint else store.fill(seed, chain)
        with closing(make_backend(backend, **given)) as probe:
            best = ceilings.measure(probe, chain, store)
        split_share = share_of(best) if split_share is None else split_share
        if dense_us == "auto" and preset and best["device_read_per_s"]:
            dense = round(preset.dense_us(best["device_read_per_s"]), 2)
        for turn, (side, timing) in enumerate(turns):
            try:
                pool = asked.pool(opened, size, full=True, future=False)
                with Executor(
                    pool, store, make_backend(backend, **given), chain, top_k=opened.top_k, horizon=asked.horizon,
                    overlap=gate or side == "on", miss=miss, split_share=split_share, late=late,
                    headroom_bytes=headroom, staging=staging, spec_chunk=spec_chunk, max_queued=max_queued,
                    link_pad=link_pad, max_tokens=max_tokens, plan_hash=plan_hash or check, timing=timing,
                ) as executor:  # fmt: skip
                    watch = Watch(executor, n_steps, seed, closely=timing) if check else None
                    said = f"run {turn + 1} of {len(turns)}, overlap {side}{', timed' * timing}"
                    driven = drive(
                        executor, source, asked.predictor_of(opened), n_steps=n_steps, reset=asked.reset,
                        dense_us=dense, seed=seed, watch=watch,
                        progress=progress and Telemetry(
                            executor, n_steps,
                            lambda done, text, turn=turn, said=said: progress(
                                turn * n_steps + done, total, f"{said}, step {done:,}: {text}"
                            ),
                        ),
                    )  # fmt: skip
                    outcomes[side].append(outcome(executor, driven, watch))
                incomplete = outcomes[side][-1].broken
            except BrokenOff as broken:  # while it opened or closed
                if not any(outcomes.values()):
                    raise
                incomplete = {"steps": 0, "error": str(broken)}
            if incomplete:
                break
        if not incomplete:
            try:
                with closing(make_backend(backend, **given)) as probe:
                    best = ceilings.better(best, ceilings.measure(probe, chain, store))
            except BrokenOff as broken:  # every step is finished, and stands
                incomplete = {"steps": n_steps, "error": str(broken)}
            except (CopyRefused, CopyDoubtful) as failed:
                warnings.warn(f"ceilings are those from before the runs alone: {failed}", ExecutorWarning, stacklevel=2)
        device_name = kept.device_name
    hold_together([one for side in sides for one in outcomes[side]])
    ran = [side for side in sides if outcomes[side]]
    for side in ran if check else ():
        _hold_against_replay(opened, asked, outcomes[side][0])
    settings = {
        "backend": backend, "device": device_name, "weights": Path(weights).name if weights else "random",
        **as_recorded(layouts), "cold": cold, "host": host, "merge": merge, "when_late": late,
        "split_share": split_share if miss == "split" else None, "spec_chunk": spec_chunk, "max_queued": max_queued,
        "staging": staging, "headroom_bytes": headroom, "alias_layers": alias_layers,
        "cpu_threads": chain.threads, "spin_us": float(spin_us), "activations": activations,
        "sms": sms, "link_pad": link_pad,
        "restricted_to": restricted_to(sms, link_pad), "dense_us": dense, "checked": check,
        "lag_auto": asked.lag_auto, "machine_sha256": pricing.known.sha256 if pricing else None,
        "incomplete": incomplete,
    }  # fmt: skip
    options = asked.recorded(size) | {"miss": miss}
    cycle = opened.token_cycle_bytes or 0
    runs = [row(captured, options, settings, side, outcomes, best, cycle) for side in ran]
    if timeline and (ticks := outcomes[ran[0]][-1].ticks) is not None:
        write_timeline(ticks, timeline)
    if out:
        write_runs(runs, Path(out))
    return {"runs": runs}


def _warm_up(pool: Pool) -> None:
    """Compiles what a live pool calls, or loads it from the cache: no step should pay for that."""
    nothing = np.zeros((1, 0), np.uint8 if pool.n_experts <= 255 else np.uint16)
    pool.step(0, nothing)
    pool.prefetch(pool.n_layers - 1, nothing)


def _hold_against_replay(trace: Trace, asked: Options, found: Outcome) -> None:
    """Raises CheckFailed unless a replay decides the same, tick for tick."""
    from slotwise.replay.failures import Failure

    failures = tuple(Failure(**failure) for failure in found.failures)
    ended = {"steps": found.broken["steps"]} if found.broken else {}
    law = replay_run(trace, asked.but(plan_hash=True, failures=failures, **ended))
    wrong = {
        name: (law.counters[name], count)
        for name, count in found.counters.items()
        if name in law.counters and law.counters[name] != count
    }
    if law.plan_sha256 != found.plan_sha256 or wrong:
        raise CheckFailed(f"the plans differ from the replay's; counters (replay, run): {wrong or 'equal'}")
