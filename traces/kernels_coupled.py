"""The compiled loop of the predictor `coupled`. Imported where used, for numba is slow to load."""

import numpy as np
from numba import njit

from .kernels import distinct


@njit(cache=True, nogil=True)
def coupled(experts, starts, anew, horizon, counts, out):
    """`counts [L, E, E]`, carried over blocks: steps so far at which layer l - horizon demanded a and layer l b."""
    n_layers, _, width = out.shape
    n_experts = counts.shape[1]
    causes, wanted, best = np.empty(n_experts, np.int64), np.empty(n_experts, np.int64), np.empty(n_experts, np.int64)
    for layer in range(horizon, n_layers):
        pairs = counts[layer]
        before, stamp = np.full(n_experts, -1, np.int64), np.full(n_experts, -1, np.int64)
        for s in range(starts.size - 1):
            start, stop = starts[s], starts[s + 1]
            if anew[s]:
                pairs[:] = 0
            n_causes = distinct(experts, layer - horizon, start, stop, before, s, causes)
            score = np.zeros(n_experts, np.int64)
            for c in range(n_causes):
                score += pairs[causes[c]]
            n = stop - start
            for j in range(leading(score, best[: min(n_experts, n * width)])):
                out[layer, start + j % n, j // n] = best[j]
            for d in range(distinct(experts, layer, start, stop, stamp, s, wanted)):
                for c in range(n_causes):
                    pairs[causes[c], wanted[d]] += 1


@njit(cache=True, nogil=True)
def leading(score, best):
    """The ids of the highest scores above 0 into `best`, highest first, ties to the lowest id; returns how many."""
    n = 0
    for e in range(score.size):
        if score[e] == 0 or (n == best.size and score[e] <= score[best[n - 1]]):
            continue
        at = n if n < best.size else n - 1
        n = at + 1
        while at > 0 and score[best[at - 1]] < score[e]:
            best[at] = best[at - 1]
            at -= 1
        best[at] = e
    return n
