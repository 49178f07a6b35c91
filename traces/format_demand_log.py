"""Text logs of demand, a line for each step and layer, in two forms.

  step=N layer=L ids=a,b,c
      the distinct experts that the step wanted of the layer
  route <step> <layer> <k> <n_tokens> <expert>:<slot> ...
      k experts for each token, a token's together; the slots are not read

In the first form a step of several tokens shows the union of what they wanted.
It is laid out in rows of top-k (the fewest ids of any line, unless --top-k says
it) of which the last ones overlap: demand, order of first appearance and
recency are those of the log, while routed pairs are too many. A step of one
token is decode, of more prefill. A step number that falls (files strung
together), or prefill after decode, opens a request. The number of experts is
not recorded: give --n-experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from .errors import BadTrace
from .importing import warn
from .passes import Passes, one_path, short_bytes, whole_lines
from .trace import Trace

name = "demand-log"
description = "text: step=N layer=L ids=a,b,c; or route <step> <layer> <k> <n_tokens> <expert>:<slot> ..."
source = "logs of expert caches in forks of llama.cpp"

UNION = re.compile(rb"step=(\d{1,9}) layer=(\d{1,9}) ids=(\d{1,9}(?:,\d{1,9})*)")
ROUTE = re.compile(rb"route (\d{1,9}) (\d{1,9}) (\d{1,4}) (\d{1,9})((?: \d{1,9}:-?\d{1,9})+)")

Line = tuple[int, int, int, list[int], int]  # number, step, layer, ids, k (0: not said)


def sniff(path: Path, head: bytes) -> bool:
    return re.match(rb"step=\d+ layer=\d+ ids=\d|route \d+ \d+ \d+ \d+ \d+:-?\d", head) is not None


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a demand log")
    lines = list(_lines(path))
    k = top_k or min((told or len(ids) for *_, ids, told in lines), default=1)
    passes = Passes(path, by_row=any(told for *_, told in lines), n_experts=n_experts, top_k=top_k)
    before, unions = -1, 0
    for step, group in groupby(lines, key=lambda line: line[1]):
        of_step = list(group)
        rows = max(-(-len(ids) // k) for *_, ids, told in of_step if not told) if not of_step[0][4] else 0
        unions += rows > 1
        for i, (at, _, layer, ids, told) in enumerate(of_step):
            if i and layer <= of_step[i - 1][2]:
                above = of_step[i - 1][2]
                passes.refuse(at, f"step {step} layer {layer} after layer {above}; layers rise in a step (lines lost?)")
            if bool(told) != bool(of_step[0][4]):
                passes.refuse(at, "the other form of line within one step; import the two logs by themselves")
            if not told and len(ids) < k:
                passes.refuse(at, f"{len(ids)} ids, but top_k={k}; every token wants as many")
            for row in range(rows or len(ids) // told):
                start = row * told if told else min(row * k, len(ids) - k)
                passes.add(at, layer, row, ids[start : start + (told or k)], opens=(i, row) == (0, 0) and step < before)
        before = step
    if unions:
        warn(
            str(path),
            f"{unions} steps show the union of several tokens, laid out in rows of {k} that overlap: demand and "
            "recency are the log's, routed pairs are too many",
        )
    return passes.trace(
        row_bytes=row_bytes,
        model=model or "",
        source=f"demand-log: {path.name}",
    )


def _lines(path: Path) -> Iterator[Line]:
    for at, line in whole_lines(path):
        if found := UNION.fullmatch(line):
            ids, told = [int(e) for e in found[3].split(b",")], 0
            if len(set(ids)) < len(ids):
                raise BadTrace(f"{path} line {at}: an expert twice in {short_bytes(line)}; a demand is a set")
        elif found := ROUTE.fullmatch(line):
            ids, told, n = [int(pair.partition(b":")[0]) for pair in found[5].split()], int(found[3]), int(found[4])
            if told * n != len(ids):
                raise BadTrace(f"{path} line {at}: {len(ids)} experts for {n} tokens of k={told} (truncated?)")
        else:
            raise BadTrace(
                f"{path} line {at}: {short_bytes(line)} is neither 'step=N layer=L ids=...' nor 'route step layer k "
                "n_tokens expert:slot ...' (truncated?)"
            )
        yield at, int(found[1]), int(found[2]), ids, told
