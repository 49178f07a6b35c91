"""The rules of the look-ahead path, on a backend that writes down every call."""

import numpy as np
import pytest
from executor_cases import Model

import slotwise
from slotwise.executor.backend_null import NullBackend
from slotwise.executor.cold import ColdChain
from slotwise.executor.errors import ExecutorWarning
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.policies import Pool

WAITS = {"settle", "synchronize", "drain", "read"}


@pytest.fixture
def made():
    """A function that makes an executor on a null backend, and its calls; everything is closed at the end."""
    opened = []

    def make(*, width=4, slots=4, model=None, **options):
        model, backend = model or Model(), NullBackend()
        chain = ColdChain(1).open()
        store = HostStore([model.layout] * model.n_layers, model.n_experts, backend)
        pool = Pool("lru", n_layers=model.n_layers, n_experts=model.n_experts, slots=slots, width=width, full=True)
        executor = Executor(pool, store, backend, chain, top_k=model.top_k, headroom_bytes=0, **options)
        opened.append((executor, chain))
        backend.calls.clear()
        return executor, backend.calls

    yield make
    for executor, chain in opened:
        executor.close()
        chain.close()


def forward(executor, layer, ids, predicted=None):
    x = np.ones((1, executor.store.layouts[0].hidden), np.float32)
    ahead = None if predicted is None else np.array([predicted], np.uint8)
    executor.forward(layer, x, np.array([ids], np.uint8), np.ones((1, 2), np.float32), ahead)


def told(call):
    """A recorded call without what differs between two stores: where rows lie in host memory."""
    name, what = call
    return (name, [(copy.target, copy.n_bytes) for copy in what]) if name == "copy" else call


def test_width_0_leaves_the_calls_of_a_step_as_they_are_without_predictions(made):
    with_predictions, calls = made(width=0)
    without, others = made(width=0)
    for layer in range(3):
        forward(with_predictions, layer, [0, 1], [2, 3, 4, 5])
        forward(without, layer, [0, 1])
    assert [told(call) for call in calls] == [told(call) for call in others]
    assert with_predictions.pool.counters["predictions"] == 0


def test_speculation_of_a_tick_is_one_batch_behind_the_demands_and_the_host_waits_for_nothing(made):
    executor, calls = made()
    forward(executor, 0, [0, 1], [2, 3, 4, 5])
    batches = [len(copies) for name, copies in calls if name == "copy"]
    assert batches == [2, 4]
    names = [name for name, _ in calls]
    assert names.index("merge") > max(i for i, name in enumerate(names) if name == "copy")
    assert not WAITS & set(names)
    assert names.count("host") == 1  # the only wait of a layer: ids and predictions reach the host together


@pytest.mark.parametrize(("tokens", "waits"), [(8, False), (9, True)])
def test_steps_over_the_batch_gate_compute_one_chain_after_the_other(made, tokens, waits):
    executor, calls = made()
    x, ids = np.ones((tokens, executor.store.layouts[0].hidden), np.float32), np.array([[0, 1]] * tokens, np.uint8)
    for _ in range(2):  # the second step hits
        executor.forward(0, x, ids, np.ones((tokens, 2), np.float32))
    names = [name for name, _ in calls]
    assert ("settle" in names[names.index("hot") :]) == waits


def test_one_call_a_row_only_if_it_is_asked_for(made):
    executor, calls = made(spec_chunk=1)
    forward(executor, 0, [0, 1], [2, 3, 4, 5])
    assert [len(copies) for name, copies in calls if name == "copy"] == [2, 1, 1, 1, 1]


def test_slots_of_the_demand_are_never_the_target_of_its_look_ahead_in_a_global_pool(made):
    model, backend = Model(), NullBackend()
    with ColdChain(1) as chain:
        store = HostStore([model.layout] * 3, 8, backend)
        pool = Pool("lru", n_layers=3, n_experts=8, slots=3, width=4, scope="global", full=True)
        with Executor(pool, store, backend, chain, top_k=2, headroom_bytes=0) as executor:
            for step in range(20):
                for layer in range(3):
                    backend.calls.clear()
                    forward(executor, layer, [step % 8, (step + layer + 1) % 8], [1, 5, 6, 2])
                    read = {row for name, rows in backend.calls if name == "hot" for row in rows}
                    written = {copy.target for name, copies in backend.calls if name == "copy" for copy in copies}
                    assert not read & written


def test_ids_that_are_no_experts_are_ignored(made):
    executor, _ = made()
    forward(executor, 0, [0, 1], [200, 255, 9, 3])
    counters = executor.pool.counters
    assert (counters["predictions"], counters["invalid"], counters["loads_speculative"]) == (3, 2, 1)


def test_predictions_beyond_the_last_layer_are_nobodys(made):
    executor, _ = made()
    forward(executor, 2, [0, 1], [2, 3, 4, 5])
    assert executor.pool.counters["predictions"] == 0


def test_a_layer_whose_rows_are_not_cached_is_skipped_with_one_warning(made):
    """Layer 1 has no slots: what is predicted for it is dropped, nothing is copied, and the others go on."""
    with pytest.warns(ExecutorWarning, match=r"layers \[1\] have no slots: look-ahead skips them") as said:
        executor, calls = made(slots=[4, 0, 4])
    assert len(said) == 1
    for _ in range(3):
        for layer in range(3):
            forward(executor, layer, [0, 1], [2, 3, 4, 5])
    assert executor.pool.counters["dropped_no_victim"] == 3 * 4
    targets = {copy.target for name, copies in calls if name == "copy" for copy in copies}
    assert targets == {executor.slots.address(layer, slot) for layer in (0, 2) for slot in range(4)} - {
        executor.slots.address(0, slot)
        for slot in (2, 3)  # nobody predicts for layer 0
    }
    for slots in (0, [0, 0, 0]):
        with pytest.raises(slotwise.BadPolicy, match="width 4 with 0 slots"):
            made(slots=slots)


def test_nothing_is_allocated_on_the_device_after_opening(made):
    executor, calls = made(miss="fetch")
    for step in range(5):
        for layer in range(3):
            forward(executor, layer, [step % 8, (step + 3) % 8], [1, 2, 3, 4])
    assert "device_memory" not in {name for name, _ in calls}
