"""llama.cpp's debug callback: the text that it prints of the tensors ffn_moe_topk.

  common_debug_cb_eval:  ffn_moe_topk-3 = (i32) VIEW(..., }) = {4, 2, 1, 1}
      [
          [
              [     17.0000,       3.0000,      40.0000,      12.0000  ],
              [      5.0000,      17.0000,       9.0000,      33.0000  ],
          ],
      ]
      sum = 136.000000

What llama-eval-callback and llama-debug print (before 2026 under the name
ggml_debug), and what llama-server writes to its log with the callback in it
(examples/README.md says how). The head gives k and the tokens, -3 is the layer;
a row is a token. Lines about anything else are left out. The callback prints
three values from each end: more than six experts or tokens are cut to "...",
and refused, unless its limit was raised.

A forward pass ends where the layer number no longer rises, and is a step:
prefill if it has several tokens, else decode. The last layer of a prompt may
hold the final token alone. Prefill after decode opens a request. The number of
experts is not recorded: give --n-experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import BadTrace
from .passes import LONGEST, Passes, one_path, short_bytes
from .reading import lines
from .trace import Trace

name = "llama-callback"
description = "text of llama.cpp's debug callback: the tensors ffn_moe_topk-<layer>, all of their values"
source = "ggml-org/llama.cpp, common/debug.cpp as of b8842, and examples/eval-callback before it"

HEAD = re.compile(
    rb"(?:common_debug_cb_eval|ggml_debug):\s+ffn_moe_topk-(\d{1,6}) = \(i32\) .*= "
    rb"\{(\d{1,5}), (\d{1,9}), 1, 1\}\s*$"
)
ROW = re.compile(rb"\s*\[((?:\s*\d{1,9}\.0+,){0,65535}\s*\d{1,9}\.0+)\s*\],\s*$")
FRAME = re.compile(rb"\s*(?:\[|\],?)\s*$")


def sniff(path: Path, head: bytes) -> bool:
    """The first tensor may come late, after what the program says about itself."""
    with path.open("rb") as file:
        return re.search(rb"(?:common_debug_cb_eval|ggml_debug):\s+ffn_moe_topk-\d", file.read(1 << 20)) is not None


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "the log of a run")
    passes = Passes(path, by_row=True, n_experts=n_experts, top_k=top_k)
    for at, layer, row, ids in _rows(path):
        passes.add(at, layer, row, ids)
    return passes.trace(
        row_bytes=row_bytes,
        model=model or "",
        captured_by="llama.cpp",
        source=f"llama-callback: {path.name}",
    )


def _rows(path: Path) -> Iterator[tuple[int, int, int, list[int]]]:
    """(line, layer, row of the tensor, ids) of each token of each tensor; every tensor is there as a whole."""
    layer = k = n = row = 0
    with path.open("rb") as file:
        for at, line in enumerate(lines(file, LONGEST), 1):
            if head := HEAD.search(line):
                _whole(path, at, layer, row, n)
                layer, k, n, row = int(head[1]), int(head[2]), int(head[3]), 0
            elif row == n or FRAME.match(line):
                continue
            elif found := ROW.match(line):
                ids = [int(text.partition(b".")[0]) for text in found[1].split(b",")]
                if len(ids) != k:
                    raise BadTrace(f"{path} line {at}: {len(ids)} experts, but the tensor's head says {k}")
                yield at, layer, row, ids
                row += 1
            elif b"..." in line:
                raise BadTrace(
                    f"{path} line {at}: {short_bytes(line.strip())} leaves values out; the callback prints three from "
                    "each end unless its limit is raised (examples/README.md says where)"
                )
            else:
                _whole(path, at, layer, row, n)
    _whole(path, at, layer, row, n)


def _whole(path: Path, at: int, layer: int, row: int, n: int) -> None:
    if row != n:
        raise BadTrace(f"{path} line {at}: ffn_moe_topk-{layer} ends after {row} of its {n} tokens; truncated?")
