"""What a run is asked for, judged before anything is opened: its outputs, its weights, the shape of its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from slotwise.executor.cold import RowLayout
from slotwise.executor.errors import BadExecutor
from slotwise.executor.overlap import OverlapGate
from slotwise.executor.shapes import PRESETS, Shape
from slotwise.executor.weights import Weights, open_weights
from slotwise.replay.gate import gates_for
from slotwise.replay.machine import Machine
from slotwise.replay.options import Options
from slotwise.replay.pricing import Pricing
from slotwise.replay.sweep import FOREIGN
from slotwise.traces import Trace
from slotwise.traces.files import check_target

MOST_DENSE_US = 1e6


def check_outputs(
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


def share_of(measured: dict[str, Any]) -> float:
    """What `miss=split` fetches of the misses: the link's part of what link and CPU do together, at their best."""
    link, cpu = measured["copy_rows_per_s"], measured["host_read_per_s"]
    return round(link / (link + cpu), 3) if link and cpu else 0.5


def restricted_to(sms: int | None, link_pad: int) -> str | None:
    """What was held back, in words; None for the machine as it is."""
    parts = [f"{sms} SMs"] if sms else []
    parts += [f"1/{link_pad + 1} of the link"] if link_pad else []
    return " and ".join(parts) or None


def weights_of(trace: Trace, folder: str | Path, **given: object) -> Weights:
    """The weights, if the trace can be of their model and nothing else says their shape."""
    for name, value in given.items():
        if value is not None:
            raise BadExecutor(f"{name}={value}: the weights in {folder} say it; leave one of the two out")
    found = open_weights(folder)
    if (len(found.layouts), found.n_experts) != (trace.n_layers, trace.n_experts):
        raise BadExecutor(
            f"{folder}: {len(found.layouts)} MoE layers of {found.n_experts} experts, but the trace has "
            f"{trace.n_layers} of {trace.n_experts}"
        )
    return found


def check_dense(dense_us: float | str, preset: Shape | None, trace: Trace, hidden: int | None) -> float:
    """The microseconds, 0 for `auto` until they are known. Raises BadExecutor."""
    if dense_us == "auto":
        if preset is None or not preset.dense:
            raise BadExecutor(
                f"dense_us='auto': no preset says how much of {trace.model!r} is dense; give microseconds, or a shape "
                f"of {', '.join(name for name, shape in PRESETS.items() if shape.dense)}"
            )
        if hidden not in (None, preset.hidden):
            raise BadExecutor(
                f"dense_us='auto' is that of hidden={preset.hidden}, not of hidden={hidden}: give microseconds"
            )
        return 0.0
    if isinstance(dense_us, str) or not 0 <= dense_us <= MOST_DENSE_US:
        raise BadExecutor(f"dense_us={dense_us!r}: microseconds from 0 to {MOST_DENSE_US:g}, or 'auto'")
    return float(dense_us)


def priced_on(
    machine: Machine | str | Path, overlap: str, dense: float | Shape | None, cpu_threads: int | None
) -> Pricing:
    """What a run takes from a machine file. dense: microseconds, or the shape whose dense weights are read."""
    pricing = Pricing(machine, overlap="on" if overlap == "both" else overlap, cpu_threads=cpu_threads)
    if isinstance(dense, Shape):
        dense = dense.dense_us(pricing.known["device_read_bytes_per_s"])
    return replace(pricing, dense_us=dense or 0.0)


def gate_of(pricing: Pricing | None, asked: Options, trace: Trace) -> OverlapGate:
    """Which ticks overlap, by a machine file. Raises BadExecutor without one."""
    if pricing is None:
        raise BadExecutor("overlap='auto': where it pays is known from a machine file; give machine, or on or off")
    tables = gates_for(
        pricing, asked.rows_of(trace) or (), batch_gate=asked.batch_gate, n_experts=trace.n_experts, top_k=trace.top_k,
        ahead_s=pricing.policy_of(asked)[2] if asked.width else 0.0,
    )  # fmt: skip
    return OverlapGate(tables)


def layouts_of(
    trace: Trace, found: Shape | None, hidden: int | None, intermediate: int | None, dtype: str | None
) -> list[RowLayout]:
    """The rows' shape, by layer: as asked, else of a preset."""
    if found is None and not (hidden and intermediate):
        raise BadExecutor(
            f"{trace.name}: no shape known for the model {trace.model!r}; give --hidden and --intermediate, --shape "
            f"({', '.join(PRESETS)}), or --weights"
        )
    return (found or Shape(1, 1)).sized(hidden, intermediate).layouts(trace.n_layers, dtype)
