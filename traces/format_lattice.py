"""JSON lines, one per token and layer, with ids and gates.

  {"layer_idx": L, "token_idx": N, "selected_ids": [...], "gate_weights": [...]}

`gate_weights` may be missing; else experts are ranked by them. A forward pass
ends where (layer_idx, token_idx) no longer rises, and is a step: prefill if it
has several tokens, else decode. So a prompt that was written token by token is
read as decode. A pass that begins at a lower token than the one before, or
prefill after decode, opens a request. Ids of -1 are padding, and left out. The
number of experts is not recorded: give --n-experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .importing import numbers
from .json_lines import first_record, records, whole
from .meta import MAX_LAYERS
from .passes import TOKENS, Passes, one_path
from .trace import Trace

name = "lattice"
description = 'JSON lines {"layer_idx", "token_idx", "selected_ids", "gate_weights"}'
source = "lattice"


def sniff(path: Path, head: bytes) -> bool:
    return {"layer_idx", "token_idx", "selected_ids"} <= first_record(path, head).keys()


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a routing log of this kind")
    passes = Passes(path, by_row=False, restarts=True, n_experts=n_experts, top_k=top_k)
    for at, where, record in records(path):
        passes.add(
            at,
            whole(where, record, "layer_idx", 0, MAX_LAYERS - 1),
            whole(where, record, "token_idx", 0, TOKENS - 1),
            numbers(where, record, "selected_ids", whole=True),
            numbers(where, record, "gate_weights", whole=False) if record.get("gate_weights") else (),
        )
    return passes.trace(row_bytes=row_bytes, model=model or "", source=f"lattice: {path.name}")
