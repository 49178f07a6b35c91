"""The compiled loops of this folder: predictors and synthesis. Imported where used, for numba is slow to load."""

# Ids are all ones where absent, which is above any n_experts: `e < n_experts` is the test for "there".

import numpy as np
from numba import njit, uint64

GOLDEN = uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True, inline="always")
def splitmix64(x):
    x = uint64(x) + GOLDEN
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@njit(cache=True, nogil=True)
def mix(a, b, c):
    """One 64-bit draw from three numbers."""
    return splitmix64(splitmix64(splitmix64(uint64(a)) ^ uint64(b)) ^ uint64(c))


@njit(cache=True, nogil=True, inline="always")
def unit(x):
    """A float64 in [0, 1) from 64 random bits."""
    return np.float64(x >> uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def noisy(experts, horizon, width, n_experts, first_row, recall, seed, out):
    """Fills `out [L, n, W]`, ranks below `width`, for layers from `horizon` on. Ranks past top_k are always wrong ones.

    Entry (layer, row, rank) is the token's own expert of that rank with probability `recall`, else an expert that the
    token does not demand and that this list does not hold yet. Where there is none left, nothing.
    """
    n_layers, n_rows, k = experts.shape
    used = np.full(n_experts, -1, np.int64)
    free_at_start = n_experts - k
    for layer in range(horizon, n_layers):
        for row in range(n_rows):
            if experts[layer, row, 0] >= n_experts:
                continue
            tick = uint64(first_row + row) * uint64(n_layers) + uint64(layer)
            for j in range(k):
                used[experts[layer, row, j]] = tick
            free = free_at_start
            for rank in range(width):
                if rank < k and unit(mix(seed, tick, 2 * rank)) < recall:
                    out[layer, row, rank] = experts[layer, row, rank]
                elif free > 0:
                    x = mix(seed, tick, 2 * rank + 1)
                    while used[np.int64(x % uint64(n_experts))] == np.int64(tick):
                        x = splitmix64(x)
                    e = np.int64(x % uint64(n_experts))
                    used[e] = tick
                    free -= 1
                    out[layer, row, rank] = e


@njit(cache=True, nogil=True)
def distinct(experts, layer, start, stop, stamp, now, out):
    """The demand of one tick, in order of first appearance, into `out`; returns how many."""
    n = 0
    for row in range(start, stop):
        for j in range(experts.shape[2]):
            e = np.int64(experts[layer, row, j])
            if e < stamp.size and stamp[e] != now:
                stamp[e] = now
                out[n] = e
                n += 1
    return n


@njit(cache=True, nogil=True)
def previous(experts, starts, anew, horizon, demand, n_demand, out):
    """`demand [L, E]` holds the demand of the step before, `n_demand [L]` its size; both are carried over blocks."""
    n_layers, _, width = out.shape
    for layer in range(horizon, n_layers):
        stamp = np.full(demand.shape[1], -1, np.int64)
        for s in range(starts.size - 1):
            if anew[s]:
                n_demand[layer] = 0
            n = starts[s + 1] - starts[s]
            for j in range(min(n_demand[layer], n * width)):
                out[layer, starts[s] + j % n, j // n] = demand[layer, j]
            n_demand[layer] = distinct(experts, layer, starts[s], starts[s + 1], stamp, s, demand[layer])


@njit(cache=True, nogil=True)
def frequency(experts, starts, anew, horizon, heat, order, place, out):
    """`heat [L, E]` counts ticks; `order [L, E]` keeps the experts sorted as it grows, `place` is its inverse."""
    n_layers, _, width = out.shape
    n_experts = heat.shape[1]
    wanted = np.empty(n_experts, np.int64)
    for layer in range(horizon, n_layers):
        h, o, p = heat[layer], order[layer], place[layer]
        stamp = np.full(n_experts, -1, np.int64)
        for s in range(starts.size - 1):
            if anew[s]:
                for e in range(n_experts):
                    h[e], o[e], p[e] = 0, e, e
            n = starts[s + 1] - starts[s]
            for j in range(min(n_experts, n * width)):
                if h[o[j]] == 0:
                    break
                out[layer, starts[s] + j % n, j // n] = o[j]
            for d in range(distinct(experts, layer, starts[s], starts[s + 1], stamp, s, wanted)):
                e = wanted[d]
                h[e] += 1
                at = p[e]
                while at > 0 and (h[o[at - 1]] < h[e] or (h[o[at - 1]] == h[e] and o[at - 1] > e)):
                    o[at] = o[at - 1]
                    p[o[at]] = at
                    at -= 1
                o[at] = e
                p[e] = at


@njit(cache=True, nogil=True)
def synthesise(begins, n_topics, topic_tokens, n_experts, skew, drift, reuse, correlation, seed, out):
    """Fills `out [L, T, k]`. `begins [T]` marks the first token of a request, which opens a topic, as does any token
    with probability 1 / topic_tokens.

    Each expert of a token is, decided by one draw: with probability `reuse` one that the layer chose for the token
    before; with probability `correlation` the partner of the layer before's expert of the same rank (a fixed pairing);
    else drawn by popularity, 1 / rank ** skew, where every layer and topic has its own order of the experts.
    """
    n_layers, n_tokens, k = out.shape
    state = mix(seed, 1, 0)
    pairing = np.empty((n_layers, n_experts), np.int32)
    ranking = np.empty((n_topics, n_layers, n_experts), np.int32)
    for layer in range(n_layers):
        state = shuffled(state, pairing[layer])
        state = shuffled(state, ranking[0, layer])
        for other in range(1, n_topics):
            ranking[other, layer] = ranking[0, layer]
            state = exchanged(state, drift, ranking[other, layer])
    accept, alias = alias_table(n_experts, skew)
    used = np.full(n_experts, -1, np.int64)
    topic = 0
    for t in range(n_tokens):
        if begins[t] or unit(mix(seed, 2, t)) * topic_tokens < 1.0:
            topic = np.int64(mix(seed, 3, t) % uint64(n_topics))
        again = 0.0 if begins[t] else reuse
        for layer in range(n_layers):
            order = ranking[topic, layer]
            linked = again + (correlation if layer > 0 else 0.0)
            now = t * n_layers + layer
            for j in range(k):
                state += GOLDEN
                u = unit(splitmix64(state))
                tries = 0
                while True:  # the token before, and the layer before, always have one left that is not chosen yet
                    state += GOLDEN
                    x = splitmix64(state)
                    if u < again:
                        e = np.int64(out[layer, t - 1, np.int64(x % uint64(k))])
                    elif u < linked:
                        e = np.int64(pairing[layer, out[layer - 1, t, np.int64(x % uint64(k)) if tries else j]])
                    elif tries < 32:
                        i = np.int64((x >> uint64(32)) * uint64(n_experts) >> uint64(32))
                        e = np.int64(order[i if unit(splitmix64(x)) < accept[i] else alias[i]])
                    else:  # a few popular ones are all taken: the most popular of the others
                        e = np.int64(order[tries - 32])
                    tries += 1
                    if used[e] != now:
                        break
                used[e] = now
                out[layer, t, j] = e


@njit(cache=True)
def shuffled(state, out):
    """0 to n - 1 into `out`, shuffled; returns the state of the generator."""
    for i in range(out.size):
        out[i] = i
    return exchanged(state, 1.0, out)


@njit(cache=True)
def exchanged(state, share, out):
    """Shuffles a random `share` of the entries among themselves."""
    chosen = np.empty(out.size, np.int64)
    n = 0
    for i in range(out.size):
        state += GOLDEN
        if unit(splitmix64(state)) < share:
            chosen[n] = i
            n += 1
    for i in range(n - 1, 0, -1):
        state += GOLDEN
        j = np.int64(splitmix64(state) % uint64(i + 1))
        a, b = chosen[i], chosen[j]
        out[a], out[b] = out[b], out[a]
    return state


@njit(cache=True)
def alias_table(n, skew):
    """Walker's tables for P(i) ~ 1 / (i + 1) ** skew: draw i evenly; accept[i] is the chance of i, else alias[i]."""
    p = np.empty(n)
    for i in range(n):
        p[i] = (i + 1.0) ** -skew
    p *= n / p.sum()
    accept, alias = np.ones(n), np.arange(n)
    small, large = np.empty(n, np.int64), np.empty(n, np.int64)
    n_small = n_large = 0
    for i in range(n):
        if p[i] < 1.0:
            small[n_small] = i
            n_small += 1
        else:
            large[n_large] = i
            n_large += 1
    while n_small and n_large:
        n_small -= 1
        s, b = small[n_small], large[n_large - 1]
        accept[s], alias[s] = p[s], b
        p[b] -= 1.0 - p[s]
        if p[b] < 1.0:
            n_large -= 1
            small[n_small] = b
            n_small += 1
    return accept, alias


@njit(cache=True, nogil=True)
def demands(experts, starts, chosen, counts):
    """Adds to `counts [L, E]` the ticks of the `chosen` steps at which each expert was demanded."""
    n_layers, n_experts = counts.shape
    wanted = np.empty(n_experts, np.int64)
    for layer in range(n_layers):
        stamp = np.full(n_experts, -1, np.int64)
        for s in range(starts.size - 1):
            if chosen[s]:
                for d in range(distinct(experts, layer, starts[s], starts[s + 1], stamp, s, wanted)):
                    counts[layer, wanted[d]] += 1


@njit(cache=True, nogil=True)
def overlap(ids, pairs, n_experts):
    """Over `pairs [2, n]` of rows of `ids [T, k]`: how many experts of the first row are in the second, of how many."""
    stamp = np.full(n_experts, -1, np.int64)
    common = of = 0
    for p in range(pairs.shape[1]):
        a, b = pairs[0, p], pairs[1, p]
        if ids[a, 0] >= n_experts or ids[b, 0] >= n_experts:
            continue
        for j in range(ids.shape[1]):
            stamp[ids[b, j]] = p
        for j in range(ids.shape[1]):
            common += stamp[ids[a, j]] == p
        of += ids.shape[1]
    return common, of


@njit(cache=True, nogil=True)
def recall(experts, predicted, n_experts, horizon, right, given, wanted):
    """Adds up, per layer and width, the right and the given predictions of each token, and per layer what it wanted.

    A repeat, or an id that is no expert, is given but not right; an absent entry is not given.
    """
    n_layers, n_rows, k = experts.shape
    none = 255 if n_experts <= 255 else 65535
    for layer in range(horizon, n_layers):
        stamp = np.full(n_experts, -1, np.int64)
        for row in range(n_rows):
            if experts[layer, row, 0] >= n_experts:
                continue
            wanted[layer] += k
            for j in range(k):
                stamp[experts[layer, row, j]] = row
            hits = said = 0
            for rank in range(predicted.shape[2]):
                e = np.int64(predicted[layer, row, rank])
                said += e != none
                if e < n_experts and stamp[e] == row:
                    hits += 1
                    stamp[e] = -1
                right[layer, rank] += hits
                given[layer, rank] += said
