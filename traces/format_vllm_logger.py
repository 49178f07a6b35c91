"""JSON lines of the MoE loggers that patch vLLM: a line per token and layer.

  {"type": "meta", "model_id": ..., "top_k": k, ...}             may be missing
  {"type": "route", "req_id": ..., "token_idx": N, "layer": L,
   "topk_ids": [...], "topk_weights": [...]}

`token_idx` starts again with every forward pass, and so is not a position. A
pass ends where (layer, token_idx) no longer rises, and is a step: prefill for a
request that has several tokens in it, else decode. Ids of -1 are padding, and
left out. Without `req_id`, prefill after decode opens a request; so does a
second meta line. Warm-up forwards are logged too: cut them off. The number of
experts is not recorded: give --n-experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .importing import numbers, short, warn
from .json_lines import first_record, records, text, whole
from .meta import MAX_EXPERTS, MAX_LAYERS
from .passes import TOKENS, Passes, one_path
from .trace import Trace

name = "vllm-logger"
description = 'JSON lines {"type": "route", "req_id", "token_idx", "layer", "topk_ids", "topk_weights"}'
source = "MoE loggers for vLLM (VLLM_LOG_MOE)"


def sniff(path: Path, head: bytes) -> bool:
    record = first_record(path, head)
    return (record.get("type") == "route" and "topk_ids" in record) or (
        record.get("type") == "meta" and ("layers_logged" in record or "top_k" in record)
    )


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a routing log of vLLM")
    passes = Passes(path, by_row=False, n_experts=n_experts, top_k=top_k)
    requests: dict[tuple[int, str], int] = {}  # (file, req_id) -> request
    heads, unnamed, opens = 0, 0, False
    for at, where, record in records(path):
        if record.get("type") == "meta":
            heads, opens = heads + 1, passes.count > 0
            model = model or text(where, record, "model_id")
            if top_k is None and record.get("top_k") is not None:
                passes.top_k = whole(where, record, "top_k", 1, MAX_EXPERTS)
            continue
        if record.get("type") != "route":
            passes.refuse(at, f"type={short(record.get('type'))}; a line is a route, or the meta line of a file")
        given = record.get("req_id")
        unnamed += given is None
        request = -1 if given is None else requests.setdefault((heads, str(given)), len(requests))
        if requests and unnamed:
            passes.refuse(at, f"req_id {short(given)}, but other lines {'have none' if request >= 0 else 'have one'}")
        passes.add(
            at,
            whole(where, record, "layer", 0, MAX_LAYERS - 1),
            whole(where, record, "token_idx", 0, TOKENS - 1),
            numbers(where, record, "topk_ids", whole=True),
            numbers(where, record, "topk_weights", whole=False) if record.get("topk_weights") else (),
            request=request,
            opens=opens,
        )
        opens = False
    trace = passes.trace(
        row_bytes=row_bytes,
        labels=[label for _, label in requests] or None,
        model=model or "",
        captured_by="vLLM",
        source=f"vllm-logger: {path.name}",
    )
    if trace.n_steps == 1 and trace.n_tokens > 1:
        warn(
            str(path),
            f"token_idx never starts again, so all {trace.n_tokens} tokens are one forward pass; if it counts over the "
            "whole run, steps and phases are unknown",
        )
    return trace
