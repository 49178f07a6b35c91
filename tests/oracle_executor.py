"""The slow, obvious twins of what an executor does fast, and the table that pairs them: name -> (fast, slow, bound).

Fast and slow take the same draw of numbers and give arrays [n, m]; a bound of 0 asks for equal bytes, another for that
error of a row relative to its length. Plans have their twin in `oracles.py`, stored dtypes theirs in the gguf package.
"""

import numpy as np
from cold_cases import computed, some_row

from slotwise.executor.backend import Copy, Rows
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.merge import ABSENT, COLD, HOT, merged
from slotwise.executor.reference import expert, normed
from slotwise.executor.sort import Desk
from slotwise.policies.layout import VERBS
from slotwise.policies.names import P

LAYOUT = RowLayout(32, 16, ("bf16", "f16", "f32"), "geglu", biases=True)
E = 6


def _demand(draw):
    """Ids of a step, and some of the experts that it demands."""
    ids = draw.integers(-1, E + 1, (draw.integers(1, 60), 3))
    return ids, [e for e in draw.permutation(E).tolist()[: draw.integers(1, E + 1)] if e in ids]


def pairs_fast(draw):
    ids, chosen = _demand(draw)
    chains = np.full(ids.shape, ABSENT, np.uint8)
    experts = np.array(chosen, np.int64)
    work = Desk(E, [], [], wide=False).pair_up(ids, experts, experts, chains, HOT)
    return np.array([*work.rows, *work.offsets, *work.tokens, *work.places, *chains.ravel()])[None]


def pairs_slow(draw):
    """For each expert, the places token * k + rank at which it was chosen, in order."""
    ids, chosen = _demand(draw)
    places = [[t * 3 + r for t, row in enumerate(ids) for r, e in enumerate(row) if e == one] for one in chosen]
    flat = [place for each in places for place in each]
    offsets = [sum(map(len, places[:i])) for i in range(len(chosen) + 1)]
    chains = [HOT if place in flat else ABSENT for place in range(ids.size)]
    return np.array([*chosen, *offsets, *(place // 3 for place in flat), *flat, *chains])[None]


class _Plan:
    """Decisions as a plan gives them, of any verbs; behind them lies what an earlier plan has left."""

    def __init__(self, draw, wide):
        n = draw.integers(0, 90)
        self.wide, self.verbs = wide, draw.integers(0, len(VERBS), n)
        self.keys, self.slots = draw.integers(0, E * (3 if wide else 1), n), draw.integers(-1, 9, n)

    @property
    def memory(self):
        head = np.zeros(P.n_records + 1, np.int64)
        head[P.n_records] = len(self.verbs)
        return head, *(np.append(each, [0] * 5).astype(np.int32) for each in (self.verbs, self.keys, self.slots))


DEVICE, HOST = [(1000, 10), (2000, 20), (3000, 30)], [(40000, 7), (50000, 8), (60000, 9)]
_MISSES = ("load_demand", "bypassed", "gated", "throttled", "late", "streamed")


def sorted_fast(draw):
    layer = int(draw.integers(3))
    plan = _Plan(draw, bool(draw.integers(2)))
    work = Desk(E, DEVICE, HOST, wide=plan.wide).sort(plan, layer)
    parts = [*work.hits, *work.misses, *work.initial, *work.loads]
    return np.array([number for part in parts for number in (len(part), *part)] + [work.streamed])[None]


def sorted_slow(draw):
    layer = int(draw.integers(3))
    plan = _Plan(draw, bool(draw.integers(2)))
    rows = list(zip((VERBS[verb] for verb in plan.verbs), plan.keys.tolist(), plan.slots.tolist(), strict=True))
    hits = [(k % E, s, DEVICE[layer][0] + s * DEVICE[layer][1]) for verb, k, s in rows if verb == "hit"]
    misses = [(k % E, s, HOST[layer][0] + k % E * HOST[layer][1]) for verb, k, s in rows if verb in _MISSES]

    def loads(*verbs):
        return [(k // E if plan.wide else layer, k % E, 0 if plan.wide else layer, s) for v, k, s in rows if v in verbs]

    columns = [[row[i] for row in part] for part in (hits, misses) for i in range(3)]
    parts = [*columns, *loads("load_initial"), *loads("load_demand", "load_speculative")]
    streamed = any(verb == "streamed" for verb, _, _ in rows)
    return np.array([number for part in parts for number in (len(part), *part)] + [streamed])[None]


def _outputs(draw):
    n = draw.integers(1, 9)
    chains = draw.choice([ABSENT, HOT, COLD], (n, 3))
    return draw.normal(0, 1, (n, 3, 32)).astype(np.float32), chains, draw.random((n, 3), np.float32)


def merge_fast(draw):
    return merged(*_outputs(draw))


def merge_slow(draw):
    out, chains, weights = _outputs(draw)
    y = np.zeros((len(out), 32), np.float32)
    for token in range(len(out)):
        for rank in range(3):
            for i in range(32):
                if chains[token, rank] != ABSENT:
                    y[token, i] = y[token, i] + np.float32(weights[token, rank] * out[token, rank, i])
    return y


def _two(draw):
    n = draw.integers(1, 9)
    return draw.normal(0, 3, (n, 32)).astype(np.float32), draw.normal(0, 3, (n, 32)).astype(np.float32)


def norm_fast(draw):
    return NumpyBackend().norm(*_two(draw))


def norm_slow(draw):
    return normed(*_two(draw))


def _work(draw):
    x = draw.normal(0, 1, (5, 32)).astype(np.float32)
    tokens_of = [draw.integers(0, 5, draw.integers(0, 5)).tolist() for _ in range(3)]
    return [some_row(LAYOUT, int(draw.integers(99))) for _ in range(3)], [*tokens_of[:2], [0, *tokens_of[2]]], x


def cold_fast(draw):
    with ColdChain(2) as chain:
        return computed(chain, LAYOUT, *_work(draw))


def chain_slow(draw):
    rows, tokens_of, x = _work(draw)
    return np.concatenate([expert(LAYOUT, row, x[tokens]) for row, tokens in zip(rows, tokens_of, strict=True)])


def hot_fast(draw):
    """Rows copied into slots, then computed where they lie."""
    rows, tokens_of, x = _work(draw)
    backend = NumpyBackend()
    backend.prepare([LAYOUT], 64, 1)
    slots = [backend.device_memory(LAYOUT.row_bytes) for _ in rows]
    copies = [Copy(row.ctypes.data, slot, row.size) for row, slot in zip(rows, slots, strict=True)]
    ticket = backend.copy(copies)
    offsets, tokens = np.cumsum([0, *map(len, tokens_of)]), np.concatenate(tokens_of).astype(np.int64)
    tick = backend.begin(0, x, 3)
    tick.out = np.full((len(tokens), 32), np.nan, np.float32)
    backend.hot(tick, Rows(np.array(slots), offsets, tokens, np.arange(len(tokens))), [ticket])
    backend.settle(tick)
    backend.close()
    return tick.out


def copies_fast(draw):
    rows = draw.integers(0, 256, (3, 40), dtype=np.uint8)
    backend = NumpyBackend()
    backend.prepare([LAYOUT], 1, 1)
    base = backend.device_memory(120)
    order = draw.permutation(3)
    backend.copy([Copy(rows[i].ctypes.data, base + 40 * to, 40) for to, i in enumerate(order.tolist())])
    backend.drain()
    there = backend.read(base, 120).reshape(3, 40)
    backend.close()
    return there


def copies_slow(draw):
    return draw.integers(0, 256, (3, 40), dtype=np.uint8)[draw.permutation(3)]


TWINS = {
    "decisions of a plan by what is to be done": (sorted_fast, sorted_slow, 0),
    "pairs of a step by expert": (pairs_fast, pairs_slow, 0),
    "merge": (merge_fast, merge_slow, 0),
    "norm": (norm_fast, norm_slow, 1e-6),
    "cold chain": (cold_fast, chain_slow, 1e-5),
    "hot chain": (hot_fast, chain_slow, 1e-5),
    "copies": (copies_fast, copies_slow, 0),
}
