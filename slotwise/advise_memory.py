"""What of the VRAM is left for experts: free, less dense weights, context, draft and headroom, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotwise.executor.gguf_header import read_header
from slotwise.executor.gguf_memory import check_header, context_bytes, dense_bytes, expert_rows, used_experts
from slotwise.replay.errors import BadOption
from slotwise.replay.sizes import parse_bytes
from slotwise.reports.metrics import size
from slotwise.traces import Trace

MOST_CTX = 2**30


@dataclass(frozen=True)
class Memory:
    """A sum of bytes: what is there first, then what is taken from it; and bytes of a row by layer, if a file tells.

    warnings: what in that file does not fit the trace.
    """

    lines: tuple[tuple[str, int], ...]
    rows: tuple[int, ...] | None
    warnings: tuple[str, ...] = ()

    @property
    def room(self) -> int:
        """Bytes for the pools; below 0 where more is taken than there is."""
        return self.lines[0][1] - sum(taken for _, taken in self.lines[1:])

    def told(self) -> str:
        """`8 GiB of VRAM - 900 MiB headroom = 7.12 GiB`."""
        first, *others = ((what, size(n_bytes)) for what, n_bytes in self.lines)
        taken = "".join(f" - {told} {what}" for what, told in others)
        return f"{first[1]} of {first[0]}{taken} = {size(self.room)}"


def memory_of(
    trace: Trace, vram: int | str, headroom: int | str, *, context: int | str | None = None,
    gguf: str | Path | None = None, ctx: int | None = None, kv_type: str | None = None, draft: str | Path | None = None,
) -> Memory:  # fmt: skip
    """The sum. Raises BadOption, BadExecutor for a file that does not tell or is of another model than the trace."""
    given = {"ctx": ctx, "kv_type": kv_type, "draft": draft}
    if gguf is None:
        for name, value in given.items():
            if value is not None:
                raise BadOption(f"{name}={value!r}: it is counted from the header of a model; give gguf with it")
    if context is not None and (ctx is not None or kv_type is not None):
        raise BadOption("context_bytes says what ctx and kv_type would: give one of them")
    if ctx is not None and (isinstance(ctx, bool) or not isinstance(ctx, int) or not 1 <= ctx <= MOST_CTX):
        raise BadOption(
            f"ctx={ctx!r}: tokens of the context, from 1 to {MOST_CTX:,}; give as many as your engine is to hold"
        )
    if kv_type is not None and ctx is None:
        raise BadOption(f"kv_type={kv_type!r}: it is the type of the context's keys and values; give ctx with it")
    lines = [("VRAM", parse_bytes(vram))]
    rows, warnings = None, []
    if gguf is not None:
        header = read_header(gguf)
        check_header(header)
        layers, found, n_experts = expert_rows(header)
        if (len(layers), n_experts) != (trace.n_layers, trace.n_experts):
            raise BadOption(
                f"{gguf}: {len(layers)} MoE layers of {n_experts} experts, and the trace {trace.name} has "
                f"{trace.n_layers} of {trace.n_experts}; give a trace of this model"
            )
        rows = tuple(found)
        if (used := set(used_experts(header))) and trace.top_k not in used:
            warnings.append(
                f"{gguf} uses {max(used)} experts a token, and the trace {trace.name} is of top-{trace.top_k}: the "
                "answer is for the trace"
            )
        lines.append(("dense weights", dense_bytes(header)))
        if ctx is not None:
            lines.append((f"context of {ctx:,} tokens", context_bytes(header, ctx, kv_type or "f16")))
        if draft is not None:
            other = read_header(draft)
            check_header(other)
            lines.append(("draft model", dense_bytes(other, experts=True)))
            if ctx is not None:
                lines.append(("draft's context", context_bytes(other, ctx, kv_type or "f16")))
    if context is not None:
        lines.append(("context", parse_bytes(context)))
    lines.append(("headroom", parse_bytes(headroom)))
    return Memory(tuple(lines), rows, tuple(warnings))


def told_short(memory: Memory, needed: int) -> str:
    """Why nothing fits."""
    taken = ", ".join(f"{what} {n_bytes:,}" for what, n_bytes in memory.lines[1:])
    return (
        f"vram={memory.lines[0][1]:,} bytes less {taken} leaves {max(0, memory.room):,} bytes: a slot in each layer "
        f"takes {needed:,}; give vram of {memory.lines[0][1] - memory.room + needed:,} bytes or more, or take less"
    )


def as_rows(memory: Memory) -> list[dict[str, Any]]:
    """The sum as an answer lists it: what is taken is negative."""
    return [{"what": what, "bytes": n if i == 0 else -n} for i, (what, n) in enumerate(memory.lines)]
