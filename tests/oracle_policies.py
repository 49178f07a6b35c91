"""What a run remembers and how each policy ranks residents: dictionaries and one function a rule, nothing clever.

A key is `layer * n_experts + expert`, in every scope. A moment is `(tick, i)`: the i-th lookup of a tick.
"""

import math

MASK = (1 << 64) - 1
NEVER = (math.inf, math.inf)


def splitmix64(x):
    """One output of the splitmix64 generator whose state is `x`."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def mix(a, b, c):
    """The law's hash of three numbers, 64 bits wide."""
    return splitmix64(splitmix64(splitmix64(a & MASK) ^ (b & MASK)) ^ (c & MASK))


class History:
    """Everything remembered about keys since the last reset; of demand alone, except the touches."""

    def __init__(self):
        self.heat = {}  # times demanded, aged
        self.last = {}  # clock of the last demand
        self.seen = set()  # demanded at all
        self.touch = {}  # number of the last touch by a row or a prediction
        self.demand_touch = {}  # number of the last touch by a row
        self.fill = {}  # number of the last fill
        self.gate = {}  # misses counted by the admission gate
        self.warm = {}  # demands counted by a static policy that warms up
        self.numbers = 0
        self.now = 0
        self.clock = 0  # distinct demands of all layers, streamed ones too

    def number(self):
        self.numbers += 1
        return self.numbers

    def halve(self, counts):
        for key in counts:
            counts[key] >>= 1


def clock_of(policy, history):
    return history.clock if policy["params"].get("clock") == "access" else history.now


def score(policy, history, key):
    """Frequency in the high bits, recency in the low byte; 0 if never demanded."""
    if key not in history.last:
        return 0
    age = clock_of(policy, history) - history.last[key]
    return history.heat.get(key, 0) * 256 + max(0, 255 - age)


def next_demand(future, key, moment):
    """The first lookup of `key` after `moment`, as (tick, i)."""
    return next((m for m in future.get(key, ()) if m > moment), NEVER)


def priority(policy, history, future, moment, key, one_by_one):
    """What is compared between residents: the lowest leaves first. `one_by_one`: lookups of a tick have an order."""
    name = policy["name"]
    if name == "lru":
        return (history.touch.get(key, 0),)
    if name == "fifo":
        return (history.fill[key],)
    if name == "lfu":
        return (history.heat.get(key, 0), history.demand_touch.get(key, 0))
    if name == "lfru":
        return (score(policy, history, key),)
    if name == "random":
        return (mix(policy["params"].get("seed", 0), history.now, key),)
    if name == "belady":
        tick, i = next_demand(future, key, moment)
        return (-tick, -i) if one_by_one else (-tick,)
    raise ValueError(f"{name} ranks nobody")


def guarded(guard, policy, history, victim, prediction):
    """Whether the guard protects `victim` from `prediction`."""
    if history.heat.get(victim, 0) < guard["warm"]:
        return False
    v, p = score(policy, history, victim), score(policy, history, prediction)
    return v + math.floor(float(v) * guard["ratio"]) + guard["counts"] * 256 > p


def best_of(counts, keys):
    """Keys with a count, the highest first, ties to the lowest key."""
    return sorted((k for k in keys if counts.get(k, 0) > 0), key=lambda k: (-counts[k], k))
