"""The executor on the numpy backend: plans are the replay's, and no option changes a byte of the output."""

import json
import threading

import numpy as np
import pytest
from conftest import examples, some
from executor_cases import INNER, Model, carry_out
from hypothesis import given
from hypothesis import strategies as st

import slotwise
from slotwise.executor.backend import Copy, Rows, backends, make_backend
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.checks import audit
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.errors import BadExecutor, CopyDoubtful, CopyRefused
from slotwise.executor.executor import Executor
from slotwise.executor.reference import errors, expert
from slotwise.executor.store import HostStore
from slotwise.policies import Pool
from slotwise.replay.failures import Failure

SIZES = (1, 1, 3, 1, 12, 2, 1, 1, 1, 2)
STATES = ("residents", "in_flight", "unresolved")
POLICIES = some(("lru", "lfru+guard", "lfru(clock=access)+gate(window=4,admit=2)", "fifo", "lfu(half_life=4)", "random",
                 "static(warmup=3)"))  # fmt: skip


def same_plans(outcome, trace, policy, slots, **options):
    """Plan hash and counters of a replay with the same options, and those of the run."""
    failures = tuple(Failure(**failure) for failure in outcome.failures)
    law = slotwise.replay(trace, policy, slots, plan_hash=True, failures=failures, **options)
    assert outcome.plan_sha256 == law.plan_sha256
    shared = set(outcome.counters) & set(law.counters)
    assert {name: outcome.counters[name] for name in shared} == {name: law.counters[name] for name in shared}


@examples(60)
@given(data=st.data())
def test_plans_are_those_of_a_replay_and_outputs_those_of_the_cpu_alone(data):
    model = Model()
    trace = model.trace(data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 9]), min_size=1, max_size=12)), 5)
    policy, width = data.draw(st.sampled_from(POLICIES)), data.draw(st.sampled_from([0, 1, 4]))
    slots, scope = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(["layer", "global"]))
    pool = {
        "scope": scope,
        "contract": data.draw(st.sampled_from(["event", "sequential"])),
        "lag_demand": data.draw(st.sampled_from([0, 0, 2])),
        "lag_prefetch": data.draw(st.sampled_from([0, 0, 3])),
        "max_loads": data.draw(st.sampled_from([None, None, 1])),
        "prefill": data.draw(st.sampled_from(["cached", "stream"])),
        "overflow": "bypass" if "static" in policy else data.draw(st.sampled_from(["bypass", "bypass", "exceed"])),
    }
    run = {
        "overlap": data.draw(st.booleans()),
        "miss": data.draw(st.sampled_from(["cpu", "fetch", "split"])),
        "late": data.draw(st.sampled_from(["wait", "cold"])),
        "spec_chunk": data.draw(st.sampled_from([None, 1])),
    }
    outcome = carry_out(model, trace, policy, slots, width=width, pool=pool, **run)
    same_plans(outcome, trace, policy, slots, width=width, **pool)
    assert outcome.outputs == carry_out(model, trace, "lru", 0).outputs


def test_no_number_of_threads_and_no_repetition_changes_a_byte():
    model = Model()
    trace = model.trace(SIZES)
    runs = [carry_out(model, trace, "lfru+guard", width=4, threads=threads) for threads in (1, 1, 2, 3)]
    assert len({(run.outputs, run.plan_sha256) for run in runs}) == 1


@pytest.mark.parametrize(
    "dtypes", [("f32",) * 3, ("f16",) * 3, ("Q8_0",) * 3, ("Q4_K", "Q4_K", "Q6_K"), ("MXFP4",) * 3]
)
def test_every_stored_dtype_gives_the_bytes_of_the_cpu_wherever_its_rows_lie(dtypes):
    model = Model(layout=RowLayout(256, 256, dtypes))
    trace = model.trace(SIZES[:6])
    hot = carry_out(model, trace, "lru", 8)
    assert hot.counters["hits"] > 0
    assert hot.outputs == carry_out(model, trace, "lru", 0).outputs


def test_a_token_alone_gives_the_bytes_that_it_gives_among_others():
    model, together = Model(), []
    trace = model.trace([4])
    ids, n = trace.rows("step"), 4
    assert len(ids["step"]) == n
    backend = make_backend("numpy")
    from slotwise.executor.cold import ColdChain
    from slotwise.executor.executor import Executor
    from slotwise.executor.store import HostStore

    x = np.random.default_rng(3).normal(0, 1, (n, model.layout.hidden)).astype(np.float32)
    weights = np.random.default_rng(4).random((n, model.top_k), np.float32)
    experts = trace.layer(0)
    with ColdChain(1) as chain:
        store = HostStore([model.layout], model.n_experts, backend).fill(7, chain)
        for miss in ("cpu", "fetch"):
            pool = slotwise.Pool("lru", n_layers=1, n_experts=model.n_experts, slots=4, full=True)
            with Executor(pool, store, make_backend("numpy"), chain, top_k=2, miss=miss, headroom_bytes=0) as executor:
                together.append(executor.forward(0, x, experts, weights).tobytes())
                alone = [executor.forward(0, x[i : i + 1], experts[i], weights[i : i + 1]) for i in range(n)]
                together.append(b"".join(y.tobytes() for y in alone))
    assert len(set(together)) == 1


class Slow(NumpyBackend):
    """Copies land only once somebody waits for all of them."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def drain(self):
        self.gate.set()
        super().drain()

    def _carry(self, copies, after):
        self.gate.wait()
        super()._carry(copies, after)


def test_a_planned_hit_whose_copy_is_late_runs_on_the_cpu_if_asked_and_counts_diverted():
    model = Model(n_layers=1)
    trace = model.trace([1] * 6, seed=2)
    late = carry_out(model, trace, "lru", 8, backend=Slow(), late="cold")
    prompt = carry_out(model, trace, "lru", 8)
    assert late.executor.dispatcher.diverted > 0
    assert prompt.executor.dispatcher.diverted == 0
    assert (late.outputs, late.plan_sha256) == (prompt.outputs, prompt.plan_sha256)


def test_a_copy_that_waits_for_the_last_reader_of_its_slot_is_counted_and_does_not_overtake_it():
    """A row that 4,000 tokens read is overwritten at once: they have read the old one."""
    model, backend = Model(n_layers=1, layout=RowLayout(256, 256, ("f32",) * 3)), make_backend("numpy")
    x = np.random.default_rng(0).normal(0, 1, (4000, 256)).astype(np.float32)
    with ColdChain(1) as chain:
        store = HostStore([model.layout], 8, backend).fill(7, chain)
        n_bytes, slot = model.layout.row_bytes, backend.device_memory(model.layout.row_bytes)
        backend.prepare([model.layout], 4000, 1)
        tokens, ends = np.arange(4000), [0, 1999, 3999]
        for _ in range(50):  # a copy that comes once they have read has nobody to wait for: then again
            backend.copy([Copy(store.addresses[0][0], slot, n_bytes)]).result()
            tick = backend.begin(0, x, 1)
            reader = backend.hot(tick, Rows(np.array([slot]), np.array([0, 4000]), tokens, tokens))
            backend.copy([Copy(store.addresses[0][1], slot, n_bytes)], after=reader).result()
            y = backend.merge(tick, np.ones((4000, 1), np.uint8), np.ones((4000, 1), np.float32))
            assert errors(y[ends], expert(model.layout, store.row(0, 0), x[ends])).max() < 1e-5
            assert np.array_equal(backend.read(slot, n_bytes), store.row(0, 1))
            if backend.reader_waits:
                break
        assert backend.reader_waits == 1
        backend.close()


class Failing(NumpyBackend):
    """The copies numbered in `failing` fail, in the way that it says."""

    def __init__(self, failing):
        super().__init__()
        self.failing, self.calls = failing, -1

    def copy(self, copies, after=None):
        self.calls += 1
        kind = self.failing.get(self.calls)
        if kind is None:
            return super().copy(copies, after)
        if kind is CopyDoubtful and len(copies) > 1:
            super().copy(copies[:1], after)
        raise kind("asked for by a test")


@pytest.mark.parametrize("kind", [CopyRefused, CopyDoubtful])
@pytest.mark.parametrize("options", some([{"spec_chunk": 1}, {}, {"miss": "fetch"}, {"overlap": False}], 1))
def test_copies_that_fail_at_any_place_change_no_output_and_a_replay_repeats_the_plan(kind, options):
    model = Model()
    trace = model.trace(SIZES[:5])
    usual = carry_out(model, trace, "lfru+guard", 3, width=3, **options)
    for place in range(usual.executor.transfers.n_batches):
        for failing in ({place: kind}, {place: kind, place + 1: kind, place + 4: kind}):
            outcome = carry_out(model, trace, "lfru+guard", 3, width=3, backend=Failing(failing), **options)
            assert outcome.outputs == usual.outputs
            if outcome.failures:
                same_plans(outcome, trace, "lfru+guard", 3, width=3)
            else:  # what failed was a row beside the slots
                assert options == {"miss": "fetch"}


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("policy", [p for p in POLICIES if "static" not in p])
@examples(15)
@given(data=st.data())
def test_any_failures_of_any_policy_are_repeated_by_a_replay(policy, scope, data):
    model = Model()
    trace = model.trace(SIZES, data.draw(st.integers(0, 99)))
    kinds = st.sampled_from([CopyRefused, CopyDoubtful])
    backend = Failing(data.draw(st.dictionaries(st.integers(0, 40), kinds)))
    pool = {"scope": scope, "contract": data.draw(st.sampled_from(["event", "sequential"]))}
    outcome = carry_out(model, trace, policy, 4, width=2, backend=backend, pool=pool)
    same_plans(outcome, trace, policy, 4, width=2, **pool)


def test_what_cannot_be_carried_out_is_refused_before_anything_opens():
    model = Model()
    trace = model.trace([1])
    for policy in ("belady", "opt"):
        with pytest.raises(slotwise.BadPolicy, match="future"):
            carry_out(model, trace, policy)
    with pytest.raises(ValueError, match="width 2 with 0 slots"):
        carry_out(model, trace, "lru", 0, width=2)
    stride = model.layout.row_bytes
    with pytest.raises(BadExecutor, match="at most 2 slots a pool fit"):
        carry_out(model, trace, "lru", 3, backend=NumpyBackend(device_bytes=3 * 2 * stride + 100))
    with pytest.raises(BadExecutor, match="MiB of headroom"):
        carry_out(model, trace, backend=NumpyBackend(device_bytes=1 << 20), headroom_bytes=1 << 20)
    with pytest.raises(BadExecutor, match="no backend 'cuda'"):
        make_backend("cuda")
    assert "numpy" in backends()
    assert model.layout.inner == INNER


def test_a_closed_executor_leaves_no_thread():
    before = {thread.name for thread in threading.enumerate()}
    carry_out(Model(), Model().trace([1, 1]), width=2)
    assert {thread.name for thread in threading.enumerate()} == before


def test_initial_rows_of_a_layer_that_is_called_late_are_copied_by_then(tmp_path):
    """Layer 1 is skipped in the first step; its two rows are resident from the start, and bytes from its first call."""
    profile = {"format": "slotwise.profile", "version": 1, "traces": [], "counts": [[3, 2, 0, 0, 0, 0, 0, 0]] * 3}
    (tmp_path / "p.json").write_text(json.dumps(profile))
    model, backend, x = Model(), make_backend("numpy"), np.ones((1, 32), np.float32)
    ids, weights = np.array([[0, 1]], np.uint8), np.ones((1, 2), np.float32)
    with ColdChain(1) as chain:
        store = HostStore([model.layout] * 3, 8, backend).fill(7, chain)
        pool = Pool(f"static(profile={tmp_path / 'p.json'})", n_layers=3, n_experts=8, slots=2, full=True)
        with Executor(pool, store, backend, chain, top_k=2, headroom_bytes=0) as executor:
            for layer, copied in ((0, 2), (2, 4), (0, 4), (1, 6)):
                executor.forward(layer, x, ids, weights)
                audit(executor)
                assert executor.transfers.n_copies == copied
                assert pool.residents(1) == [0, 1]
