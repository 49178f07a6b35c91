"""The replay of the oracle, tick by tick: read it beside the semantics, section by section."""

import math

import oracle_policies as rules
from oracle_choice import Chooser
from oracle_counts import (
    BYPASS,
    DROP,
    EVICT,
    FAIL,
    GATE,
    HIT,
    INVALID,
    LATE,
    LOAD,
    REDUNDANT,
    SPECULATE,
    STREAM,
    THROTTLE,
    OracleResult,
    result,
)


class Oracle(Chooser):
    """One replay, start to finish."""

    # -- the run -----------------------------------------------------------------------------------------------------
    def start_anew(self, now):
        self.history = rules.History()
        self.pools = [self.new_pool(number) for number in self.plan]
        self.born = now

    def run(self) -> OracleResult:
        self.start_anew(0)
        for now, step in enumerate(self.steps):
            if now and self.reset_each == "request" and step.request != self.steps[now - 1].request:
                self.discard()
                self.start_anew(now)
            self.ledger.begin(step.phase, step.request)
            self.begin_step(now)
            for layer in range(self.L):
                self.tick_number = now * self.L + layer
                self.demand_tick(now, step, layer)
                if self.width and step.n_rows <= self.batch_gate:
                    self.look_ahead(now, step, layer)
        return self.finish()

    def discard(self):
        for pool in self.pools:
            for key, row in pool.rows.items():
                self.count("discarded", key)
                if row.unused:
                    self.count("unresolved", key)

    def begin_step(self, now):
        history = self.history
        history.now = now
        half_life, window = self.params.get("half_life"), self.gate and self.gate["window"]
        if half_life and now and now % half_life == 0:
            history.halve(history.heat)
        if window and now and now % window == 0:
            history.halve(history.gate)
        self.begin_residents(now)

    def begin_residents(self, now):
        """Pins and static residents: at the first step, and once a static policy has counted enough."""
        if now == self.born:
            for number, pool in enumerate(self.pools):
                if self.pin:
                    self.load_initially(pool, self.pin["counts"], self.keys_of(number), self.pin["n"])
                if self.policy["name"] == "static" and "counts" in self.params:
                    self.load_initially(pool, self.params["counts"], self.keys_of(number))
        if self.warms_up() and now == self.born + self.params["warmup"]:
            for number, pool in enumerate(self.pools):
                self.load_initially(pool, self.history.warm, self.keys_of(number))

    def load_initially(self, pool, counts, keys, n=None):
        if not isinstance(counts, dict):
            counts = {layer * self.E + e: c for layer, row in enumerate(counts) for e, c in enumerate(row)}
        for key in rules.best_of(counts, keys)[:n]:
            if key not in pool.rows and pool.size_of(key) <= pool.free():
                pool.put(key, lands=-math.inf, fixed=True)
                self.count("loads_initial", key)
                self.fill_bytes(key)

    # -- demand ------------------------------------------------------------------------------------------------------
    def demand_tick(self, now, step, layer):
        self.verbs = []
        self.begin_copies(now, layer, "demand")
        pool, demand, history = self.pool_at(layer), self.demand_of(step, layer), self.history
        self.demand, self.loads = set(demand), 0
        rows = [layer * self.E + e for row in step.experts[layer] for e in row if e is not None]
        self.ledger.add("routed", layer, len(rows))
        self.ledger.add("demands", layer, len(demand))
        history.clock += len(demand)
        if self.stream_prefill and step.n_rows > self.batch_gate:
            self.stream(now, pool, demand)
        elif self.sequential:
            for i, key in enumerate(demand):
                self.moment = (self.tick_number, i)
                self.remember(key)
                self.touch(key)
                self.look_up(now, pool, key, pool.landed(key, self.tick_number), forbidden=set())
            self.moment = (self.tick_number, math.inf)
        else:
            self.moment = (self.tick_number, math.inf)
            hits = {key for key in demand if pool.landed(key, self.tick_number)}
            for key in demand:
                self.remember(key)
            for key in rows:
                self.touch(key)
            kept = self.optimum(pool, demand) if self.policy["name"] == "opt" else None
            for key in sorted(demand, key=lambda k: k not in hits):
                self.look_up(now, pool, key, key in hits, forbidden=self.demand, kept=kept)
        if self.exceed and not (self.stream_prefill and step.n_rows > self.batch_gate):
            self.trim(pool)
        self.close(now, layer, "step", self.pool_number(layer))
        self.end_copies(pool)

    def remember(self, key):
        history = self.history
        history.heat[key] = min(history.heat.get(key, 0) + 1, 2**32 - 1)
        history.last[key] = rules.clock_of(self.policy, history)
        history.warm[key] = history.warm.get(key, 0) + 1

    def touch(self, key):
        self.history.touch[key] = self.history.demand_touch[key] = self.history.number()

    def stream(self, now, pool, demand):
        for key in demand:
            if pool.landed(key, self.tick_number):
                self.hit(pool, key)
            else:
                self.missed.add((now, *divmod(key, self.E)))
                self.count("streamed", key)
                self.staged_bytes(key)
                self.say(STREAM, key)

    def hit(self, pool, key):
        row = pool.rows[key]
        self.count("prefetch_hits" if row.unused else "hits_demand", key)
        row.unused = False
        self.say(HIT, key, row.slot)

    def look_up(self, now, pool, key, resident, forbidden, kept=None):
        first = key not in self.history.seen
        self.history.seen.add(key)
        if resident:
            return self.hit(pool, key)
        self.missed.add((now, *divmod(key, self.E)))
        if first:
            self.count("compulsory", key)
        if key in pool.rows:
            row = pool.rows[key]
            self.count("late", key)
            self.say(LATE, key, row.slot)
            if row.unused:
                self.count("used_late", key)
                row.unused = False
            return None
        if self.gate:
            self.history.gate[key] = self.history.gate.get(key, 0) + 1
            if self.history.gate[key] < self.gate["admit"]:
                return self.refuse(key, "gated", GATE)
        if self.max_loads is not None and self.loads >= self.max_loads:
            return self.refuse(key, "throttled", THROTTLE)
        victims = self.make_room(pool, key, forbidden, by_demand=True, kept=kept)
        if victims is None:
            return self.refuse(key, "bypassed", BYPASS)
        if self.copies_refused():
            return self.refuse(key, "failed_demand", FAIL)
        for victim in victims:
            self.evict(pool, victim, "evicted_by_demand")
        lands = self.tick_number + self.lag_demand + 1
        if self.sequential and self.lag_demand == 0:
            lands = self.tick_number
        return self.load(pool, key, lands, LOAD)

    def refuse(self, key, name, verb):
        self.count(name, key)
        self.staged_bytes(key)
        self.say(verb, key)

    def trim(self, pool):
        """After an overflow: back to the size, never at the cost of a member of the demand."""
        for victim in self.candidates(pool, self.demand):
            if pool.free() >= 0:
                break
            self.evict(pool, victim, "evicted_by_demand")

    def evict(self, pool, key, name):
        row = pool.rows.pop(key)
        self.count(name, key)
        if row.unused:
            self.count("wasted", key)
        self.say(EVICT, key, row.slot)

    def load(self, pool, key, lands, verb):
        self.loads += 1
        self.history.fill[key] = self.history.number()
        slot = pool.put(key, lands=lands, unused=verb == SPECULATE)
        self.count("loads_speculative" if verb == SPECULATE else "loads_demand", key)
        self.fill_bytes(key)
        self.say(verb, key, slot)
        self.started.append((key, slot))

    # -- copies that fail --------------------------------------------------------------------------------------------
    def begin_copies(self, now, layer, phase):
        self.failing, self.started = self.failures.get((now, layer, phase)), []

    def copies_refused(self):
        return self.failing is not None and self.failing[1] == "refused" and len(self.started) >= self.failing[0]

    def end_copies(self, pool):
        """Doubtful copies: whatever of them has kept its slot is given up."""
        if self.failing is None or self.failing[1] != "doubtful":
            return
        for key, slot in self.started[self.failing[0] :]:
            if key in pool.rows and pool.rows[key].slot == slot:
                self.count("invalidated", key)
                if pool.rows.pop(key).unused:
                    self.count("wasted", key)

    # -- look-ahead --------------------------------------------------------------------------------------------------
    def look_ahead(self, now, step, layer):
        target = layer + self.horizon
        if target >= self.L or step.predicted is None:
            return
        self.verbs = []
        self.begin_copies(now, target, "ahead")
        pool = self.pool_at(target)
        if self.scope == "layer":
            self.loads = 0
        rows = [row[: self.width] for row in step.predicted[target]]
        offered = [row[rank] for rank in range(self.width) for row in rows if rank < len(row) and row[rank] is not None]
        valid = {target * self.E + e for e in offered if 0 <= e < self.E}
        considered = set()
        for expert in offered:
            self.ledger.add("predictions", target)
            key = target * self.E + expert
            if not 0 <= expert < self.E or key in considered:
                self.ledger.add("invalid", target)
                self.verbs.append((INVALID, target, expert, -1))
                continue
            considered.add(key)
            self.consider(pool, key, forbidden=valid | self.demand)
        self.close(now, layer, "prefetch", self.pool_number(target))
        self.end_copies(pool)

    def consider(self, pool, key, forbidden):
        self.history.touch[key] = self.history.number()
        if key in pool.rows:
            self.count("redundant", key)
            return self.say(REDUNDANT, key, pool.rows[key].slot)
        if self.max_loads is not None and self.loads >= self.max_loads:
            return self.drop(key, "dropped_throttle")
        victims = self.make_room(pool, key, forbidden, by_demand=False)
        if victims is None:
            return self.drop(key, "dropped_no_victim")
        if self.guard and any(rules.guarded(self.guard, self.policy, self.history, v, key) for v in victims):
            return self.drop(key, "dropped_guard")
        if self.copies_refused():
            self.count("failed_prediction", key)
            return self.say(FAIL, key)
        for victim in victims:
            self.evict(pool, victim, "evicted_by_prefetch")
        return self.load(pool, key, self.tick_number + self.lag_prefetch + 1, SPECULATE)

    def drop(self, key, name):
        self.count(name, key)
        self.say(DROP, key)

    # -- the end -----------------------------------------------------------------------------------------------------
    def finish(self):
        residents, in_flight = {}, {}
        for number, pool in enumerate(self.pools):
            residents[number], in_flight[number] = {}, {}
            for key, row in sorted(pool.rows.items(), key=lambda item: item[1].slot):
                landed = pool.landed(key, self.tick_number)
                (residents if landed else in_flight)[number][row.slot] = divmod(key, self.E)
                self.count("residents" if landed else "in_flight", key)
                if row.unused:
                    self.count("unresolved", key)
        return result(self.ledger, self.plan, self.ticks, residents, in_flight, self.missed, self.row_bytes is not None)
