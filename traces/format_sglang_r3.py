"""SGLang's answers with routed_experts: JSON, the ids of each request in base64.

What /generate returns with return_routed_experts: one answer, a list of them, or
one a line; chat completions are read too (choices[].meta_info). Of meta_info:

  routed_experts            base64 of raw int32 [rows, layers, k]
  routed_experts_dtype      int32 unless it says uint16 or uint8
  prompt_tokens             tokens of the prompt
  completion_tokens         tokens that were generated
  routed_experts_start_len  position of the first row, else 0

rows = prompt_tokens + completion_tokens - 1 - start (the last token was never
fed back; a row for it, where the server gives one, is dropped). k is not
recorded, give --top-k; the layers are what is left. Dense layers are zeros or
-1, and left out. The rows of a prompt are one step of prefill, each row after
them a step of decode. An answer is a request, as if it had been served alone:
which requests shared a batch, and how a prompt was cut or cached, is not known.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import BadTrace
from .importing import guessed_n_experts, moe_layers, request_columns, short
from .json_lines import records, whole
from .meta import MAX_EXPERTS, check_whole
from .trace import Trace

name = "sglang-r3"
description = "JSON answers of /generate: meta_info.routed_experts, base64 of raw int32 [rows, layers, k]"
source = "sgl-project/sglang, return_routed_experts"

MOST = 2**31 - 1
DTYPES = {"int32": "<i4", "uint16": "<u2", "uint8": "u1"}
PAYLOAD = re.compile(rb'"routed_experts"\s*:\s*"(?!k05VTVBZ)')  # that much of base64 begins a NumPy file: vLLM's


def sniff(path: Path, head: bytes) -> bool:
    if head.lstrip()[:1] not in (b"{", b"["):
        return False
    with path.open("rb") as file:
        start = file.read(1 << 20)
    return b'"meta_info"' in start and PAYLOAD.search(start) is not None


class Request(NamedTuple):
    """One answer: ids `[rows, layers, k]`, the position of the first row, and how many rows are the prompt's."""

    experts: np.ndarray
    first: int
    prefill: int
    prompt_tokens: int
    label: str | None


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file or several of the same model, their answers strung together as requests."""
    where = str(paths[0])
    if top_k is None:
        raise BadTrace(f"{where}: top_k is not recorded; `slotwise trace import ... --top-k K` tells (experts a token)")
    check_whole(where, "top_k", top_k, 1, MAX_EXPERTS)
    requests: list[Request] = []
    for path in paths:
        for said, info in _answers(path):
            requests.append(_request(said, info, top_k))
            if (layers := requests[-1].experts.shape[1]) != requests[0].experts.shape[1]:
                raise BadTrace(
                    f"{said}: {layers} layers at top_k={top_k}, but {requests[0].experts.shape[1]} in the first answer"
                )
    if not requests:
        raise BadTrace(f"{where}: no answer has meta_info.routed_experts; was return_routed_experts asked for?")
    experts = np.concatenate([request.experts for request in requests])
    kept = moe_layers(where, experts)
    n_layers = int(kept.sum())
    lengths, prefill, first = np.array([[len(r.experts), r.prefill, r.first] for r in requests]).T
    return Trace.from_arrays(
        experts[:, kept],
        n_experts=guessed_n_experts(where, int(experts.max())) if n_experts is None else n_experts,
        **request_columns(lengths, prefill, first),
        model=model or "",
        model_layers=np.flatnonzero(kept).tolist(),
        row_bytes=None if row_bytes is None else [row_bytes] * n_layers,
        name=paths[0].stem,
        where=where,
        captured_by="SGLang",
        source="sglang-r3: " + ", ".join(path.name for path in paths),
        requests=[{"id": i, "label": r.label, "prompt_tokens": r.prompt_tokens} for i, r in enumerate(requests)],
    )


def _answers(path: Path) -> Iterator[tuple[str, dict]]:
    """(where, meta_info) of every answer in the file."""
    data = path.read_bytes()
    try:
        found = json.loads(data)
        answers: Any = enumerate(found if isinstance(found, list) else [found])
        answers = ((f"{path} answer {i}", answer) for i, answer in answers)
    except (ValueError, RecursionError) as error:
        if not str(error).startswith("Extra data"):
            raise BadTrace(f"{path}: not JSON (truncated?): {short(str(error))}") from None
        answers = ((where, answer) for _, where, answer in records(path, len(data) + 1))
    for where, answer in answers:
        parts = answer.get("choices", [answer]) if isinstance(answer, dict) else [answer]
        for part in parts if isinstance(parts, list) else [parts]:
            info = part.get("meta_info") if isinstance(part, dict) else None
            if not isinstance(info, dict) or not isinstance(info.get("routed_experts"), str):
                raise BadTrace(f"{where}: no meta_info.routed_experts; was return_routed_experts asked for?")
            yield where, info


def _request(where: str, info: dict, k: int) -> Request:
    prompt = whole(where, info, "prompt_tokens", 0, MOST)
    completion = whole(where, info, "completion_tokens", 0, MOST)
    start = 0
    if info.get("routed_experts_start_len") is not None:
        start = whole(where, info, "routed_experts_start_len", 0, MOST)
    said = info.get("routed_experts_dtype", "int32")
    if not isinstance(said, str) or said not in DTYPES:
        raise BadTrace(f"{where}: routed_experts_dtype={short(said)}; it is {', '.join(DTYPES)}")
    try:
        ids = np.frombuffer(base64.b64decode(info["routed_experts"], validate=True), DTYPES[said]).astype(np.int32)
    except ValueError as error:
        raise BadTrace(f"{where}: routed_experts is not base64 of {said} ({short(str(error))}); truncated?") from None
    n = prompt + completion - 1 - start
    if n < 1 or not len(ids):
        raise BadTrace(
            f"{where}: {len(ids)} ids for {n} rows (prompt_tokens={prompt} + completion_tokens={completion} - 1 - "
            f"start {start}); an answer needs a row"
        )
    rows = next((rows for rows in (n, n + 1) if len(ids) % (rows * k) == 0), 0)
    if not rows:
        raise BadTrace(
            f"{where}: {len(ids)} ids are no whole number of layers of {n} rows x top_k={k} (prompt_tokens={prompt} + "
            f"completion_tokens={completion} - 1 - start {start}); another --top-k, or truncated?"
        )
    label = info.get("id")
    return Request(
        ids.reshape(rows, -1, k)[:n],
        start,
        min(max(prompt - start, 0), n),
        prompt,
        label if type(label) is str else None,
    )
