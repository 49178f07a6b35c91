"""Where the oracle writes what happened: counters in five cuts, the plan of each pool, the verdicts of each tick."""

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field

HIT, LOAD, SPECULATE, EVICT, DROP, BYPASS, GATE, THROTTLE, LATE, STREAM, INVALID, REDUNDANT, FAIL = range(13)

SUMS = {
    "hits": ("hits_demand", "prefetch_hits"),
    "misses": ("loads_demand", "bypassed", "gated", "throttled", "late", "streamed", "failed_demand"),
    "evictions": ("evicted_by_demand", "evicted_by_prefetch"),
    "fills": ("loads_demand", "loads_speculative", "loads_initial"),
    "failed": ("failed_demand", "failed_prediction"),
}
BASIC = (
    "routed demands hits_demand prefetch_hits compulsory loads_demand bypassed gated throttled late streamed "
    "predictions invalid redundant dropped_guard dropped_no_victim dropped_throttle loads_speculative "
    "used_late wasted unresolved loads_initial evicted_by_demand evicted_by_prefetch residents in_flight "
    "discarded invalidated failed_demand failed_prediction bytes_loaded bytes_moved"
).split()
NAMES = (*BASIC, *SUMS)
BYTES = ("bytes_loaded", "bytes_moved")


def complete(counter, with_bytes):
    """A dictionary of every counter, the sums included; bytes are None where rows have no known size."""
    out = {name: counter[name] for name in BASIC}
    out |= {name: sum(counter[part] for part in parts) for name, parts in SUMS.items()}
    return out if with_bytes else out | dict.fromkeys(BYTES)


@dataclass
class Ledger:
    """Counts events under the step they happen at and the layer they belong to."""

    n_layers: int
    steps: list = field(default_factory=list)  # a Counter per step
    layers: list = field(default_factory=list)
    where: list = field(default_factory=list)  # (phase, request) of each step

    def __post_init__(self):
        self.layers = [Counter() for _ in range(self.n_layers)]

    def begin(self, phase, request):
        self.steps.append(Counter())
        self.where.append((phase, request))

    def add(self, name, layer, n=1):
        self.steps[-1][name] += n
        self.layers[layer][name] += n


class Scribe:
    """Writes down what a run decides: counters, and per call the verbs and the pool's plan."""

    def __init__(self, n_layers, n_experts, n_pools, row_bytes, miss):
        self.L, self.E, self.row_bytes, self.miss = n_layers, n_experts, row_bytes, miss
        self.ledger = Ledger(n_layers)
        self.plan = {number: [] for number in range(n_pools)}
        self.ticks, self.verbs, self.missed = [], [], set()

    def count(self, name, key, n=1):
        self.ledger.add(name, key // self.E, n)

    def fill_bytes(self, key):
        if self.row_bytes is not None:
            self.count("bytes_loaded", key, self.row_bytes[key // self.E])
            self.count("bytes_moved", key, self.row_bytes[key // self.E])

    def staged_bytes(self, key):
        if self.row_bytes is not None and self.miss == "fetch":
            self.count("bytes_moved", key, self.row_bytes[key // self.E])

    def say(self, verb, key, slot=-1):
        layer, expert = divmod(key, self.E)
        self.verbs.append((verb, layer, expert, slot))

    def close(self, now, layer, kind, pool):
        """End one call: hits first, then the rest in order of decision."""
        verbs = sorted(self.verbs, key=lambda v: v[0] != HIT)
        self.ticks.append((now, layer, kind, verbs))
        self.plan[pool] += [(now, of, expert, verb) for verb, of, expert, _ in verbs if verb <= DROP]


@dataclass(frozen=True)
class OracleResult:
    """All that a replay can be compared by."""

    counters: dict
    by_layer: dict  # name -> [n_layers]
    by_phase: dict  # "prefill" | "decode" -> counters
    by_request: dict  # request -> counters
    by_step: list  # counters of each step
    plan: dict  # pool -> [(step, layer, expert, verb)]
    plan_sha256: str
    ticks: list  # (step, layer, "step" | "prefetch", [(verb, layer, expert, slot)]), in order of decision
    residents: dict  # pool -> {slot: (layer, expert)}, landed
    in_flight: dict  # pool -> {slot: (layer, expert)}
    missed: set  # (step, layer, expert) of each demand that missed

    def along(self, name, window):
        """One counter summed over windows of steps."""
        values = [step[name] for step in self.by_step]
        return [sum(values[i : i + window]) for i in range(0, len(values), window)]


def plan_sha256(plan):
    """SHA-256 over the digests of the pools, each over its int32 quadruples."""
    digests = b"".join(
        hashlib.sha256(b"".join(struct.pack("<4i", *entry) for entry in plan[pool])).digest() for pool in sorted(plan)
    )
    return hashlib.sha256(digests).hexdigest()


def result(ledger, plan, ticks, residents, in_flight, missed, with_bytes):
    def total(counters):
        return complete(sum(counters, Counter()), with_bytes)

    where = list(zip(ledger.where, ledger.steps, strict=True))
    layers = [complete(c, with_bytes) for c in ledger.layers]
    return OracleResult(
        counters=total(ledger.steps),
        by_layer={name: [layer[name] for layer in layers] for name in NAMES},
        by_phase={
            phase: total([c for (code, _), c in where if code == value])
            for value, phase in enumerate(("prefill", "decode"))
        },
        by_request={
            request: total([c for (_, r), c in where if r == request]) for request in sorted({r for (_, r), _ in where})
        },
        by_step=[complete(c, with_bytes) for c in ledger.steps],
        plan=plan,
        plan_sha256=plan_sha256(plan),
        ticks=ticks,
        residents=residents,
        in_flight=in_flight,
        missed=missed,
    )
