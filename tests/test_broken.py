"""Runs that break off: wherever the device, a worker or memory gives out, finished steps stand, and no thread."""

import json
import signal
from contextlib import suppress
from importlib import import_module

import numpy as np
import pytest
from conftest import BRIEF, examples, some
from executor_cases import Model, carry_out, no_thread_left, spoil
from hypothesis import given
from hypothesis import strategies as st

import slotwise
from slotwise.cli.main import FAILED, main
from slotwise.executor import backend_numpy, ceilings
from slotwise.executor.backend_numpy import NumpyBackend
from slotwise.executor.cold import ColdChain
from slotwise.executor.errors import ContextLost, CopyRefused, WorkerFailed
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.replay.failures import Failure

STATES = ("residents", "in_flight", "unresolved")


class Numbered(NumpyBackend):
    """Knows whether a run opened it first or second: for the store, and to measure the link."""

    opened = 0

    def __init__(self, **options):
        super().__init__(**options)
        self.spared = Numbered.opened < 2
        Numbered.opened += 1


class Mortal(Numbered):
    """A device that is lost after `left` more calls: from then on every call fails."""

    left = 10**9
    calls = 0

    def _count(self, name):
        if self.spared:
            return
        if name != "landed":  # asked as often as copies take
            Mortal.calls += 1
            Mortal.left -= 1
        if self.left < 0:
            raise ContextLost("the device fell off its bus")


def _mortal(name):
    def call(self, *values, **options):
        self._count(name)
        return getattr(NumpyBackend, name)(self, *values, **options)

    return call


for (
    _name
) in "device_memory upload host download read copy landed begin hot settle merge norm synchronize drain".split():
    setattr(Mortal, _name, _mortal(_name))


@pytest.fixture
def small(monkeypatch):
    """A trace of 7 steps and 2 layers through a tiny model, and how it is run: often, so its ceilings are brief."""
    monkeypatch.setattr(ceilings, "BUDGET_S", 0.0)
    monkeypatch.setattr(ceilings, "BATCH_BYTES", 1 << 16)
    for module in (ceilings, backend_numpy):
        monkeypatch.setattr(module, "l3_bytes", lambda: 1 << 16)
    trace = Model(n_layers=2).trace([1, 1, 3, 1, 1, 2, 1])
    asked = {"policy": "lfru+guard", "slots": 3, "width": 3, "hidden": 32, "intermediate": 16, "dtype": "f32"}
    return trace, asked | {"headroom": 0, "cpu_threads": 1}


def stands(trace, asked, run):
    """Whether counters, plans and failures are those of a replay of the finished steps."""
    names = ("policy", "slots", "width", "reset", *(["miss"] if asked.get("miss") == "fetch" else []))
    law = slotwise.replay(
        trace, plan_hash=True, steps=run["timing"]["steps"], row_bytes=4 * 3 * 32 * 16,
        failures=tuple(Failure(**failure) for failure in run["failures"]), **{n: asked[n] for n in names if n in asked},
    )  # fmt: skip
    free = (*STATES, *(["bytes_moved"] if run["miss"] == "split" else []))  # what a dispatch fetched is in no plan
    assert {n: c for n, c in run["counters"].items() if n not in free and law.counters[n] != c} == {}
    assert run["plan_sha256"] == law.plan_sha256


@pytest.mark.once
@pytest.mark.parametrize("options", some([{}, {"miss": "fetch", "check": True}, {"overlap": "both", "check": True}], 1))
def test_wherever_the_device_is_lost_finished_steps_stand_and_no_thread_is_left(monkeypatch, small, options):
    trace, asked = small
    spoil(monkeypatch, Mortal)
    Mortal.left, Mortal.calls, Numbered.opened = 10**9, 0, 0
    (whole, *_) = slotwise.run(trace, plan_hash=True, **asked, **options)["runs"]
    assert whole["incomplete"] is None
    seen = set()
    for place in range(0, Mortal.calls, 1 if not (options or BRIEF) else 13):
        Mortal.left, Numbered.opened, runs = place, 0, []
        with no_thread_left(), suppress(ContextLost):  # while it opened: nothing had been measured
            runs = slotwise.run(trace, plan_hash=True, **asked, **options)["runs"]
        if not runs:
            continue
        for run in runs:
            assert run["incomplete"]["error"] == "the device fell off its bus"
            seen.add(run["incomplete"]["steps"])
        stands(trace, asked | options, runs[0])
    assert seen >= set(range(7))
    Mortal.left = 10**9


def test_a_lost_device_is_one_line_and_exit_code_1_below_the_finished_steps(monkeypatch, capsys, small, tmp_path):
    small[0].save(tmp_path / "t.parquet")
    words = ["run", str(tmp_path / "t.parquet"), "--policy", "lru", "--slots", "3", "--hidden", "32", "--dtype", "f32"]
    words += ["--intermediate", "16", "--headroom", "0"]
    spoil(monkeypatch, Mortal)
    for as_json in (True, False):
        Mortal.left, Numbered.opened = 100, 0
        assert main([*words, *(["--json"] if as_json else [])]) == FAILED
        out, err = capsys.readouterr()
        assert err.count("\n") == 1
        assert err.startswith("slotwise: broke off after ")
        assert err.endswith("finished steps, whose figures are above: the device fell off its bus\n")
        if as_json:
            (run,) = json.loads(out)["runs"]
            assert run["incomplete"]["steps"] == run["timing"]["steps"] > 0
        else:
            assert "INCOMPLETE: " in out
    Mortal.left = 10**9


def test_a_reset_that_began_the_broken_step_is_taken_back_too(monkeypatch, small):
    """Requests of two steps each: the reset before step 2 discards residents, unless step 2 never ends."""
    _, asked = small
    trace = slotwise.Trace.from_arrays(
        [[[0, 1], [2, 3]]] * 6, n_experts=8, request=[0, 0, 1, 1, 2, 2], step=range(6),
    )  # fmt: skip
    asked |= {"width": 0, "reset": "request", "policy": "lru"}
    spoil(monkeypatch, Mortal)
    Mortal.left, Mortal.calls, Numbered.opened = 10**9, 0, 0
    slotwise.run(trace, plan_hash=True, **asked)
    for place in range(9, Mortal.calls // 2):
        Mortal.left, Numbered.opened = place, 0
        (run,) = slotwise.run(trace, plan_hash=True, **asked)["runs"]
        stands(trace, asked, run)
    Mortal.left = 10**9


class Jobs(ColdChain):
    """A cold chain whose job number `left`, of all its instances together, fails in the worker."""

    left = 10**9
    count = 0

    def submit(self, *values, **options):
        Jobs.left -= 1
        Jobs.count += 1
        if Jobs.left < 0 and Jobs.left > -2:
            self.fail_next(0)
        return super().submit(*values, **options)


HALVED = {"miss": "split", "split_share": 0.5}  # as measured it would differ from run to run


@pytest.mark.parametrize("options", some([HALVED, {"miss": "cpu"}, {"overlap": "off"}], 1))
def test_wherever_a_worker_fails_finished_steps_stand_and_no_thread_is_left(monkeypatch, small, options):
    trace, asked = small
    for module in (slotwise.run.__module__, "slotwise.executor.backend_numpy"):
        monkeypatch.setattr(import_module(module), "ColdChain", Jobs)
    Jobs.left, Jobs.count = 10**9, 0
    slotwise.run(trace, **asked, **options)
    for place in range(Jobs.count):
        Jobs.left = place
        with no_thread_left():
            (run,) = slotwise.run(trace, plan_hash=True, **asked, **options)["runs"]
        assert "failed in the worker: its output is not to be used" in run["incomplete"]["error"]
        stands(trace, asked | options, run)


def test_after_a_failed_worker_an_executor_goes_on_with_the_next_step():
    """What a tick has left behind is waited for by the next one, and told once."""
    model = Model(n_layers=1)
    x, ids, weights = np.ones((1, 32), np.float32), np.array([[0, 1]], np.uint8), np.ones((1, 2), np.float32)
    with ColdChain(1) as chain:
        store = HostStore([model.layout], 8, NumpyBackend()).fill(7, chain)
        pool = slotwise.Pool("lru", n_layers=1, n_experts=8, slots=2, full=True)
        with Executor(pool, store, NumpyBackend(), chain, top_k=2, headroom_bytes=0) as executor:
            chain.fail_next(0)
            with pytest.raises(WorkerFailed, match="failed in the worker"):
                executor.forward(0, x, ids, weights)
            hits = executor.forward(0, x, ids, weights)
            executor.synchronize()
        pool = slotwise.Pool("lru", n_layers=1, n_experts=8, slots=0, full=True)
        with Executor(pool, store, NumpyBackend(), chain, top_k=2, headroom_bytes=0) as executor:
            assert executor.forward(0, x, ids, weights).tobytes() == hits.tobytes()


class Poor(NumpyBackend):
    """A machine whose allocation number `left`, of rows or of slots, is one too many."""

    left = 10**9
    count = 0

    def _take(self):
        Poor.left -= 1
        Poor.count += 1
        if Poor.left == -1:
            raise MemoryError("asked for by a test")

    def device_memory(self, n_bytes):
        self._take()
        return super().device_memory(n_bytes)

    def host_memory(self, n_bytes):
        self._take()
        return super().host_memory(n_bytes)

    def prepare(self, layouts, n_tokens, top_k):
        super().prepare(layouts, n_tokens, top_k)
        self._take()


def test_whichever_allocation_fails_while_a_run_opens_nothing_stays_open(monkeypatch, capsys, small, tmp_path):
    trace, asked = small
    opened = spoil(monkeypatch, Poor)
    options = {"miss": "fetch", "prefill": "stream"}
    Poor.left, Poor.count = 10**9, 0
    slotwise.run(trace, **asked, **options)
    count = Poor.count
    assert count > 2 * (2 + 1 + 1)
    for place in range(count):
        Poor.left = place
        opened.clear()
        with no_thread_left(), pytest.raises(MemoryError, match="asked for by a test"):
            slotwise.run(trace, **asked, **options)
        assert [backend for backend in opened if backend._memory or backend._link] == []
    Poor.left = 1
    trace.save(tmp_path / "t.parquet")
    words = ["run", str(tmp_path / "t.parquet"), "--slots", "2", "--hidden", "32", "--intermediate", "16"]
    assert main([*words, "--dtype", "f32", "--headroom", "0"]) == FAILED
    assert "not enough memory" in capsys.readouterr().err


@examples(20)
@given(place=st.integers(0, 60))
def test_an_interrupt_at_any_call_leaves_no_thread(place):
    class Interrupted(NumpyBackend):
        left = place

        def begin(self, layer, x, top_k):
            self.left -= 1
            if self.left < 0:
                signal.raise_signal(signal.SIGINT)
            return super().begin(layer, x, top_k)

    model = Model(n_layers=2)
    with no_thread_left(), pytest.raises(KeyboardInterrupt):
        carry_out(model, model.trace([1] * 40), "lru", 3, width=3, backend=Interrupted())


class Uncopied(Numbered):
    """Copies number `left` and later are refused."""

    left = 10**9

    def copy(self, copies, after=None):
        Uncopied.left -= not self.spared
        if Uncopied.left < 0:
            raise CopyRefused("asked for by a test")
        return super().copy(copies, after)


@pytest.mark.once
def test_initial_rows_that_cannot_be_copied_end_the_run_at_that_step(monkeypatch, small):
    """A static policy that warms up for 3 steps copies nothing before; then its rows must come."""
    trace, asked = small
    spoil(monkeypatch, Uncopied)
    asked |= {"policy": "static(warmup=3)", "width": 0}
    for left, steps in ((0, 3), (1, 3), (2, 7)):
        Uncopied.left, Numbered.opened = left, 0
        (run,) = slotwise.run(trace, plan_hash=True, **asked)["runs"]
        assert run["timing"]["steps"] == steps
        assert run["incomplete"]["steps"] == steps % 7 + 3 * (steps == 7)
        assert "resident from now on could not be copied: asked for by a test" in run["incomplete"]["error"]
        stands(trace, asked, run)
