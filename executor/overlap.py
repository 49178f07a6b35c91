"""Which ticks overlap, where a table says it: looked up by layer, tokens, rows of both chains and loads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np


class OverlapGate:
    """Says tick by tick whether both chains work at once.

    tables: for each layer uint16 [tokens + 1, hot rows + 1, cold rows + 1]: from so many demand loads on they do. What
    lies beyond an axis is taken for its end.
    """

    def __init__(self, tables: Sequence[np.ndarray]):
        known = {id(table): (_words(table), *table.shape) for table in tables}
        self._layers = [known[id(table)] for table in tables]

    def __call__(self, layer: int, tokens: int, hot: int, cold: int, loads: int) -> bool:
        table, n_tokens, n_hot, n_cold = self._layers[layer]
        at = min(tokens, n_tokens - 1) * n_hot + min(hot, n_hot - 1)
        return loads >= table[at * n_cold + min(cold, n_cold - 1)]


def _words(table: np.ndarray) -> array[int]:
    """The table flat, for lookups that make no object."""
    return array("H", np.ascontiguousarray(table, np.uint16).tobytes())
