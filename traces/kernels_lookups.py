"""The compiled loop of the export to libCacheSim. Imported where used, for numba is slow to load."""

import numpy as np
from numba import njit

from .kernels import distinct


@njit(cache=True, nogil=True)
def lookups(experts, starts, n_experts, first, latest, key, step, after, late_at, late_to):
    """The demands of a block one by one, in order of ticks and in a tick of first appearance.

    `key` is layer * E + expert, `step` that of the block, `after` the number of the key's next lookup or -1. Lookups
    are counted from `first`; `latest [L * E]` is each key's last one so far, carried over blocks. What comes after a
    lookup of an earlier block is noted in `late_at` and `late_to`. Returns (lookups, notes).
    """
    n_layers = experts.shape[0]
    stamp = np.full((n_layers, n_experts), -1, np.int64)
    wanted = np.empty(n_experts, np.int64)
    n = late = 0
    for s in range(starts.size - 1):
        for layer in range(n_layers):
            for d in range(distinct(experts, layer, starts[s], starts[s + 1], stamp[layer], s, wanted)):
                k = layer * n_experts + wanted[d]
                key[n], step[n], after[n] = k, s, -1
                before = latest[k]
                if before >= first:
                    after[before - first] = first + n
                elif before >= 0:
                    late_at[late], late_to[late] = before, first + n
                    late += 1
                latest[k] = first + n
                n += 1
    return n, late
