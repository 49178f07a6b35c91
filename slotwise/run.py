"""A trace through the real executor: plans are the replay's, bytes move, experts are computed, seconds are measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.executor.backend import make_backend
from slotwise.executor.checks import check_size
from slotwise.executor.cold import SPIN_US, ColdChain, RowLayout
from slotwise.executor.drive import Driven, drive
from slotwise.executor.errors import BadExecutor, BrokenOff, CheckFailed
from slotwise.executor.executor import HEADROOM_BYTES, Executor
from slotwise.executor.link_speed import link_bytes_per_s
from slotwise.executor.shapes import PRESETS, Shape, as_recorded, shape_for, shape_of
from slotwise.executor.store import HostStore
from slotwise.executor.timeline import write_timeline
from slotwise.executor.timing import overlap_efficiency, summary
from slotwise.executor.watch import Watch
from slotwise.executor.weights import Weights, open_weights
from slotwise.policies import Pool
from slotwise.replay.options import Options
from slotwise.replay.run import run as replay_run
from slotwise.replay.sizes import parse_bytes
from slotwise.traces import Trace, open_trace
from slotwise.traces.files import check_target

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
    split_share: float = 0.5,
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
    cold: str = "native",
    dense_us: float = 0.0,
    repeats: int = 1,
    check: bool = False,
    timeline: str | Path | None = None,
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
    written as "64MiB". merge: on `cpu` or `gpu`. cpu_threads, spin_us: as `ColdChain` takes them.
    overlap: on, off, or both, interleaved. repeats: runs of each side for tokens per second, given with their range;
    one more run of each side says where the time went, since looking at every tick costs some. timeline: a file for
    Perfetto, of that run (the first side).
    check: replays the same trace and holds plans and counters against it, a sample of ticks against float64, a sample
    of slots against their rows, and the outputs of all runs against each other.
    Each run holds its options, counters, plan_sha256 (with plan_hash or check), failures and timing in seconds. Where
    the device or a worker gave out, `incomplete` says after how many steps and why: the counts and seconds are theirs.
    Raises BadTrace, BadPolicy, BadOption or BadExecutor; CheckFailed, a RuntimeError, where a check fails.
    """
    if overlap not in SIDES or repeats < 1:
        raise BadExecutor(f"overlap={overlap!r}, repeats={repeats}: on, off or both, and at least 1")
    opened = trace if isinstance(trace, Trace) else open_trace(trace)
    checkpoint = _weights(opened, weights) if weights else None
    layouts = checkpoint.layouts if checkpoint else _layouts(opened, shape, hidden, intermediate, dtype)
    if options.get("row_bytes") is not None:
        raise BadExecutor(f"row_bytes={options['row_bytes']}: rows of a run are as large as its weights; leave it out")
    opened = opened.with_row_bytes([layout.row_bytes for layout in layouts])
    asked = Options.of(policy=policy, slots=slots, **{"miss": "cpu" if miss == "split" else miss, **options})
    if timeline:
        check_target(Path(timeline))  # now, not after the runs
    source, size = asked.source(opened), asked.size(opened)
    check_size(size.pool_bytes, layouts)
    n_steps = asked.steps_of(source)
    sides, seed = SIDES[overlap], asked.seed % 2**63
    turns = [(side, False) for _ in range(repeats) for side in sides] + [(side, True) for side in sides]
    total = n_steps * len(turns)
    given = {"device": device, "sms": sms, "device_bytes": None if device_bytes is None else parse_bytes(device_bytes)}
    given = {name: value for name, value in given.items() if value is not None}
    given |= {"host": host, "merge": merge, "cold": cold}
    max_queued = None if max_queued is None else parse_bytes(max_queued)
    _warm_up(asked.pool(opened, size, full=True, future=False))
    outcomes: dict[bool, list[dict]] = {side: [] for side in sides}
    incomplete = None
    with (
        ColdChain(cpu_threads, spin_us=spin_us, kind=cold) as chain,
        closing(make_backend(backend, **given)) as kept,
    ):
        store = HostStore(layouts, opened.n_experts, kept, alias_layers=alias_layers, force=force)
        store = checkpoint.fill(store) if checkpoint else store.fill(seed, chain)
        with closing(make_backend(backend, **given)) as probe:
            link = link_bytes_per_s(store, probe)
        for turn, (side, timing) in enumerate(turns):
            try:
                pool = asked.pool(opened, size, full=True, future=False)
                with Executor(
                    pool, store, make_backend(backend, **given), chain, top_k=opened.top_k, horizon=asked.horizon,
                    overlap=side, miss=miss, split_share=split_share, late=late, headroom_bytes=parse_bytes(headroom),
                    staging=staging, spec_chunk=spec_chunk, max_queued=max_queued, link_pad=link_pad,
                    plan_hash=plan_hash or check, timing=timing,
                ) as executor:  # fmt: skip
                    watch = Watch(executor, n_steps, seed, closely=timing) if check else None
                    driven = drive(
                        executor, source, asked.predictor_of(opened), n_steps=n_steps, reset=asked.reset,
                        dense_us=dense_us, seed=seed, watch=watch,
                        progress=progress and (lambda done, turn=turn: progress(turn * n_steps + done, total, "")),
                    )  # fmt: skip
                    outcomes[side].append(_outcome(executor, driven, watch))
                incomplete = outcomes[side][-1]["broken"]
            except BrokenOff as broken:  # while it opened or closed
                if not any(outcomes.values()):
                    raise
                incomplete = {"steps": 0, "error": str(broken)}
            if incomplete:
                break
    if timeline and outcomes[sides[0]][-1]["ticks"] is not None:
        write_timeline(outcomes[sides[0]][-1]["ticks"], timeline)
    about = {
        "backend": backend, "cold": cold, "host": host, "host_bytes_per_s": link, "merge": merge,
        "restricted_to": _less(sms, link_pad), **as_recorded(layouts), "checked": check, "incomplete": incomplete,
    }  # fmt: skip
    return {
        "runs": [_row(opened, asked, asked.recorded(size), about, side, outcomes) for side in sides if outcomes[side]]
    }


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


def _outcome(executor: Executor, driven: Driven, watch: Watch | None) -> dict[str, Any]:
    transfers = executor.transfers
    return {
        "counters": executor.pool.counters,
        "plan_sha256": executor.plan_hash.hexdigest() if executor.plan_hash else None,
        "failures": executor.failures,
        "ticks": executor.ticks,
        "broken": driven.broken and {"steps": len(driven.step_s), "error": driven.broken},
        "outputs_sha256": watch and watch.outputs_sha256,
        "largest_error": watch.largest_error if watch and watch.n_sampled else None,
        "timing": summary(executor.ticks or [], driven.step_s, driven.tokens)
        | {
            "diverted": executor.dispatcher.diverted,
            "reader_waits": executor.backend.reader_waits,
            "copies": transfers.n_copies,
            "copy_batches": transfers.n_batches,
            "bytes_copied": transfers.bytes_copied,
            "bytes_padded": transfers.bytes_padded,
            "hurried": transfers.hurried,
            "overtaken": transfers.overtaken,
            "requeued": transfers.requeued,
        },
    }


def _row(
    trace: Trace,
    asked: Options,
    recorded: dict[str, Any],
    about: dict[str, Any],
    side: bool,
    outcomes: dict,
) -> dict:
    """One run as it is printed: what was asked, what was decided, what it took."""
    mine = outcomes[side]
    first = mine[0]
    _hold_together([one for side_of in outcomes.values() for one in side_of])
    if about["checked"]:
        _hold_against_replay(trace, asked, first)
    untimed = [one for one in mine if one["ticks"] is None]
    plain = [one["timing"] for one in untimed if not one["broken"]] or [first["timing"]]
    timed = mine[-1]["timing"] | {name: first["timing"][name] for name in ("steps", "tokens")}
    rates = sorted(timing["tokens_per_s"] for timing in plain if timing["tokens_per_s"])
    steps = ("seconds", "step_p50_s", "step_p95_s", "step_p99_s")
    timing = timed | {name: statistics.median(one[name] for one in plain) for name in steps}
    timing |= {
        "repeats": len(plain),
        "tokens_per_s": statistics.median(rates) if rates else None,
        "tokens_per_s_range": [rates[0], rates[-1]] if rates else None,
    }
    if len(outcomes) == 2 and not about["incomplete"]:
        timing["overlap_efficiency"] = overlap_efficiency(outcomes[True][-1]["ticks"], outcomes[False][-1]["ticks"])
    return {
        "trace": trace.name, "trace_sha256": trace.sha256, "model": trace.model, **about,
        "overlap": "on" if side else "off", **{name: recorded[name] for name in recorded if name != "phase"},
        "row_bytes": about["row_bytes"],
        "counters": first["counters"], "plan_sha256": first["plan_sha256"], "failures": first["failures"],
        "largest_error": mine[-1]["largest_error"], "timing": timing,
    }  # fmt: skip


def _hold_together(outcomes: list[dict]) -> None:
    """Raises CheckFailed unless all runs decided the same, and computed the same bytes where the same chain did."""
    whole = [one for one in outcomes if not (one["broken"] or one["failures"])]
    for one in whole[1:]:
        if (one["counters"], one["plan_sha256"]) != (whole[0]["counters"], whole[0]["plan_sha256"]):
            raise CheckFailed("two runs of one configuration decided differently")
        if one["outputs_sha256"] != whole[0]["outputs_sha256"] and not (
            one["timing"]["diverted"] or whole[0]["timing"]["diverted"]
        ):
            raise CheckFailed(
                "two runs of one configuration computed different outputs: in one of them a row was not there in time"
            )


def _hold_against_replay(trace: Trace, asked: Options, outcome: dict) -> None:
    """Raises CheckFailed unless a replay decides the same, tick for tick."""
    from slotwise.replay.failures import Failure

    failures = tuple(Failure(**failure) for failure in outcome["failures"])
    ended = {"steps": outcome["broken"]["steps"]} if outcome["broken"] else {}
    law = replay_run(trace, asked.but(plan_hash=True, failures=failures, **ended))
    wrong = {
        name: (law.counters[name], count)
        for name, count in outcome["counters"].items()
        if name in law.counters and law.counters[name] != count
    }
    if law.plan_sha256 != outcome["plan_sha256"] or wrong:
        raise CheckFailed(f"the plans differ from the replay's; counters (replay, run): {wrong or 'equal'}")
