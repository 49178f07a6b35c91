"""Expert fingerprints of GPT-OSS in JSON, by token and layer.

  {"router_data": [
    {"token_0": {"layer_0": {"selected_experts": [...],
                             "selected_probs": [...]}, ...}, ...}, ...]}

An entry of `router_data` is a request. Its tokens and layers are taken in the
order of their numbers, wherever they stand in the file, and none may lack; keys
of other names are not read.
`selected_probs`, if there, ranks the experts. Prompt and answer are not told
apart: each token is a step of decode. The number of experts is not recorded:
give --n-experts (32 for gpt-oss-20b, 128 for gpt-oss-120b). The file is one
JSON value, so it is held in memory whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import BadTrace
from .importing import numbers, short
from .meta import MAX_LAYERS
from .passes import TOKENS, Passes, one_path
from .trace import Trace

name = "gpt-oss-fingerprint"
description = "JSON: router_data[].token_N.layer_M.{selected_experts, selected_probs}"
source = "GPT-OSS MoE expert fingerprinting"


class _Named(Passes):
    """Cells that messages call by their place in the JSON."""

    def __init__(self, path: Path, n_experts: int | None, top_k: int | None) -> None:
        super().__init__(path, by_row=False, n_experts=n_experts, top_k=top_k)
        self.names: list[str] = []

    def refuse(self, at: int, why: str) -> NoReturn:
        raise BadTrace(f"{self.path}: {self.names[at]}: {why}")


def sniff(path: Path, head: bytes) -> bool:
    if not head.lstrip().startswith(b"{"):
        return False
    with path.open("rb") as file:
        return b'"router_data"' in file.read(1 << 20)


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a fingerprint")
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadTrace(f"{path}: not JSON ({short(str(error))}); truncated?") from None
    entries = record.get("router_data") if isinstance(record, dict) else None
    if not isinstance(entries, list):
        raise BadTrace(f"{path}: no list 'router_data'")
    passes = _Named(path, n_experts, top_k)
    for request, entry in enumerate(entries):
        place = f"router_data[{request}]"
        for n, (token, layers) in enumerate(_numbered(path, place, entry, "token", TOKENS)):
            if n != token:
                raise BadTrace(f"{path}: {place} has no token_{n}, but token_{token}; tokens count from 0 (truncated?)")
            for layer, chosen in _numbered(path, f"{place}.token_{token}", layers, "layer", MAX_LAYERS):
                where = f"{path}: {place}.token_{token}.layer_{layer}"
                if not isinstance(chosen, dict):
                    raise BadTrace(f"{where}: {short(chosen)}; it must be {{selected_experts, selected_probs}}")
                passes.names.append(f"{place}.token_{token}.layer_{layer}")
                passes.add(
                    len(passes.names) - 1,
                    layer,
                    token,
                    numbers(where, chosen, "selected_experts", whole=True),
                    numbers(where, chosen, "selected_probs", whole=False) if "selected_probs" in chosen else (),
                    decode=1,
                    request=request,
                    opens=len(passes.names) > 1 and passes.token[-1] != token,
                )
    return passes.trace(
        row_bytes=row_bytes,
        model=model or "",
        source=f"gpt-oss-fingerprint: {path.name}",
    )


def _numbered(path: Path, place: str, value: Any, word: str, limit: int) -> Iterator[tuple[int, Any]]:
    """(N, what stands under `word_N`) in the order of N."""
    if not isinstance(value, dict):
        raise BadTrace(f"{path}: {place}: {short(value)}; it must hold {word}_0, {word}_1, ...")
    found = {}
    for key, inner in value.items():
        if not key.startswith(f"{word}_"):
            continue
        number = re.fullmatch(word + r"_(\d{1,9})", key, re.ASCII)
        if not number or int(number[1]) >= limit or int(number[1]) in found:
            raise BadTrace(f"{path}: {place} has {short(key)}; it must hold {word}_0, {word}_1, ... once each")
        found[int(number[1])] = inner
    if not found:
        raise BadTrace(f"{path}: {place} holds no {word}_0, {word}_1, ...")
    return iter(sorted(found.items()))
