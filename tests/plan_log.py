"""Plans of whole runs as ticks, from live calls or a replay's log, and the judge of what every plan must honour."""

import itertools
from dataclasses import dataclass

import numpy as np

from slotwise.policies.layout import VERBS
from slotwise.replay.crew import Crew
from slotwise.replay.lane import Lane
from slotwise.replay.options import Options
from slotwise.replay.run import _Replayer

NOWHERE = 1 << 60


@dataclass(frozen=True)
class Tick:
    """The decisions of one call: demand of `layer` at step `now`, or look-ahead *for* `layer` made at step `now`."""

    now: int
    layer: int
    looks: bool
    moves: list  # (verb, layer, expert), in order


def live_ticks(pool, case, *, width=0):
    """Calls the pool as a model would: every layer of every step, and after each the look-ahead of the next."""
    for now, (first, last) in enumerate(itertools.pairwise(case.starts)):
        for layer in range(case.n_layers):
            k = max(len(row) for rows in case.experts for row in rows if row)
            rows = [row or [-1] * k for row in case.experts[layer][first:last]]
            yield Tick(now, layer, False, [d[:3] for d in pool.step(layer, np.array(rows, np.int16)).decisions()])
            if width and layer + 1 < case.n_layers:
                rows = [row[:width] for row in case.predicted[1][layer + 1][first:last]]
                plan = pool.prefetch(layer + 1, np.array(rows, np.int16))
                yield Tick(now, layer + 1, True, [d[:3] for d in plan.decisions()])


class _Log:
    """Stands where the plan hash is fed, and keeps what it is fed with."""

    def __init__(self):
        self.bytes = b""

    def update(self, more):
        self.bytes += more

    def digest(self):
        return b""


def replayed(trace, policy, slots, *, general=False, log=True, **options):
    """(result, per pool the hashed rows [n, 4] of step, layer, expert, verb) of one replay.

    `plain`, `full` and `look` are features of the kernel that no user's option names; `general` keeps plain LRU out of
    its faster twin.
    """
    features = {name: options.pop(name) for name in ("plain", "full", "look") if name in options}
    options = Options(policy=policy, slots=slots, plan_hash=log, **options).spelt()
    run = _Replayer(trace, trace, options)
    if features:
        pool = options.pool(trace, run.size, **{"record": log, "look": options.width > 0} | features)
        run.lane = Lane(pool, width=options.width, horizon=options.horizon, hashed=log)
    if general:
        assert run.lane.lists, "nothing to keep out: this run takes the general kernel anyway"
        run.lane.lists = []
    logs = [_Log() for _ in run.lane._hashes]
    vars(run.lane)["_hashes"] = logs
    for piece in run.pieces():
        run.advance(piece, Crew(1))
    return run.result(0.0), [np.frombuffer(one.bytes, "<i4").reshape(-1, 4) for one in logs]


def logged_ticks(rows, layer, n_steps):
    """The log of one layer's pool as ticks: at each step first the look-ahead that it was offered, then its demand."""
    for now in range(n_steps):
        moves = [(VERBS[verb], int(of), int(expert)) for _, of, expert, verb in rows[rows[:, 0] == now]]
        ahead = next((i for i, move in enumerate(moves) if move[0] in ("hit", "load_demand")), len(moves))
        if ahead and ahead < len(moves) and (moves[ahead - 1][0], moves[ahead][0]) == ("evict", "load_demand"):
            ahead -= 1
        if layer:
            yield Tick(now, layer, True, moves[:ahead])
        yield Tick(now, layer, False, moves[ahead:])


def judge(case, ticks, *, slots, wide=False, width=0, lag_demand=0, lag_prefetch=0, pinned=(), bound=False):
    """Asserts what every plan must honour, whatever the policy: it is about slots and time, not about preferences.

    Pools of equal size, `slots` each (`wide`: one for all layers); `pinned` are (layer, expert). A `bound` chooses what
    to keep after each tick, so what it hit may leave in it. Returns {(layer, expert): when it landed} at the end.
    """
    land, banned, before = {}, set(), None
    for tick in ticks:
        now, layer, looks = tick.now, tick.layer, tick.looks
        time = now * case.n_layers + layer - looks
        first, last = case.starts[now], case.starts[now + 1]
        if (now, layer - looks) != before:
            banned = set()
        before = (now, layer - looks)
        if looks:
            rows = [[e for e in row[:width] if 0 <= e < case.n_experts] for row in case.predicted[1][layer][first:last]]
        else:
            rows = [row or [] for row in case.experts[layer][first:last]]
        hits = []
        met = [(layer, e) for e in dict.fromkeys(itertools.chain(*rows))]
        banned |= set(met)
        initial = [move for move in tick.moves if move[0] == "load_initial"]
        assert tick.moves[: len(initial)] == initial
        for _, *key in initial:
            land[tuple(key)] = time
        if not looks:
            hits = [tuple(key) for verb, *key in tick.moves if verb == "hit"]
            assert hits == [key for key in met if land.get(key, NOWHERE) <= time], "a hit is what had landed"
        for verb, *key in tick.moves[len(initial) :]:
            key = tuple(key)
            if verb == "evict":
                assert key in land, "only a resident leaves"
                assert key not in banned or (bound and key in hits), "never what is demanded or considered now"
                assert key not in pinned, "never a pinned one"
                assert land[key] <= time, "never one in flight"
                del land[key]
            elif verb in ("load_demand", "load_speculative"):
                assert key in met, "only what was asked for is loaded"
                assert key not in land, "what is there or under way is not loaded again"
                land[key] = time + (lag_prefetch if looks else lag_demand) + 1
            for pool in [None] if wide else range(case.n_layers):
                held = len(land) if wide else sum(of == pool for of, _ in land)
                assert held <= slots, "never more residents than slots"
    return land
