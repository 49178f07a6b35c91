"""The price of a replay once more, slowly: live pools say what happens, and queues of things say how long it takes.

Shares nothing with the compiled walk: plans come from `Pool.step` and `Pool.prefetch`, the link is a list of batches
with what is left of each, and what is under way is advanced from one event to the next.
"""

import math

from oracle_chains import Job, beside, between, chain_time, pays, surplus
from oracle_link import INF, SlowLink

from slotwise.replay.options import Options

CAUSES = "both_s hot_alone_s cold_alone_s late_s host_s jitter_s policy_s merge_s dense_s ids_s step_s".split()


class PriceOracle(SlowLink):
    """Prices one configuration; `steps` are seconds of each, `parts` seconds by cause."""

    def __init__(self, trace, policy, slots, *, machine, overlap="on", late="wait", dense_us=0.0, max_queued=None,
                 spec_chunk=None, split_share=None, **options):  # fmt: skip
        self.o = o = Options.of(policy=policy, slots=slots, **options)
        self.m, self.trace = machine, trace
        self.rows = o.rows_of(trace)
        self.pool = o.pool(trace, o.size(trace), full=True, future=False)
        self.overlap, self.late_cold, self.dense_s = overlap, late == "cold", machine["dense_s"] + dense_us / 1e6
        self.hot_share, self.cold_share, self.overlap_s = beside(machine)
        self.overlapped = self.serial = 0
        self.max_queued, self.chunk = INF if max_queued is None else max_queued, spec_chunk
        self.share = {"cpu": split_share or 0.0, "fetch": 1.0}[o.miss]
        added = [word for word in ("guard", "gate", "pin") if f"+{word}" in o.policy]
        name = "+".join([o.policy.split("+")[0].split("(")[0], *added])
        own = machine.policies.get(name, machine.figures)
        self.policy_s, self.policy_ahead_s = own["policy_s"].value, own["policy_ahead_s"].value
        self.threads = machine.cpu_threads
        self.contention = min(machine.contention, key=lambda c: (abs(c.threads - self.threads), c.threads))
        self.host = self.gpu = self.now = self.cold_end = 0.0
        self.link, self.copies, self.waiting, self.driver = [], {}, [], []
        self.parts = dict.fromkeys(CAUSES, 0.0)
        self.link_busy = self.cold_busy = 0.0
        self.late_hits = self.late_ticks = self.diverted = 0
        self.lateness, self.worst = 0.0, 0.0
        self.steps = []

    def run(self):
        source = self.o.source(self.trace)
        predictor = self.o.predictor_of(self.trace)
        before = None
        for block in source.blocks(predicted=bool(predictor and predictor.needs_predicted), horizon=self.o.horizon,
                                   n_steps=self.o.steps):  # fmt: skip
            offers = predictor.predict(block) if predictor else None
            for i in range(block.n_steps):
                if self.o.reset == "request" and before not in (None, block.request[i]):
                    self.pool.reset()
                    self.link, self.copies, self.waiting = [], {}, []
                before = block.request[i]
                rows = slice(block.starts[i], block.starts[i + 1])
                self.step(block.experts[:, rows], None if offers is None else offers[:, rows])
        return self

    def step(self, experts, offers):
        began = self.host
        for layer in range(len(experts)):
            self.tick(layer, experts[layer], offers)
        self.host = max(self.host, self.gpu) + self.m["step_s"]
        self.parts["step_s"] += self.m["step_s"]
        self.idle(self.host)
        self.steps.append(self.host - began)

    # --- a tick ---

    def tick(self, layer, ids, offers):
        m, tokens = self.m, len(ids)
        small = tokens <= self.o.batch_gate
        self.host = max(self.host, self.gpu)
        self.idle(self.host)
        crossed = any(batch.left > 0 for batch in self.link)
        ids_s, policy_s = m["ids_s"], self.policy_s
        if crossed:
            ids_s, policy_s = ids_s + m["link_ids_s"], policy_s + m["link_host_s"]
        self.host += ids_s + policy_s
        self.parts["ids_s"] += ids_s
        self.parts["policy_s"] += policy_s
        self.idle(self.host)
        events, hot = [], []
        self.pump(events)
        plan = self.pool.step(layer, ids)
        what = {expert: verb for verb, _, expert, _ in plan.decisions() if verb not in ("evict", "load_initial")}
        chosen = [int(e) for row in ids for e in row if e < self.trace.n_experts]
        missed = [e for e in what if what[e] != "hit"]
        fetched = missed[: round(self.share * len(missed))]
        jobs = {name: [] for name in ("hits", "placed", "outside", "cold")}
        hurried, gates, late = [], [], 0
        for expert, verb in what.items():
            copy = self.copies.get((layer, expert))
            if verb == "hit" and not self.landed((layer, expert)):
                late += 1
                if self.late_cold:
                    self.diverted += 1
                    jobs["cold"].append(expert)
                    continue
                hurried += [(layer, expert)] if copy is None else []
                gates += [copy] if copy is not None else []
            if verb == "hit":
                jobs["hits"].append(expert)
            elif expert not in fetched:
                jobs["cold"].append(expert)
            elif verb == "load_demand" or (verb == "late" and copy is not None):
                jobs["placed"].append(expert)
            else:
                jobs["outside"].append(expert)
        pairs = {name: sum(chosen.count(e) for e in experts) for name, experts in jobs.items()}
        placed_gates = [self.copies[layer, e] for e in jobs["placed"] if what[e] == "late"]
        if hurried:
            gates.append(self.hand_over(events, hurried, layer, "ahead"))

        tokens_of = {name: max(map(chosen.count, experts), default=1) for name, experts in jobs.items()}

        def time_of(chain, rows, n_pairs, most=1):
            return chain_time(m, chain, self.rows[layer], tokens, rows, n_pairs, self.threads, most)

        hits = cold = None
        waited, warm = 0.0, 0
        overlap = small and self.overlap != "off"
        if jobs["hits"] and jobs["cold"]:
            if overlap and self.overlap == "auto":
                n_loads = sum(verb == "load_demand" for verb in what.values())
                each = min(tokens, max(1.0, tokens * self.trace.top_k / (len(jobs["hits"]) + len(jobs["cold"]))))
                hot_time, cold_time = (
                    time_of(chain, len(jobs[name]), len(jobs[name]) * each)
                    for chain, name in (("hot", "hits"), ("cold", "cold"))
                )
                host_s = m["submit_batch_s"] + n_loads * m["submit_load_s"] if n_loads else 0.0
                host_s += self.policy_ahead_s if self.o.width else 0.0
                overlap = pays(m, hot_time, cold_time, host_s)
            self.overlapped, self.serial = self.overlapped + overlap, self.serial + (not overlap)
        if jobs["cold"]:
            cold_s, cold_spread = time_of("cold", len(jobs["cold"]), pairs["cold"], tokens_of["cold"])
            ahead_of_it = sum(batch.left for batch in self.link) + sum(batch.left for _, batch in events)
            computed = sum(what[e] == "load_demand" for e in jobs["cold"])
            own = m["own_caches_bytes"] / self.rows[layer]
            if computed and ahead_of_it * len(jobs["cold"]) < 2.0 * own * cold_s:
                warm = min(computed, int(own + 0.5))
                if overlap:
                    cold_s *= self.contention.cold_with_link.value / self.contention.cold_with_own.value
            if overlap:
                self.host += m["submit_cold_s"]
                cold = Job(self.host + self.wake(self.host - self.cold_end), cold_s)
        if jobs["hits"]:
            self.host += m["submit_hot_s"]
            hot_s, hot_spread = time_of("hot", len(jobs["hits"]), pairs["hits"], tokens_of["hits"])
            hits = Job(self.host, hot_s, gates)
            hot.append(hits)
        if not overlap:
            waited = self.advance(None, hot, events, hits=hits)
            hot, events = [], []
            self.host = max(self.host, self.now)
            if jobs["cold"]:
                self.host += m["submit_cold_s"]
                alone = Job(self.host + self.wake(self.host - self.cold_end), cold_s)
                self.advance(alone, [], [])
                self.host = self.cold_end = self.now
        loads = [(layer, e) for e in what if what[e] == "load_demand"]
        if loads:
            batch = self.hand_over(events, loads, layer, "demand", warm=warm)
            placed_gates += [batch] if any(what[e] == "load_demand" for e in jobs["placed"]) else []
        if jobs["placed"]:
            self.host += m["submit_hot_s"]
            hot.append(
                Job(
                    self.host,
                    time_of("hot", len(jobs["placed"]), pairs["placed"], tokens_of["placed"])[0],
                    placed_gates,
                )
            )
        staging = 2 * self.trace.top_k if self.o.prefill == "stream" and not small else None
        most = staging or min(self.trace.n_experts, max(1, self.o.batch_gate) * self.trace.top_k)
        outside = len(jobs["outside"])
        wave = min(outside, most)
        each = pairs["outside"] / outside if outside else 0.0
        if outside:
            batch = self.hand_over(events, [], layer, "demand", outside=wave)
            self.host += m["submit_hot_s"]
            hot.append(Job(self.host, time_of("hot", wave, wave * each, tokens_of["outside"])[0], [batch]))
        target = layer + self.o.horizon
        if offers is not None and small and target < self.trace.n_layers:
            self.look_ahead(events, target, offers[target][:, : self.o.width])
        waited += self.advance(cold, hot, events, hits=hits)
        extra = 0.0
        if cold:
            self.cold_end = cold.ended
            if hits:
                spread = math.hypot(cold_spread, hot_spread)
                extra = self.overlap_s + surplus(cold.ended, hot[-1].ended, spread)
        outside -= wave
        while outside:
            wave = min(outside, wave)
            self.host = max(self.host, self.now)
            events = []
            batch = self.hand_over(events, [], layer, "demand", outside=wave)
            self.host += m["submit_hot_s"]
            self.advance(
                None, [Job(self.host, time_of("hot", wave, wave * each, tokens_of["outside"])[0], [batch])], events
            )
            outside -= wave
        if late:
            self.late_hits += late
            self.late_ticks += 1
            self.lateness += waited
            self.worst = max(self.worst, waited)
        self.host += m["submit_merge_s"]
        merge = m["merge_s"] + len(chosen) * m["merge_pair_s"]
        if jobs["cold"] and any(batch.left > 0 for batch in self.link):
            merge += m["link_cold_s"]
        self.parts["jitter_s"] += extra
        self.parts["host_s"] += max(0.0, self.host - self.now - extra)
        self.parts["merge_s"] += merge
        self.parts["dense_s"] += self.dense_s
        self.gpu = max(self.host, self.now + extra) + merge + self.dense_s
        self.host += m["submit_next_s"]
        self.parts["host_s"] += max(0.0, self.host - self.gpu)

    def wake(self, gap):
        knots = self.m.wake
        if not knots:
            return 0.0
        return between(min(gap, knots[-1].gap_s), [w.gap_s for w in knots], [w.seconds for w in knots])
