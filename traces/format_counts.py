"""Counts of how often each expert was chosen: known, and refused.

colibri keeps such a file as .coli_usage: lines of `layer expert count`, in newer
versions after a line `-1 layers experts`. Counts have no order, so that no cache
can be replayed over them, and what they were counted over (which prompts, prefill
too or not, how far decayed) is not recorded. What to use instead: colibri's
ROUTE_TRACE, which is a trace; `slotwise trace profile` makes counts from a trace,
for the policy static and for pins.

The counts of SGLang's recorder (mode stat) are refused by the format sglang.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .errors import BadTrace
from .trace import Trace

name = "counts"
description = "counts per layer and expert (.coli_usage): no order, so no trace; the error says what to record instead"
source = "colibri"

LINES = re.compile(rb"(?:-1 \d+ \d+\r?\n)?(?:\d+ \d+ \d+\r?\n){2,}(?:\d+ ?){0,3}")


def sniff(path: Path, head: bytes) -> bool:
    return LINES.fullmatch(head) is not None


def read(paths: Sequence[Path], **hints: object) -> Trace:
    """Raises BadTrace: there is nothing to replay in counts."""
    raise BadTrace(
        f"{paths[0]}: counts only (layer, expert, count): they have no order and cannot be replayed; record a trace, "
        "and `slotwise trace profile` makes counts from it"
    )
