"""moe-cache-lab's JSON lines, version 1: a metadata line, then a line per token and layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from .block import Block
from .check import absent
from .errors import BadTrace
from .exporting import one_after_the_other
from .trace import Trace

name, suffix = "moe-cache-lab", ".jsonl"
description = "JSON lines v1 of one request: metadata, the prompt layer by layer, then generated tokens one by one"
loses = "predictions, row sizes, the router, licence and source, the request's id and label"
imported_by = "moe-cache-lab"


def write(trace: Trace, path: Path, advance: Callable[[int], None]) -> None:
    """The prompt is the request's step of prefill. A trace without a model's name goes by its own."""
    if trace.n_requests > 1:
        raise BadTrace(
            f"{trace.name}: moe-cache-lab holds one request a file, and here are {trace.n_requests}; take one out with "
            "`slotwise trace cut --id N`"
        )
    one_after_the_other(trace, name, counted=False)
    position = trace.rows("position")["position"]
    if (np.diff(position) <= 0).any():
        row = int(np.argmax(np.diff(position) <= 0)) + 1
        raise BadTrace(f"{trace.name}: row {row}: position {position[row]} after {position[row - 1]}; there they rise")
    record = {
        "record_type": "metadata",
        "format": "moe-cache-lab.routing-jsonl",
        "format_version": 1,
        "model_id": trace.model or trace.name,
        "model_revision": trace.meta.revision,
        "num_experts": trace.n_experts,
        "experts_per_token": trace.top_k,
        "capture_method": trace.meta.captured_by or "unknown",
    }
    if trace.meta.captured_at is not None:
        record["created_at"] = trace.meta.captured_at
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(_line(record))
        for block in trace.blocks(weights=trace.has_weights):
            for event in _events(trace, block):
                file.write(_line(event))
            advance(block.n_rows)


def _events(trace: Trace, block: Block) -> Iterator[dict]:
    """A step at a time: in a prompt layer by layer; a generated token is a step, so its layers follow each other."""
    names = ("position", "token_id") if trace.store.has_token_id else ("position",)
    rows = {n: c.tolist() for n, c in trace.store.rows(block.first_row, block.first_row + block.n_rows, names).items()}
    if block.weights is not None and not ((block.weights >= 0) & (block.weights <= 1)).all():
        raise BadTrace(
            f"{trace.name}: weights outside 0 to 1, and moe-cache-lab holds probabilities; leave them out with "
            "`slotwise trace cut --without weights`"
        )
    none = absent(block.experts.dtype)
    for s, phase in enumerate(block.phase.tolist()):
        for layer, number in enumerate(trace.meta.model_layers):
            for row in range(int(block.starts[s]), int(block.starts[s + 1])):
                ids = block.experts[layer, row].tolist()
                if ids[0] == none:
                    continue
                event = {
                    "record_type": "routing_selection",
                    "phase": "generated" if phase else "prompt",
                    "token_position": rows["position"][row],
                    "layer": number,
                    "selected_experts": ids,
                }
                if block.weights is not None:
                    event["selected_probabilities"] = block.weights[layer, row].tolist()
                if "token_id" in rows and rows["token_id"][row] >= 0:
                    event["token_id"] = rows["token_id"][row]
                yield event


def _line(record: dict) -> str:
    return json.dumps(record, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"
