"""The CSV files of llama-moe-trace and its relatives, in three dialects.

  phase,token,layer,rank,expert   under this head: a line per routed expert;
                                  phase is prefill or decode
  pos,layer,e1,...,ek             no head: a line per token and layer; prefill
                                  where pos is negative
  layer,expert                    no head: a line per routed expert. Which token
                                  chose it is lost, so there are only counts:
                                  replay is refused

Lines stand in the order of execution. A forward pass ends where the layer
number no longer rises, and is a step. The last layer of a prompt may hold the
final token alone. Files strung together are told apart by a second head, by
prefill after decode, or by a position that starts again: each is a request.
The number of experts is not recorded: give --n-experts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import BadTrace
from .passes import Passes, one_path, short_bytes, whole_lines
from .trace import Trace

name = "llama-moe-trace"
description = "CSV of llama.cpp: phase,token,layer,rank,expert; or pos,layer,e1..ek; or layer,expert (counts only)"
source = "llama-moe-trace, in several forks of llama.cpp"

HEAD = b"phase,token,layer,rank,expert"
RANKED = re.compile(rb"(prefill|decode),(\d{1,9}),(\d{1,9}),(\d{1,9}),(\d{1,9})")
PLACED = re.compile(rb"(-?\d{1,9}),(\d{1,9})((?:,\d{1,9}){1,1024})")
COUNTED = re.compile(rb"\d{1,9},\d{1,9}")


def sniff(path: Path, head: bytes) -> bool:
    first = head.partition(b"\n")[0].strip()
    return first == HEAD or bool(PLACED.fullmatch(first) or COUNTED.fullmatch(first))


def read(
    paths: Sequence[Path],
    *,
    n_experts: int | None = None,
    top_k: int | None = None,
    row_bytes: int | None = None,
    model: str | None = None,
) -> Trace:
    """One file."""
    path = one_path(paths, "a CSV of this format")
    _, first = next(whole_lines(path), (0, b""))
    if COUNTED.fullmatch(first):
        raise BadTrace(_counted(path))
    passes, positions = Passes(path, by_row=True, n_experts=n_experts, top_k=top_k, whole=True), []
    row, last = 0, None
    for at, position, layer, decode, ids, opens in _ranked(path) if first == HEAD else _placed(path):
        row = row + 1 if last == (layer, decode) and not opens else 0
        passes.add(at, layer, row, ids, decode=decode, opens=opens)
        positions.append(position)
        last = layer, decode
    _restarts(passes, positions)
    return passes.trace(
        row_bytes=row_bytes,
        model=model or "",
        captured_by="llama.cpp",
        source=f"llama-moe-trace: {path.name}",
    )


def _restarts(passes: Passes, positions: list[int]) -> None:
    """Marks where decode begins at a position that was passed already: another file begins there.

    Of one layer alone, every decoded token is a forward pass; where there are more, a pass begins where layers fall.
    """
    single = len(set(passes.layer)) == 1
    before = -1
    for i, position in enumerate(positions):
        if not passes.decode[i]:
            before = -1
            continue
        if single:
            passes.token[i] = 0
        if i == 0 or single or passes.layer[i] < passes.layer[i - 1] or not passes.decode[i - 1]:
            passes.opens[i] |= position <= before
            before = position


Line = tuple[int, int, int, bool, list[int], bool]  # number, position, layer, decode, ids, whether a file begins here


def _ranked(path: Path) -> Iterator[Line]:
    """`phase,token,layer,rank,expert`: the ranks of a token and layer are lines that follow each other."""
    cell, ids, begun, opens = None, [], 0, False
    for at, line in whole_lines(path):
        if line == HEAD:
            if cell:
                yield begun, *cell, ids, opens
            cell, ids, opens = None, [], at > 1
            continue
        found = RANKED.fullmatch(line)
        if not found:
            raise BadTrace(f"{path} line {at}: {short_bytes(line)} is no line of {HEAD.decode()} (truncated?)")
        token, layer, rank, expert = (int(text) for text in found.groups()[1:])
        if rank == 0:
            if cell:
                yield begun, *cell, ids, opens
                opens = False
            cell, ids, begun = (token, layer, found[1] == b"decode"), [], at
        if cell != (token, layer, found[1] == b"decode") or rank != len(ids):
            raise BadTrace(
                f"{path} line {at}: rank {rank} of token {token} at layer {layer}, but rank {len(ids)} was next; ranks "
                "count from 0 for each token and layer (lines lost, or two captures in one file?)"
            )
        ids.append(expert)
    if cell:
        yield begun, *cell, ids, opens


def _placed(path: Path) -> Iterator[Line]:
    """`pos,layer,e1,...,ek`: prefill where pos is negative, whatever the number."""
    for at, line in whole_lines(path):
        found = PLACED.fullmatch(line)
        if not found:
            raise BadTrace(f"{path} line {at}: {short_bytes(line)} is no pos,layer,e1,...,ek (truncated?)")
        ids = [int(e) for e in found[3][1:].split(b",")]
        yield at, int(found[1]), int(found[2]), not line.startswith(b"-"), ids, False


def _counted(path: Path) -> str:
    """What `layer,expert` can say: how often, but not by which token."""
    chosen: Counter[tuple[int, int]] = Counter()
    for at, line in whole_lines(path):
        if not COUNTED.fullmatch(line):
            return f"{path} line {at}: {short_bytes(line)} is no layer,expert of whole numbers (truncated?)"
        layer, expert = line.split(b",")
        chosen[int(layer), int(expert)] += 1
    (layer, expert), most = chosen.most_common(1)[0]
    return (
        f"{path}: layer,expert without tokens: the order of tokens is lost, and what depends on it (every replay does) "
        f"cannot be known. It holds {chosen.total()} choices of {len(chosen)} experts in {len({y for y, _ in chosen})} "
        f"layers, most often expert {expert} of layer {layer} ({most} times); capture pos,layer,e1,...,ek to replay"
    )
