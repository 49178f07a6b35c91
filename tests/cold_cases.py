"""What the tests of the cold chain share: rows of synthetic weights, jobs over them, what may run."""

import numpy as np
import pytest

from slotwise.executor.cold import ColdChain, RowLayout, native
from slotwise.executor.dtypes import encode
from slotwise.executor.errors import BadExecutor
from slotwise.executor.reference import errors


def some_row(layout: RowLayout, seed: int) -> np.ndarray:
    """The bytes of one row: weights of unit gain, biases of a tenth."""
    draw = np.random.default_rng(seed)
    row = np.zeros(layout.row_bytes, np.uint8)
    shapes = [(layout.inner, layout.hidden), (layout.inner, layout.hidden), (layout.hidden, layout.inner)]
    for name, start, bias, shape in zip(layout.dtypes, layout.starts, layout.bias_starts, shapes, strict=True):
        part = encode(name, draw.normal(0, shape[1] ** -0.5, shape)).ravel()
        row[start : start + part.size] = part
        if bias >= 0:
            row[bias : bias + 4 * shape[0]] = draw.normal(0, 0.1, shape[0]).astype(np.float32).view(np.uint8)
    return row


def job(rows: list[np.ndarray], tokens_of: list[list[int]]):
    """The arrays rows, offsets and tokens of a job."""
    addresses = np.array([row.ctypes.data for row in rows], np.int64)
    offsets = np.cumsum([0, *map(len, tokens_of)], dtype=np.int64)
    return addresses, offsets, np.array([t for ts in tokens_of for t in ts], np.int64)


def computed(chain: ColdChain, layout: RowLayout, rows, tokens_of, x) -> np.ndarray:
    """The output [pairs, hidden] of one job, over memory that was poisoned before."""
    arrays = job(rows, tokens_of)
    out = np.full((len(arrays[2]), layout.hidden), np.nan, np.float32)
    chain.wait(chain.submit(chain.layer(layout), *arrays, x, out))
    return out


def inputs(n: int, hidden: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (n, hidden)).astype(np.float32)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error of a token, relative to the length of its output."""
    return float(errors(found, expected).max())


def built() -> bool:
    try:
        native()
    except BadExecutor:
        return False
    return True


needs_native = pytest.mark.skipif(
    not built(), reason="slotwise.executor._cold was not built: install a C compiler and the headers of this Python"
)
