"""The executor on a GPU: plans of the replay, bytes that no schedule changes, outputs of the CPU within the bound."""

import gc

import numpy as np
import pytest
from cupy_cases import gpu
from executor_cases import Model, carry_out

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.ceilings import measure
from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.errors import BadExecutor
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.replay.failures import Failure

pytestmark = pytest.mark.gpu
SIZES = (1, 1, 3, 1, 12, 2, 1, 1, 8, 1, 1, 1, 2)


@pytest.fixture(autouse=True)
def _needs_gpu():
    gpu()


def device(**options):
    return make_backend("cupy", **options)


def numbers(outcome, hidden):
    return np.frombuffer(outcome.outputs, np.float32).reshape(-1, hidden).astype(np.float64)


def hold(outcome, trace, policy, slots, **options):
    failures = tuple(Failure(**failure) for failure in outcome.failures)
    law = slotwise.replay(trace, policy, slots, plan_hash=True, failures=failures, **options)
    assert outcome.plan_sha256 == law.plan_sha256
    assert {n: c for n, c in outcome.counters.items() if law.counters[n] != c} == {}


@pytest.mark.parametrize("policy", ["lru", "lfru+guard", "static(warmup=3)", "fifo+gate(window=4,admit=2)"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("options", [{}, {"miss": "fetch"}, {"overlap": False}, {"late": "cold", "miss": "split"}])
def test_plans_are_the_replays_and_outputs_those_of_the_cpu_within_the_bound(policy, scope, options):
    model = Model()
    trace = model.trace(SIZES)
    cpu = carry_out(model, trace, "lru", 0)
    run = carry_out(model, trace, policy, 4, width=3, backend=device(), pool={"scope": scope}, **options)
    hold(run, trace, policy, 4, width=3, scope=scope)
    ours, theirs = numbers(run, model.layout.hidden), numbers(cpu, model.layout.hidden)
    assert (np.linalg.norm(ours - theirs, axis=1) <= 3e-5 * np.linalg.norm(theirs, axis=1)).all()


@pytest.mark.parametrize(
    "dtypes", [("bf16",) * 3, ("Q8_0",) * 3, ("Q4_K", "Q4_K", "Q6_K"), ("MXFP4",) * 3, ("Q4_0",) * 3]
)
def test_i0_overlap_and_repetition_change_no_byte(dtypes):
    model = Model(layout=RowLayout(256, 256, dtypes))
    trace = model.trace(SIZES)
    for options in ({}, {"miss": "fetch"}):
        runs = [
            carry_out(
                model,
                trace,
                "lfru+guard",
                4,
                width=3,
                backend=device(sms=sms),
                overlap=overlap,
                timing=timing,
                **options,
            )
            for overlap, timing, sms in (
                (True, False, None),
                (False, False, None),
                (True, True, None),
                (True, False, 8),
            )
        ]
        assert len({(run.outputs, run.plan_sha256) for run in runs}) == 1


@pytest.mark.parametrize("options", [{"host": "registered"}, {"host": "staged"}, {"merge": "cpu"}])
def test_where_rows_lie_and_where_the_merge_runs_changes_no_byte(options):
    model = Model()
    trace = model.trace(SIZES)
    usual = carry_out(model, trace, "lfru+guard", 4, width=3, backend=device())
    run = carry_out(
        model, trace, "lfru+guard", 4, width=3, backend=device(**options), max_queued=1, spec_chunk=1, link_pad=1
    )
    hold(run, trace, "lfru+guard", 4, width=3)
    assert run.outputs == usual.outputs


def test_i2_a_token_alone_gives_the_bytes_that_it_gives_among_others_in_fetch_mode():
    model = Model(n_layers=1)
    together = carry_out(model, model.trace([4]), "lru", 8, backend=device(), miss="fetch")
    rows = numbers(together, model.layout.hidden)
    again = carry_out(model, model.trace([4]), "lru", 0, backend=device(), miss="fetch")
    assert np.array_equal(rows, numbers(again, model.layout.hidden))


def test_copies_that_fail_are_repeated_by_a_replay_and_change_no_byte():
    model = Model()
    trace = model.trace(SIZES[:6])
    usual = carry_out(model, trace, "lru", 3, width=3, backend=device())
    for place in range(0, usual.executor.transfers.n_batches, 3):
        for after in (0, 1):
            backend = device()
            counter = iter(range(10**6))

            def copy(copies, later=None, backend=backend, counter=counter, at=place, after=after):
                if next(counter) == at:
                    backend._copies.fail_next(after)
                return type(backend).copy(backend, copies, later)

            backend.copy = copy
            run = carry_out(model, trace, "lru", 3, width=3, backend=backend)
            assert len(run.failures) == 1
            hold(run, trace, "lru", 3, width=3)


def test_a_prefill_of_1900_tokens_and_400_verify_steps_leave_nothing_on_the_device():
    """What they allocate while they run, nothing, is counted by `benchmarks/stress.py`."""
    cupy = gpu()
    gc.collect()
    before = cupy.get_default_memory_pool().used_bytes()
    model = Model(n_layers=2, n_experts=128, top_k=8, layout=RowLayout(256, 128, ("bf16",) * 3))
    trace = model.trace([1900, *[4] * 400])
    run = carry_out(model, trace, "lfru+guard", 96, width=4, backend=device())
    hold(run, trace, "lfru+guard", 96, width=4)
    del run
    gc.collect()
    assert cupy.get_default_memory_pool().used_bytes() <= before


def test_more_slots_than_vram_is_refused_with_what_fits():
    free = gpu().cuda.runtime.memGetInfo()[0]
    model = Model(n_experts=128)
    with pytest.raises(BadExecutor, match="slots a pool fit"):
        carry_out(model, model.trace([1]), "lru", 100, backend=device(), headroom_bytes=free)


def test_nothing_is_allocated_on_a_device_that_does_not_exist():
    with pytest.raises(BadExecutor, match="device=99"):
        device(device=99)


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_device_tensors_of_a_live_caller_are_read_where_they_lie_in_the_order_of_their_stream(kind):
    """x is made by the caller's stream just before: the executor must wait for it, and the caller for y."""
    cupy = gpu()
    torch = (
        pytest.importorskip("torch", reason="torch is optional, and not installed here") if kind == "torch" else None
    )
    model = Model(n_layers=1)
    draw, n = np.random.default_rng(0), 3
    x = draw.normal(size=(n, model.layout.hidden)).astype(np.float32)
    ids, weights = np.array([[0, 1], [2, 3], [1, 5]]), draw.random((n, 2), np.float32)
    with ColdChain(1) as chain:
        kept = device()  # its memory is page-locked
        store = HostStore(model.layouts, model.n_experts, kept).fill(7, chain)
        found = []
        for take in (np.asarray, cupy.asarray if torch is None else lambda a: torch.from_numpy(a).cuda()):
            pool = slotwise.Pool("lru", n_layers=1, n_experts=8, slots=8, width=2, full=True)
            with Executor(pool, store, device(), chain, top_k=2, headroom_bytes=0) as executor:
                for dtype in (np.int64, np.int32, np.uint8):
                    there = take(x / 2)
                    there = there + there  # queued, not done
                    y = executor.forward(0, there, take(ids.astype(dtype)), take(weights))
                    y = cupy.asnumpy(y) if torch is None or take is np.asarray else torch.from_dlpack(y).cpu().numpy()
                    found.append(y.tobytes())
                if take is not np.asarray:
                    with pytest.raises(BadExecutor, match="has gaps"):
                        executor.forward(0, take(np.repeat(x, 2, axis=1))[:, ::2], take(ids), take(weights))
        kept.close()
    assert len(set(found[:1] + found[3:4])) == 1  # misses, on the CPU; then hits
    assert len(set(found[1:3] + found[4:])) == 1


def test_spans_of_the_device_lie_in_their_ticks_and_copies_in_the_run():
    model = Model(layout=RowLayout(1024, 512, ("bf16",) * 3))
    run = carry_out(model, model.trace(SIZES), "lru", 3, width=3, backend=device(), miss="fetch", timing=True)
    ticks = run.executor.ticks
    assert ticks is not None
    slack = 1e-4  # of two clocks
    for tick in ticks:
        for spans in (tick.hot, tick.late):
            assert all(tick.began - slack <= a <= b <= tick.began + tick.total_s + slack for a, b in spans)
    copies = [batch for tick in ticks for batch in tick.copies]
    assert 0 < sum(n_bytes for _, _, n_bytes in copies) <= run.executor.transfers.bytes_copied
    assert all(0 < ended - began < 1 for began, ended, _ in copies)


def test_ceilings_are_those_of_a_link_and_a_gpu():
    layouts = [RowLayout(1024, 512, ("bf16",) * 3)] * 2
    backend, kept = device(), device()
    with ColdChain(2) as chain:
        store = HostStore(layouts, 32, kept).fill(0, chain)
        found = measure(backend, chain, store)
    backend.close()
    kept.close()
    assert 1e9 < found["copy_rows_per_s"] <= 1.1 * found["copy_large_per_s"]
    assert found["device_read_per_s"] > 2 * found["copy_large_per_s"]
