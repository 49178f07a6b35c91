"""Where overlap pays: for every tick that can come, from how many demand loads on both chains at once end earlier.

One by one, a tick takes hot + cold and then what the host does to start copies. At once, each chain goes at the share
of its speed that the other leaves it until the shorter one ends, and the host works meanwhile; on top come what two
spread times are longer by than their means, and what a tick with work for both costs more.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from .machine import Machine
from .price_link import expected_max, internal
from .price_tables import at_tokens, pack, sheets_for

if TYPE_CHECKING:
    from .pricing import Pricing

NEVER = 65535  # loads: more than a layer has experts
MOST_TOKENS = 64  # of a step that is looked up as it is; a larger one is taken for one of so many


def gates_for(
    pricing: Pricing, rows: tuple[int, ...], *, batch_gate: int, n_experts: int, top_k: int, ahead_s: float
) -> list[np.ndarray]:
    """A table for each layer, of rows of so many bytes: uint16 [tokens + 1, hot rows + 1, cold rows + 1].

    A tick of so many demand loads, or of more, is to overlap. width: of look-ahead, which then is part of every tick.

    Raises BadOption where the machine was measured with other threads.
    """
    machine, threads = pricing.known, pricing.cpu_threads or pricing.known.cpu_threads
    distinct = sorted(set(rows))
    sheets = [[sheets_for(machine, chain, size, threads)[0] for chain in ("hot", "cold")] for size in distinct]
    found = gates_of(machine, *pack(sheets), batch_gate=batch_gate, n_experts=n_experts, top_k=top_k, ahead_s=ahead_s)
    return [found[distinct.index(size)] for size in rows]


def gates_of(
    machine: Machine,
    sheets: np.ndarray,
    shape: np.ndarray,
    *,
    batch_gate: int,
    n_experts: int,
    top_k: int,
    ahead_s: float,
) -> np.ndarray:
    """The tables [kinds, ...] for sheets as `price_tables.pack` gives them."""
    tokens = min(MOST_TOKENS, max(1, batch_gate))
    out = np.zeros((len(sheets), tokens + 1, *(min(n_experts, tokens * top_k) + 1,) * 2), np.uint16)
    host = np.array([ahead_s, *(machine[f"submit_{name}_s"] for name in ("hot", "batch", "load"))])
    fill(sheets, shape, top_k, np.array(machine.beside), host, out)
    return out


@internal
def _fill(sheets, shape, top_k, beside, host, out):
    """Ticks with work for one chain alone stay 0: nothing disturbs it, and copies start while it computes."""
    hot_with_cold, cold_with_hot, overlap_s = beside[0], beside[1], beside[2]
    ahead_s, submit_hot_s, batch_s, load_s = host[0], host[1], host[2], host[3]
    kinds, most_tokens, most, _ = out.shape
    for kind in range(kinds):
        for tokens in range(1, most_tokens):
            for hot in range(1, min(most, tokens * top_k + 1)):
                for cold in range(1, min(most, tokens * top_k + 1)):
                    each = min(float(tokens), max(1.0, tokens * top_k / (hot + cold)))
                    hot_s = at_tokens(sheets, shape, kind, 0, tokens, hot, each, 0)
                    cold_s = at_tokens(sheets, shape, kind, 1, tokens, cold, each, 0)
                    spread = np.hypot(
                        at_tokens(sheets, shape, kind, 0, tokens, hot, each, 1),
                        at_tokens(sheets, shape, kind, 1, tokens, cold, each, 1),
                    )
                    left_s = max(0.0, cold_s - submit_hot_s)  # the cold chain begins by that much earlier
                    first_s = min(hot_s / hot_with_cold, left_s / cold_with_hot)
                    both_s = first_s + max(hot_s - first_s * hot_with_cold, left_s - first_s * cold_with_hot, 0.0)
                    if spread > 0:
                        both_s += expected_max(first_s, both_s, spread)
                    lost_s = both_s + overlap_s - hot_s - cold_s - ahead_s
                    if lost_s >= 0:  # until the host's work for so many loads makes up for it
                        out[kind, tokens, hot, cold] = max(1, min(NEVER, 1 + np.floor((lost_s - batch_s) / load_s)))


def _made(sources):
    """`_fill` for Python, compiled anew when what is compiled into it has been edited: see `price_compiled`."""

    @njit(cache=True)
    def filled(*arguments):
        if sources:
            _fill(*arguments)

    return filled


_FILES = ("gate.py", "price_link.py", "price_tables.py")
fill = _made(1 + zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in _FILES)))
