"""How often each expert was wanted: what static policies and pins are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadTrace
from .files import beside
from .trace import Trace

PHASES = {"decode": (1,), "prefill": (0,), "all": (0, 1)}


def profile(traces: Sequence[Trace], phase: str = "decode") -> dict[str, Any]:
    """Counts per layer and expert, merged over traces: the ticks whose demand holds the expert (as heat counts them).

    `phase` is decode (the default: what comes later is decode too), prefill or all; a step with any prefill row is
    prefill. The traces must agree in layers and experts.
    """
    from . import kernels

    if phase not in PHASES:
        raise BadTrace(f"profile: no phase {phase!r}; known: {', '.join(PHASES)}")
    if not traces:
        raise BadTrace("profile: no traces")
    first = traces[0]
    counts = np.zeros((first.n_layers, first.n_experts), np.int64)
    for trace in traces:
        shape = trace.n_layers, trace.n_experts
        if shape != counts.shape:
            raise BadTrace(
                f"profile: {trace.name} has {shape[0]} layers of {shape[1]} experts, but {first.name} has "
                f"{counts.shape[0]} of {counts.shape[1]}; one profile is for one model"
            )
        for block in trace.blocks():
            kernels.demands(block.experts, block.starts, np.isin(block.phase, PHASES[phase]), counts)
    if not counts.any():
        raise BadTrace(
            f"profile: no {phase} step in {', '.join(t.name for t in traces)}; `--phase all` counts every step"
        )
    return {
        "format": "slotwise.profile",
        "version": 1,
        "model": first.model,
        "n_layers": first.n_layers,
        "n_experts": first.n_experts,
        "phase": phase,
        "traces": [{"name": trace.name, "sha256": trace.sha256} for trace in traces],
        "counts": counts.tolist(),
    }


def write_profile(traces: Sequence[Trace], path: str | Path, phase: str = "decode") -> dict[str, Any]:
    """`profile` into a JSON file, written beside and renamed."""
    record = profile(traces, phase)
    with beside(Path(path)) as temporary:
        temporary.write_text(json.dumps(record, allow_nan=False) + "\n")
    return record
