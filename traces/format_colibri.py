"""colibri's ROUTE_TRACE: text, a line for each token of each call of a MoE layer.

  <call> <row> <layer> <id>:<gate> <id>:<gate> ...

`call` counts the calls of all layers, `row` the tokens of one call. A forward
pass ends where the layer number no longer rises, and is a step: prefill if it
has several tokens, else decode. Experts are ranked by their gates. A call that
starts again from 0 (files strung together), or prefill after decode, opens a
request. The number of experts is not recorded: give --n-experts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .errors import BadTrace
from .passes import Passes, one_path, short_bytes, whole_lines
from .trace import Trace

name = "colibri"
description = "text of ROUTE_TRACE: call row layer id:gate id:gate ..."
source = "colibri"

LINE = re.compile(rb"(\d{1,9}) (\d{1,9}) (\d{1,9})((?: \d{1,9}:-?(?:\d{1,9}(?:\.\d{1,9})?|nan|inf)){1,1024})")


def sniff(path: Path, head: bytes) -> bool:
    return LINE.fullmatch(head.partition(b"\n")[0].strip()) is not None


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a routing log of this engine")
    passes = Passes(path, by_row=True, n_experts=n_experts, top_k=top_k)
    last = None
    for at, line in whole_lines(path):
        found = LINE.fullmatch(line)
        if not found:
            raise BadTrace(f"{path} line {at}: {short_bytes(line)} is no 'call row layer id:gate ...' (truncated?)")
        call, row, layer = (int(text) for text in found.groups()[:3])
        opens = last is not None and call < last[0]
        expected = [(call, 0)] if opens or last is None else [(last[0], last[1] + 1), (last[0] + 1, 0)]
        if (call, row) not in expected or (row and last and layer != last[2]):
            raise BadTrace(
                f"{path} line {at}: call {call} row {row} of layer {layer} after "
                f"{'nothing' if last is None else 'call {} row {} of layer {}'.format(*last)}; rows and calls count up "
                "by one, and a call is of one layer (lines lost?)"
            )
        pairs = [pair.split(b":") for pair in found[4].split()]
        passes.add(at, layer, row, [int(e) for e, _ in pairs], [float(gate) for _, gate in pairs], opens=opens)
        last = call, row, layer
    return passes.trace(
        row_bytes=row_bytes,
        model=model or "",
        captured_by="colibri",
        source=f"colibri: {path.name}",
    )
