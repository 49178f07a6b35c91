"""The cold chain beside its jobs: options refused in words, memory filled and copied, how to get the extension."""

import numpy as np
import pytest
from cold_cases import needs_native
from conftest import python

from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.cores import physical_cores, usual_threads
from slotwise.executor.errors import BadExecutor


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, "threads=0: from 1 to 1024"),
        ({"threads": 2, "cores": [0]}, "1 cores for 2 threads: give one core for each thread"),
        ({"spin_us": -1}, "spin_us=-1: microseconds from 0 to 1000000"),
        ({"activations": "int4"}, "activations='int4': float32 or int8"),
    ],
)
def test_a_wrong_option_is_refused(options, words):
    with pytest.raises(BadExecutor, match=words):
        ColdChain(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "relu"}, "no activation 'relu'; the executor computes swiglu, geglu, swiglu_clamped"),
        ({"hidden": 100}, "100 weights in Q8_0: an output row must be whole blocks of 32"),
        ({"limit": float("nan")}, "limit=nan of the activation: it must be finite"),
        ({"dtypes": ("f32", "f32")}, "give three, of gate, up and down"),
    ],
)
def test_a_wrong_layout_is_refused(options, words):
    with pytest.raises(BadExecutor, match=words):
        RowLayout(**{"hidden": 64, "inner": 32, "dtypes": ("Q8_0",) * 3, **options})


def test_a_row_is_laid_out_without_gaps_and_with_its_biases_at_the_end():
    """Q8_0: 64 weights are 68 bytes, 32 are 34; gate and up have 32 such rows, down 64; biases 4 bytes each."""
    layout = RowLayout(64, 32, ("Q8_0",) * 3)
    assert (layout.starts, layout.row_bytes) == ((0, 2176, 4352), 6528)
    biased = RowLayout(64, 32, ("Q8_0",) * 3, biases=True)
    assert (biased.bias_starts, biased.row_bytes) == ((6528, 6656, 6784), 7040)


def test_physical_cores_are_among_those_that_this_process_may_use():
    import os

    assert set(physical_cores()) <= os.sched_getaffinity(0)
    assert physical_cores()


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (8, 6), (16, 13), (32, 27)])
def test_usual_threads_leave_cores_to_the_caller_and_to_what_else_runs(monkeypatch, cores, threads):
    monkeypatch.setattr("slotwise.executor.cores.physical_cores", lambda: tuple(range(cores)))
    assert usual_threads() == threads


def test_a_chain_that_is_not_open_says_so():
    with pytest.raises(BadExecutor, match="not open: call open"):
        ColdChain(1).wait(1)


def test_without_the_extension_the_error_names_the_remedy_and_the_rest_can_be_imported():
    told = python(
        "import sys; sys.modules['slotwise.executor._cold'] = None\n"
        "from slotwise.executor.cold import ColdChain, RowLayout\n"
        "RowLayout(64, 32, ('bf16',) * 3)\n"
        "try: ColdChain(1).open()\nexcept ValueError as error: print(type(error).__name__, error)"
    )
    assert told.startswith(
        "BadExecutor the cold chain needs the extension slotwise.executor._cold, which was not built"
    )
    assert "install a C compiler and the headers of this Python" in told


@needs_native
def test_what_the_machine_lacks_is_refused_at_opening():
    with pytest.raises(BadExecutor, match=r"variant 'sse9': this processor runs .*plain"):
        ColdChain(1, variant="sse9").open()
    with pytest.raises(BadExecutor, match=r"cores \[9999\]: this process may run on \["):
        ColdChain(1, cores=[9999]).open()


@needs_native
def test_rounded_activations_need_multiples_of_32_and_a_second_opening_is_refused():
    with ColdChain(1, activations="int8") as chain:
        with pytest.raises(
            BadExecutor, match="hidden=70, inner=32 with activations='int8': both must be multiples of 32"
        ):
            chain.layer(RowLayout(70, 32, ("f32",) * 3))
        with pytest.raises(BadExecutor, match="open already"):
            chain.open()


@needs_native
def test_memory_helpers_give_the_same_bytes_for_any_number_of_threads():
    filled = []
    for threads in (1, 3):
        with ColdChain(threads) as chain:
            memory, twin = np.empty(300_001, np.float32), np.empty(300_001, np.float32)
            chain.fill_normal(memory, "f32", seed=7, sigma=2.0)
            chain.copy(twin, memory)
            assert twin.tobytes() == memory.tobytes()
            halves = np.empty(300_001, np.float16)
            chain.fill_normal(halves, "f16", seed=7, sigma=2.0)
            assert (halves == memory.astype(np.float16)).all()
            filled.append(memory)
    assert filled[0].tobytes() == filled[1].tobytes()
    assert abs(filled[0].mean()) < 0.02
    assert abs(filled[0].std() - 2) < 0.02
    assert 7 < np.abs(filled[0]).max() < 10  # 4 sigma and a little, as for a normal draw of this size
