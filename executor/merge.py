"""The merge on the host, and who computes a pair: what the backends agree on to the byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

ABSENT, HOT, COLD = 0, 1, 2  # who computes a pair: nobody, the hot chain, the cold one
MERGES = ("cpu", "gpu")  # where the merge runs; the bytes are the same


def merged(out: NDArray[np.float32], chains: ArrayLike, weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """out [n, k, hidden], chains and weights [n, k] -> y [n, hidden]: outputs times weights, summed in router order."""
    y = np.zeros((out.shape[0], out.shape[2]), np.float32)
    present = np.asarray(chains).reshape(weights.shape) != ABSENT
    for rank in range(out.shape[1]):  # whoever computed it
        there = present[:, rank]
        y[there] += weights[there, rank, None] * out[there, rank]
    return y
