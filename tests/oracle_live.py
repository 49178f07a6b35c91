"""The oracle driven call by call, as a live pool is: the slow twin of an executor's plans while they are made."""

from oracle_counts import NAMES, plan_sha256
from oracle_pool import Step
from oracle_run import Oracle


class LiveOracle(Oracle):
    """`step` and `prefetch` as those of a live pool, from nested rows of ids (None: absent)."""

    def __init__(self, n_layers, n_experts, **how):
        nothing = Step(request=0, phase=1, n_rows=0, experts=[[]] * n_layers, predicted=None)
        super().__init__([nothing], n_experts=n_experts, **how)
        self.now, self.last, self.n_rows = -1, n_layers, 0
        self.start_anew(0)

    def step(self, layer, rows):
        if layer <= self.last:
            self.skip(self.L)
            self.now += 1
            self.ledger.begin(1, 0)
            self.begin_step(self.now)
            self.last = -1
        self.n_rows = len(rows)
        self.skip(layer)
        self.tick(layer, rows)

    def skip(self, end):
        """Layers that the step did not call are ticks of nothing."""
        for layer in range(self.last + 1, end):
            self.tick(layer, [[]] * self.n_rows)

    def tick(self, layer, rows):
        self.last, self.tick_number = layer, self.now * self.L + layer
        self.demand_tick(self.now, Step(0, 1, len(rows), {layer: rows}, None), layer)

    def prefetch(self, layer, rows):
        if self.width and len(rows) <= self.batch_gate:
            self.horizon = layer - self.last
            self.look_ahead(self.now, Step(0, 1, len(rows), {}, {layer: rows}), self.last)

    def reset(self):
        self.discard()
        self.start_anew(self.now + 1)
        self.last = self.L

    def slots_of(self, layer):
        """{expert: slot} of a layer's rows, in flight or landed."""
        rows = self.pool_at(layer).rows.items()
        return {key % self.E: row.slot for key, row in sorted(rows) if key // self.E == layer}

    def end(self):
        """(counters, plan hash) of all calls."""
        counters = self.finish().counters
        return {name: counters[name] for name in NAMES}, plan_sha256(self.plan)
