"""vLLM's routed experts: a .npy file a request, or base64 of one in a response.

  t.npy     [T, L, k] whole numbers: tokens, all layers of the model, top-k
  t.json    a response (or a list of them) with "routed_experts": base64 of
            such an array, anywhere inside; usage.prompt_tokens, if it is there,
            says how many first rows were the prompt

The last token of a request routes nothing, so T is one less than its tokens.
Dense layers are filled with zeros: they are left out, and the rest keep their
numbers. Without the length of the prompt each row is a step of decode. Several
files or responses are one capture, a request each. Nothing is unpickled. The
number of experts is not recorded: give --n-experts. (The .npz of a request is
read by the format npz.)
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import BadTrace
from .format_counts import FLOATS
from .format_npz import assembled
from .importing import short, warn
from .npy import header
from .trace import Trace

name = "vllm"
description = "routed_experts [T, L, k] of a request: .npy, or base64 of it in the JSON of a response"
source = "vLLM"

MAGIC = b"\x93NUMPY"
CODED = b'"k05VTVBZ'  # how base64 of the magic begins
CHUNK = 1 << 20


def sniff(path: Path, head: bytes) -> bool:
    """The key stands after the text of the answer, so a JSON file is searched as a whole."""
    if head.startswith(MAGIC):
        return not FLOATS.match(head)
    if not head.lstrip().startswith((b"{", b"[")) or b'"' not in head:
        return False
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            if CODED in before + chunk:
                return True
            before = chunk[-len(CODED) :]
    return False


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file, or several; each array is a request, in the order of the files and of the text."""
    found = [(path, part) for path in paths for part in _parts(path)]
    if len({"prefill_rows" in part for _, part in found}) > 1:
        raise BadTrace(f"{paths[0]}: the length of the prompt is known for some requests only; import them apart")
    return assembled(
        name,
        [path for path, _ in found],
        [part for _, part in found],
        n_experts=n_experts,
        top_k=top_k,
        row_bytes=row_bytes,
        model=model,
    )


def _parts(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            file.seek(0)
            return [{"experts": _array(str(path), file, path.stat().st_size)}]
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadTrace(f"{path}: not JSON ({short(str(error))}); truncated?") from None
    parts = []
    for i, response in enumerate(value if isinstance(value, list) else [value]):
        for coded in _coded(response):
            where = f"{path}: routed_experts {len(parts)}"
            try:
                data = base64.b64decode(coded, validate=True)
            except ValueError as error:
                raise BadTrace(f"{where} is not base64 ({short(str(error))})") from None
            part = {"experts": _array(where, io.BytesIO(data), len(data))}
            prompt = response.get("usage", {}).get("prompt_tokens") if _has_usage(response) else None
            if type(prompt) is int and 0 <= prompt <= len(part["experts"]):
                part["prefill_rows"] = np.array([prompt])
            elif prompt is not None:
                warn(
                    str(path),
                    f"response {i} says prompt_tokens={short(prompt)}, but has {len(part['experts'])} rows; each is "
                    "taken as a step of decode",
                )
            parts.append(part)
    if not parts:
        raise BadTrace(f"{path}: no text under 'routed_experts' in it")
    return parts


def _has_usage(response: Any) -> bool:
    return isinstance(response, dict) and isinstance(response.get("usage"), dict)


def _coded(value: Any) -> Iterator[str]:
    """Every text under the key `routed_experts`, in order of the file, however deep."""
    left = [(None, value)]
    while left:
        key, value = left.pop()
        if key == "routed_experts" and isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left.extend(reversed(value.items()))
        elif isinstance(value, list):
            left.extend((None, inner) for inner in reversed(value))


def _array(where: str, file: IO[bytes], size: int) -> np.ndarray:
    """The array, its header held against the size before anything is allocated."""
    shape, fortran, dtype = header(where, file, 3, "iu")
    promised, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if promised != there or min(shape) < 0:
        raise BadTrace(f"{where} promises {promised} bytes ({dtype} {list(shape)}), but {there} follow; truncated?")
    if not promised:
        raise BadTrace(f"{where} is {list(shape)}: no tokens; a trace needs at least one row")
    return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")
