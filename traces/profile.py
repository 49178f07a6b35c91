"""How often each expert was wanted: what static policies and pins are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .files import beside, check_source
from .format_counts import Counts, read_counts
from .opening import open_trace
from .trace import Trace

PHASES = {"decode": (1,), "prefill": (0,), "all": (0, 1)}


def profile(traces: Sequence[Trace | Counts], phase: str = "decode") -> dict[str, Any]:
    """Counts per layer and expert, merged over traces: the ticks whose demand holds the expert (as heat counts them).

    `phase` is decode (the default: what comes later is decode too), prefill or all; a step with any prefill row is
    prefill. The traces must agree in layers and experts. `Counts` are added as they are, whatever they were counted
    over; the phase of the profile is then "unknown".
    """
    from . import kernels

    if phase not in PHASES:
        raise BadTrace(f"profile: no phase {phase!r}; known: {', '.join(PHASES)}")
    if not traces:
        raise BadTrace("profile: no traces")
    first = traces[0]
    counts = np.zeros(_shape(first), np.int64)
    for trace in traces:
        shape = _shape(trace)
        if shape != counts.shape:
            raise BadTrace(
                f"profile: {trace.name} has {shape[0]} layers of {shape[1]} experts, but {first.name} has "
                f"{counts.shape[0]} of {counts.shape[1]}; one profile is for one model"
            )
        if isinstance(trace, Counts):
            counts += trace.counts
            continue
        for block in trace.blocks():
            kernels.demands(block.experts, block.starts, np.isin(block.phase, PHASES[phase]), counts)
    if not counts.any():
        raise BadTrace(
            f"profile: no {phase} step in {', '.join(t.name for t in traces)}; `--phase all` counts every step"
        )
    return {
        "format": "slotwise.profile",
        "version": 1,
        "model": "" if isinstance(first, Counts) else first.model,
        "n_layers": counts.shape[0],
        "n_experts": counts.shape[1],
        "phase": "unknown" if any(isinstance(trace, Counts) for trace in traces) else phase,
        "traces": [{"name": trace.name, "sha256": trace.sha256} for trace in traces],
        "counts": counts.tolist(),
    }


def _shape(trace: Trace | Counts) -> tuple[int, int]:
    return trace.counts.shape if isinstance(trace, Counts) else (trace.n_layers, trace.n_experts)


def write_profile(traces: Sequence[Trace | Counts], path: str | Path, phase: str = "decode") -> dict[str, Any]:
    """`profile` of traces, or of what `open_counted` gives, into a JSON file, written beside and renamed."""
    record = profile(traces, phase)
    with beside(Path(path)) as temporary:
        temporary.write_text(json.dumps(record, allow_nan=False) + "\n")
    return record


def open_counted(path: str | Path, format: str | None = None) -> Trace | Counts:  # noqa: A002
    """What a profile can be made of: the counts in a file (`slotwise formats counts`), or else the trace.

    An .npy of whole numbers is taken for ids, unless the format is said to be "counts".
    """
    file = Path(path)
    if format in (None, "counts") and file.is_file():
        check_source(file)
        counts = read_counts(file, told=format == "counts")
        if counts is not None:
            return counts
    return open_trace(path, format)
