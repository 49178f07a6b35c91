"""Block, the unit of reading, and Store, what a Trace reads from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive whole steps of a trace as arrays. Ids are uint8 up to 255 experts, else uint16; all ones = absent.

    `first_step` is the index of its first step and `first_row` of its first row, counted over the trace.
    `starts [n_steps + 1]` are row offsets inside the block, `request [n_steps]` is -1 where a step mixes requests,
    `phase [n_steps]` is 0 (prefill) if any of the step's rows is prefill, else 1.
    `experts [n_layers, n_rows, top_k]` best first; `predicted [n_layers, n_rows, P]` *for* that layer, best first, and
    `weights [n_layers, n_rows, top_k]` float16, or None. All C-contiguous; treat them as read-only. What else there is
    by row (`position`, `token_id`, ...) `Trace.rows` gives.
    """

    first_step: int
    first_row: int
    starts: np.ndarray
    request: np.ndarray
    phase: np.ndarray
    experts: np.ndarray
    predicted: np.ndarray | None
    weights: np.ndarray | None

    @property
    def n_steps(self) -> int:
        return len(self.starts) - 1

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])


class Store(Protocol):
    """Where the rows of a trace lie: memory or a Parquet file. Everything it returns has been checked."""

    @property
    def where(self) -> str:
        """What messages call it."""
        ...

    @property
    def n_rows(self) -> int: ...

    @property
    def groups(self) -> np.ndarray:
        """int64 [n_groups + 1]: the row offsets of its row groups."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Of ids."""
        ...

    @property
    def widths(self) -> dict[int, int]:
        """Horizon -> predictions recorded per row and layer."""
        ...

    @property
    def has_weights(self) -> bool: ...

    @property
    def has_token_id(self) -> bool: ...

    def rows(self, start: int, stop: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """The small columns of these rows by name."""
        ...

    def read(self, kind: str, layers: range, start: int, stop: int) -> np.ndarray:
        """`[len(layers), stop - start, width]` of `kind`: "experts", "weights" or "predicted.h<horizon>"."""
        ...
