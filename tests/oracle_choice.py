"""Where the oracle's keys live, and which of them leave for whom."""

import math

import oracle_policies as rules
from oracle_counts import Scribe
from oracle_pool import Pool


class Chooser(Scribe):
    """The options of a run, the pools' places, and the one victim rule of both paths."""

    def __init__(self, steps, *, n_experts, policy, slots: list | int = 0, capacity_bytes=None, row_bytes=None,
                 scope="layer", contract="event", width=0, horizon=1, lag_demand=0, lag_prefetch=0, max_loads=None,
                 overflow="bypass", reset="persistent", prefill="cached", batch_gate=8, miss="cpu",
                 failures=()):  # fmt: skip
        n_layers = len(steps[0].experts)
        super().__init__(n_layers, n_experts, n_layers if scope == "layer" else 1, row_bytes, miss)
        self.steps = steps
        self.policy, self.params = policy, policy["params"]
        self.guard, self.gate, self.pin = (policy.get(part) for part in ("guard", "gate", "pin"))
        self.slots, self.capacity_bytes = slots, capacity_bytes
        self.scope, self.sequential, self.exceed = scope, contract == "sequential", overflow == "exceed"
        self.width, self.horizon, self.max_loads = width, horizon, max_loads
        self.lag_demand, self.lag_prefetch = lag_demand, lag_prefetch
        self.reset_each, self.stream_prefill, self.batch_gate = reset, prefill == "stream", batch_gate
        self.failures = {failure[:3]: failure[3:] for failure in failures}  # (step, layer, phase): (load, kind)
        self.future = self.demands_to_come()
        self.born, self.history, self.pools = 0, rules.History(), []
        self.tick_number, self.moment, self.demand, self.loads = 0, (0, math.inf), set(), 0
        self.failing, self.started = None, []

    def pool_number(self, layer):
        return layer if self.scope == "layer" else 0

    def pool_at(self, layer):
        return self.pools[self.pool_number(layer)]

    def keys_of(self, number):
        first, last = (number, number + 1) if self.scope == "layer" else (0, self.L)
        return range(first * self.E, last * self.E)

    def new_pool(self, number):
        if self.capacity_bytes is not None:
            return Pool(self.capacity_bytes, lambda key: self.row_bytes[key // self.E])
        slots = self.slots[number] if isinstance(self.slots, list) else self.slots
        return Pool(min(slots, len(self.keys_of(number))), lambda key: 1)

    def demand_of(self, step, layer):
        """Distinct keys over the step's rows, in order of first appearance."""
        ids = [e for row in step.experts[layer] for e in row if e is not None]
        return [layer * self.E + e for e in dict.fromkeys(ids)]

    def demands_to_come(self):
        future = {}
        for now, step in enumerate(self.steps):
            for layer in range(self.L):
                for i, key in enumerate(self.demand_of(step, layer)):
                    future.setdefault(key, []).append((now * self.L + layer, i))
        return future

    def warms_up(self):
        return self.policy["name"] == "static" and "warmup" in self.params

    def is_warming(self):
        return self.warms_up() and self.history.now < self.born + self.params["warmup"]

    def make_room(self, pool, key, forbidden, *, by_demand, kept=None):
        """The victims, in priority order, whose leaving makes `key` fit; None if it cannot be made to."""
        if self.is_warming():
            return None
        if by_demand and self.exceed:
            return []
        if kept is not None:
            leaving = [k for k in kept["leaving"] if k in pool.rows]
            return None if key not in kept["stay"] else leaving[: 0 if pool.free() else 1]
        need, victims = pool.size_of(key) - pool.free(), []
        if self.capacity_bytes is None:
            need = min(need, 1)  # one row for one row, even where an overflow has not been trimmed yet
        for candidate in self.candidates(pool, forbidden):
            if need <= 0:
                break
            victims.append(candidate)
            need -= pool.size_of(candidate)
        return victims if need <= 0 else None

    def candidates(self, pool, forbidden):
        """Residents that may leave, lowest priority first, ties to the lowest key."""
        if self.policy["name"] == "static":
            return []
        landed = [k for k in pool.rows if pool.landed(k, self.tick_number)]
        may_go = [k for k in landed if k not in forbidden and not pool.rows[k].fixed]

        def priority(k):
            return rules.priority(self.policy, self.history, self.future, self.moment, k, self.sequential), k

        return sorted(may_go, key=priority)

    def optimum(self, pool, demand):
        """What `opt` keeps after this tick: of residents and demand those demanded again soonest."""
        union = {*pool.rows, *demand}

        def when(key):
            return rules.next_demand(self.future, key, self.moment)[0]

        order = sorted(union, key=lambda k: (when(k), k not in pool.rows, k))
        stay = set(order[: pool.capacity])
        leaving = sorted((k for k in pool.rows if k not in stay), key=lambda k: (-when(k), -k))
        return {"stay": stay, "leaving": leaving}
