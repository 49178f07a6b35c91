"""A trace through the real executor: plans are the replay's, bytes move, experts are computed, seconds are measured."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.executor import ceilings
from slotwise.executor.backend import make_backend
from slotwise.executor.checks import check_size
from slotwise.executor.cold import SPIN_US, ColdChain, RowLayout
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
from slotwise.executor.shapes import PRESETS, Shape, as_recorded, shape_for, shape_of
from slotwise.executor.store import HostStore
from slotwise.executor.timeline import write_timeline
from slotwise.executor.watch import Watch
from slotwise.executor.weights import Weights, open_weights
from slotwise.policies import Pool
from slotwise.replay.options import Options, warn_idle
from slotwise.replay.run import run as replay_run
from slotwise.replay.run_rows import write_runs
from slotwise.replay.sizes import parse_bytes
from slotwise.replay.sweep import FOREIGN
from slotwise.traces import Trace, open_trace
from slotwise.traces.files import check_target

from .run_result import Outcome, hold_together, outcome, row
from .telemetry import Telemetry

MOST_DENSE_US = 1e6
SIDES = {"on": (True,), "off": (False,), "both": (True, False)}


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
    dense_us: float = 0.0,
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
    cold: the kind of cold chain, `native` or, where that was not built, `numba`: slower, for f32, f16, bf16 and Q8_0.
    device, sms: of cupy, the GPU and how many of its SMs; device_bytes: memory of the numpy backend's device.
    host: the memory that rows are copied from: `pinned` (page-locked), `registered` (huge pages) or `staged` (ordinary,
    through a small page-locked ring); its speed is measured. force: go on where it seems to be more than there is.
    spec_chunk, max_queued, late, split_share, headroom, staging, link_pad: as `Executor` takes them; bytes may be
    written as "64MiB"; by default split_share is what the link is of link and CPU together, as measured. merge: on
    `cpu` or `gpu`. cpu_threads, spin_us, activations: as `ColdChain` takes them.
    overlap: on, off, or both, interleaved. repeats: runs of each side for tokens per second, given with their range;
    one more run of each side says where the time went, since looking at every tick costs some. timeline: a file for
    Perfetto, of that run (the first side). out: a new Parquet file for what is returned, one row per side.
    check: replays the same trace and holds plans and counters against it, a sample of ticks against float64, a sample
    of slots against their rows, and the outputs of all runs against each other.
    progress: called with (steps done, steps in all, what the run says of itself), by the clock, not by the step.
    Each run holds its options, counters, plan_sha256 (with plan_hash or check), failures, timing in seconds, the
    bandwidths achieved beside the ceilings measured in the same call, and a stretch of its ticks one by one. Where the
    device or a worker gave out, `incomplete` says after how many steps and why: the counts and seconds are theirs.
    Raises BadTrace, BadPolicy, BadOption or BadExecutor; CheckFailed, a RuntimeError, where a check fails.
    """
    if overlap not in SIDES or repeats < 1:
        raise BadExecutor(f"overlap={overlap!r}, repeats={repeats}: on, off or both, and at least 1")
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    checkpoint = _weights(opened, weights) if weights else None
    layouts = checkpoint.layouts if checkpoint else _layouts(opened, shape, hidden, intermediate, dtype)
    if options.get("row_bytes") is not None:
        raise BadExecutor(f"row_bytes={options['row_bytes']}: rows of a run are as large as its weights; leave it out")
    captured, opened = opened, opened.with_row_bytes([layout.row_bytes for layout in layouts])
    asked = Options.of(policy=policy, slots=slots, **{"miss": "cpu" if miss == "split" else miss, **options})
    _check_outputs(timeline, out, trace, weights)
    if not 0 <= dense_us <= MOST_DENSE_US:
        raise BadExecutor(f"dense_us={dense_us}: microseconds from 0 to {MOST_DENSE_US}")
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
    outcomes: dict[bool, list[Outcome]] = {side: [] for side in sides}
    incomplete = None
    with (
        ColdChain(cpu_threads, spin_us=spin_us, activations=activations, kind=cold) as chain,
        closing(make_backend(backend, **given)) as kept,
    ):
        store = HostStore(layouts, opened.n_experts, kept, alias_layers=alias_layers, force=force)
        store = checkpoint.fill(store) if checkpoint else store.fill(seed, chain)
        with closing(make_backend(backend, **given)) as probe:
            best = ceilings.measure(probe, chain, store)
        split_share = _share(best) if split_share is None else split_share
        for turn, (side, timing) in enumerate(turns):
            try:
                pool = asked.pool(opened, size, full=True, future=False)
                with Executor(
                    pool, store, make_backend(backend, **given), chain, top_k=opened.top_k, horizon=asked.horizon,
                    overlap=side, miss=miss, split_share=split_share, late=late, headroom_bytes=headroom,
                    staging=staging, spec_chunk=spec_chunk, max_queued=max_queued, link_pad=link_pad,
                    max_tokens=max_tokens, plan_hash=plan_hash or check, timing=timing,
                ) as executor:  # fmt: skip
                    watch = Watch(executor, n_steps, seed, closely=timing) if check else None
                    said = f"run {turn + 1} of {len(turns)}, overlap {'on' if side else 'off'}{', timed' * timing}"
                    driven = drive(
                        executor, source, asked.predictor_of(opened), n_steps=n_steps, reset=asked.reset,
                        dense_us=dense_us, seed=seed, watch=watch,
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
        "restricted_to": _less(sms, link_pad), "dense_us": float(dense_us), "checked": check, "incomplete": incomplete,
    }  # fmt: skip
    options = asked.recorded(size) | {"miss": miss}
    cycle = opened.token_cycle_bytes or 0
    runs = [row(captured, options, settings, side, outcomes, best, cycle) for side in ran]
    if timeline and (ticks := outcomes[ran[0]][-1].ticks) is not None:
        write_timeline(ticks, timeline)
    if out:
        write_runs(runs, Path(out))
    return {"runs": runs}


def _check_outputs(
    timeline: str | Path | None, out: str | Path | None, trace: Trace | str | Path, weights: str | Path | None
) -> None:
    """Now, not after the runs. A result that took minutes on a machine of its own is not replaced."""
    for name, value in (("timeline", timeline), ("weights", weights)):
        if value == "":
            raise BadExecutor(f"{name}='': it is the name of a file")
    for path in map(Path, filter(None, (timeline, out))):
        check_target(path)
    read = {Path(each).resolve() for each in (trace, weights) if isinstance(each, str | Path)}
    if timeline and Path(timeline).resolve() in read:
        raise BadExecutor(f"{timeline}: the timeline would replace what the run reads; name another file")
    if out is None:
        return
    path = Path(out)
    if path.suffix in FOREIGN:
        raise BadExecutor(f"{path}: a result is a Parquet file, not {path.suffix}; name it {path.stem}.parquet")
    if path.exists():
        raise BadExecutor(f"{path} exists: a run adds to no file and replaces none; name another")
    if timeline and path.resolve() == Path(timeline).resolve():
        raise BadExecutor(f"{path}: the result and the timeline cannot be one file; name two")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "no file may be written there", str(path.parent))


def _share(measured: dict[str, Any]) -> float:
    """What `miss=split` fetches of the misses: the link's part of what link and CPU do together, at their best."""
    link, cpu = measured["copy_rows_per_s"], measured["host_read_per_s"]
    return round(link / (link + cpu), 3) if link and cpu else 0.5


def _less(sms: int | None, link_pad: int) -> str | None:
    """What was held back, in words; None for the machine as it is."""
    parts = [f"{sms} SMs"] if sms else []
    parts += [f"1/{link_pad + 1} of the link"] if link_pad else []
    return " and ".join(parts) or None


def _warm_up(pool: Pool) -> None:
    """Compiles what a live pool calls, or loads it from the cache: no step should pay for that."""
    nothing = np.zeros((1, 0), np.uint8 if pool.n_experts <= 255 else np.uint16)
    pool.step(0, nothing)
    pool.prefetch(pool.n_layers - 1, nothing)


def _weights(trace: Trace, folder: str | Path) -> Weights:
    """The weights, if the trace can be of their model."""
    found = open_weights(folder)
    if (len(found.layouts), found.n_experts) != (trace.n_layers, trace.n_experts):
        raise BadExecutor(
            f"{folder}: {len(found.layouts)} MoE layers of {found.n_experts} experts, but the trace has "
            f"{trace.n_layers} of {trace.n_experts}"
        )
    return found


def _layouts(
    trace: Trace, shape: str | None, hidden: int | None, intermediate: int | None, dtype: str | None
) -> list[RowLayout]:
    """The rows' shape, by layer: as asked, else of the trace's model."""
    found = shape_of(shape) if shape else shape_for(trace.model)
    if found is None and not (hidden and intermediate):
        raise BadExecutor(
            f"{trace.name}: no shape known for the model {trace.model!r}; give --hidden and --intermediate, or --shape "
            f"({', '.join(PRESETS)})"
        )
    found = found or Shape(1, 1)
    return found._replace(hidden=hidden or found.hidden, inner=intermediate or found.inner).layouts(
        trace.n_layers, dtype
    )


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
