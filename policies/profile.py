"""Reads a profile: how often each expert was demanded, counted elsewhere (`slotwise trace profile`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import BadPolicy


@dataclass(frozen=True)
class Profile:
    """`counts` [n_layers, n_experts] int64; `trace_hashes` of the traces it was counted on."""

    counts: np.ndarray
    trace_hashes: tuple[str, ...]

    def ranked(self, layer: int | None) -> list[int]:
        """Keys with a count, most demanded first, then the lowest; of one layer, or of all (key = layer * E + id)."""
        counts = self.counts.ravel() if layer is None else self.counts[layer]
        order = np.lexsort((np.arange(counts.size), -counts))
        return [int(key) for key in order if counts[key] > 0]


def read_bytes(path: str) -> bytes:
    """What the file holds; BadPolicy if there is none."""
    try:
        other = Path(path).exists() and not Path(path).is_file()
        text = b"" if other else Path(path).read_bytes()
    except OSError as error:
        raise BadPolicy(f"profile {path!r}: {error.strerror}; make one with 'slotwise trace profile'") from error
    except ValueError as error:  # a NUL in the name
        raise BadPolicy(f"profile {path!r} cannot be the name of a file: {error}") from error
    if other:
        raise BadPolicy(f"profile {path!r} is not a file; make one with 'slotwise trace profile'")
    return text


def read_profile(path: str, text: bytes, n_layers: int, n_experts: int) -> Profile:
    """The profile that `path` held. Raises BadPolicy if it is none of a model of this shape."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPolicy(f"profile {path!r} is not JSON; make one with 'slotwise trace profile'") from error
    if not isinstance(data, dict) or data.get("format") != "slotwise.profile":
        raise BadPolicy(f"{path!r} is not a profile; make one with 'slotwise trace profile'")
    rule = f"profile {path!r}: version 1 holds traces, a list, and counts, whole numbers [n_layers][n_experts]"
    traces = data.get("traces", [])
    if data.get("version", 1) != 1 or not isinstance(traces, list):
        raise BadPolicy(rule)
    try:
        counts = np.array(data.get("counts"))
    except ValueError as error:
        raise BadPolicy(rule) from error
    if counts.dtype.kind not in "iu":
        raise BadPolicy(rule)
    counts = counts.astype(np.int64)
    if counts.shape != (n_layers, n_experts):
        raise BadPolicy(
            f"profile {path!r} has counts of shape {counts.shape}, but the trace has "
            f"{n_layers} layers of {n_experts} experts"
        )
    if (counts < 0).any():
        raise BadPolicy(f"profile {path!r}: a count is negative")
    hashes = tuple(str(t.get("sha256", "")) for t in traces if isinstance(t, dict))
    return Profile(counts, hashes)
