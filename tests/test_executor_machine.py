"""Ten thousand random ticks of an executor against a plain model: the oracle decides, float64 computes."""

import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from conftest import examples, few_policies
from executor_cases import no_thread_left
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from oracle_case import Case, described, spelled, with_profiles
from oracle_chance import options, policies
from oracle_counts import BYTES
from oracle_live import LiveOracle

from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.checks import audit
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.errors import BrokenOff, CopyDoubtful, CopyRefused
from slotwise.executor.executor import Executor
from slotwise.executor.reference import errors, moe_layer
from slotwise.executor.store import HostStore
from slotwise.policies import Pool

LIVE = few_policies(("lru", "fifo", "lfu", "lfru", "random", "static"))
LAYOUT = RowLayout(32, 16, ("f32", "bf16", "f16"))
WIDTH, TICKS, EXAMPLES = 4, 10_000, 140


class Fragile(NumpyBackend):
    """Its copies take a while; after so many batches the next one fails, in the way of `kind`."""

    left, kind, pause_s = 0, None, 0.0

    def _carry(self, copies, after):
        sleep(self.pause_s)
        super()._carry(copies, after)

    def copy(self, copies, after=None):
        self.left -= 1
        if self.kind is None or self.left >= 0:
            return super().copy(copies, after)
        kind, self.kind = self.kind, None
        if kind is CopyDoubtful and len(copies) > 1:
            super().copy(copies[: len(copies) // 2], after)
        raise kind("asked for by a test")


class Life(RuleBasedStateMachine):
    """One host store and cold chain; executors over it are opened, driven, broken, closed and opened again."""

    ticks = lives = failures = 0

    def __init__(self):
        super().__init__()
        self.open = ExitStack()
        self.open.enter_context(no_thread_left())
        self.folder = Path(self.open.enter_context(tempfile.TemporaryDirectory()))
        self.chain = self.open.enter_context(ColdChain(1))
        self.executor = None

    @initialize(data=st.data(), n_experts=st.integers(6, 12), n_layers=st.integers(1, 3), top_k=st.integers(1, 3))
    def begin(self, data, n_experts, n_layers, top_k):
        self.E, self.L, self.k = n_experts, n_layers, top_k
        self.store = HostStore([LAYOUT] * n_layers, n_experts, NumpyBackend()).fill(n_experts, self.chain)
        self.reopen(data)

    @rule(data=st.data())
    def reopen(self, data):
        """Closes what is open, and opens an executor with options of its own."""
        self.close()
        ahead = {h: [[[-1] * WIDTH]] * self.L for h in range(1, self.L)}
        shape = Case(self.E, [[[0]]] * self.L, [0], [0], [1], ahead)
        policy = with_profiles(described(data.draw(policies(shape, LIVE))), self.folder)
        how = data.draw(options(shape, policy))
        how = {name: value for name, value in how.items() if name not in ("horizon", "reset")}
        self.width, miss = how.setdefault("width", 0), how.pop("miss")
        pool = Pool(spelled(policy), n_layers=self.L, n_experts=self.E, full=True, **how)
        self.twin = LiveOracle(self.L, self.E, policy=policy, miss=miss, **how)
        self.backend, self.known = Fragile(), 0
        self.backend.pause_s = data.draw(st.sampled_from([0, 0, 3e-4]))
        self.executor = Executor(
            pool, self.store, self.backend, self.chain, top_k=self.k, headroom_bytes=0, plan_hash=True,
            miss=data.draw(st.sampled_from(["split", miss])), late=data.draw(st.sampled_from(["wait", "cold"])),
            overlap=data.draw(st.booleans()), timing=data.draw(st.booleans()),
            spec_chunk=data.draw(st.sampled_from([None, 1, 2])), staging=data.draw(st.sampled_from([None, 1])),
        )  # fmt: skip
        Life.lives += 1

    @rule(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 48), breaks=st.booleans())
    def walk(self, seed, n, breaks):
        """Ticks in a row: some copies fail, some layers are skipped (what is trimmed then is in no live plan)."""
        rng = random.Random(seed)
        for _ in range(n):
            if self.executor is None:
                return
            if breaks and rng.random() < 0.2:
                self.backend.left, self.backend.kind = rng.randrange(3), rng.choice([CopyRefused, CopyDoubtful])
            skips = not self.twin.exceed and rng.random() < 0.15
            layer = self.twin.last + 1 + skips
            self.tick(rng, layer if layer < self.L else rng.randrange(self.L) if skips else 0)

    def tick(self, rng, layer):
        n = self.twin.n_rows if layer > self.twin.last else rng.choice([1, 1, 1, 2, 3])
        few = rng.choice([self.E, self.k + 2])
        rows = [rng.sample(range(few), self.k) if rng.random() < 0.95 else [-1] * self.k for _ in range(n)]
        kinds = (*range(self.E), self.E, self.E + 1, -1)
        offers = [rng.choices(kinds, k=WIDTH) for _ in range(n)]
        target = layer + rng.choice([1, 1, 2])
        looks, apart = target < self.L and rng.random() < 0.7, rng.random() < 0.5 or target != layer + 1
        draw = np.random.default_rng(rng.getrandbits(32))
        x, weights = draw.normal(0, 1, (n, 32)).astype(np.float32), draw.random((n, self.k), np.float32)
        ids, predicted = np.array(rows, np.int16), np.array(offers, np.int16)
        try:
            y = self.executor.forward(layer, x, ids, weights, predicted if looks and not apart else None)
            if looks and apart:
                self.executor.prefetch(target, predicted)
        except BrokenOff:  # a row that was to be resident from the start: nothing goes on from there
            self.executor.close()
            self.executor = None
            return
        told = self.executor.failures[self.known :]
        self.twin.failures = {(one["step"], one["layer"], one["phase"]): (one["load"], one["kind"]) for one in told}
        self.known += len(told)
        Life.failures += len(told)
        self.twin.step(layer, [[None if e < 0 else e for e in row] for row in rows])
        if looks:
            self.twin.prefetch(target, [[None if e < 0 else e for e in row] for row in offers])
        assert errors(y, moe_layer(self.store, layer, x, ids, weights)).max() <= 1e-5
        for each in self.layers():
            assert self.executor.pool.slots_of(each) == self.twin.slots_of(each)
        Life.ticks += 1

    def layers(self):
        """Those whose slots both know: a static policy that has warmed up fills a pool when it is called next."""
        return range(min(self.L, self.twin.last + 1) if self.twin.warms_up() else self.L)

    def finish_step(self):
        while self.executor is not None and self.twin.last < self.L - 1:
            self.tick(random.Random(0), self.twin.last + 1)

    @rule()
    def reset(self):
        """Between two steps, as a run does between two requests."""
        self.finish_step()
        if self.executor is not None and self.twin.now >= 0:
            self.executor.reset()
            self.twin.reset()

    @rule()
    def drain(self):
        if self.executor is not None:
            self.executor.synchronize()

    @rule()
    def look_at_every_slot(self):
        """Bytes where the twin says that a row lies; `audit` says the same by the pool."""
        if self.executor is None:
            return
        self.executor.synchronize()
        for layer in self.layers():
            pool = self.twin.pool_number(layer)
            if self.twin.now >= 0 and not self.executor.pool.unlisted(layer):
                for expert, slot in self.twin.slots_of(layer).items():
                    row = self.store.row(layer, expert)
                    assert np.array_equal(self.backend.read(self.executor.slots.address(pool, slot), row.size), row)
        audit(self.executor)

    def close(self):
        """Ends the executor's life: all that it decided is what the twin decided."""
        self.finish_step()
        if self.executor is None:
            return
        self.look_at_every_slot()
        if self.twin.now >= 0:
            counters, plan_sha256 = self.twin.end()
            ours = self.executor.pool.counters
            assert {n: (c, ours[n]) for n, c in counters.items() if n not in BYTES and ours[n] != c} == {}
            assert self.executor.plan_hash.hexdigest() == plan_sha256
        self.executor.close()
        self.executor = None

    def teardown(self):
        with self.open:
            if sys.exc_info()[0] is None:
                self.close()
            elif self.executor is not None:
                self.executor.close()


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::UserWarning")  # tiny pools are warned about
def test_ten_thousand_random_ticks_of_an_executor_are_those_of_the_model():
    phases = [phase for phase in Phase if phase is not Phase.explain]
    asked = settings(examples(EXAMPLES), stateful_step_count=24, phases=phases)
    run_state_machine_as_test(Life, settings=asked)
    if asked.max_examples >= EXAMPLES:
        assert Life.ticks >= TICKS
        assert Life.failures >= 100  # how many meet a load hangs on what has landed by then
