"""The worker of the cold chain: jobs in order, failures told, nothing left behind, whatever comes when."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from cold_cases import inputs, job, needs_native, some_row
from conftest import python
from executor_cases import no_thread_left
from hypothesis import given
from hypothesis import strategies as st

from slotwise.executor.cold import ColdChain, RowLayout
from slotwise.executor.errors import BadExecutor

pytestmark = needs_native
LAYOUT = RowLayout(64, 32, ("bf16", "bf16", "bf16"))
ROWS = [some_row(LAYOUT, seed) for seed in range(4)]
X = inputs(4, 64)


def submit(chain, layer, pick, tokens):
    out = np.full((len(tokens), 64), np.nan, np.float32)
    return chain.submit(layer, *job([ROWS[pick]], [tokens]), X, out), out


@pytest.fixture(scope="module")
def expected():
    with ColdChain(1) as chain:
        layer = chain.layer(LAYOUT)
        found = {}
        for pick in range(4):
            ticket, out = submit(chain, layer, pick, [0, 1, 2, 3])
            chain.wait(ticket)
            found[pick] = out
    return found


ACTIONS = st.tuples(
    st.sampled_from(["submit", "fail", "wait", "done", "read", "empty"]),
    st.integers(0, 99),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
)


@given(threads=st.integers(1, 3), spin_us=st.sampled_from([0, 1, 200]), actions=st.lists(ACTIONS, max_size=100))
def test_random_submits_waits_failures_and_closes_leave_the_right_bytes(expected, threads, spin_us, actions):
    with no_thread_left():
        act(expected, ColdChain(threads, spin_us=spin_us).open(), actions)


def act(expected, chain, actions):
    """Carries out the actions on an open chain, holds every output to what is expected, and closes it."""
    layer = chain.layer(LAYOUT)
    pending, failing = {}, set()
    for action, number, tokens in actions:
        if action in ("submit", "fail"):
            if action == "fail":
                chain.fail_next(0)
            ticket, out = submit(chain, layer, number % 4, tokens)
            pending[ticket] = number % 4, tokens, out
            if action == "fail":
                failing.add(ticket)
        elif action == "empty":
            chain.wait(chain.submit(layer, *job([], []), X, np.empty((0, 64), np.float32)))
        elif action == "read":
            memory = np.arange(5000, dtype=np.uint64)
            assert chain.read(memory) == np.bitwise_xor.reduce(memory)
        elif pending:
            ticket = sorted(pending)[number % len(pending)]
            if action == "done":
                assert chain.done(ticket) in (True, False)
                continue
            pick, tokens, out = pending.pop(ticket)
            if ticket in failing:
                with pytest.raises(RuntimeError, match=f"job {ticket} failed"):
                    chain.wait(ticket)
                chain.wait(ticket)  # told once
            else:
                chain.wait(ticket)
                assert chain.done(ticket)
                assert out.tobytes() == expected[pick][tokens].tobytes()
    unseen = len(failing & pending.keys())
    if unseen:
        with pytest.raises(RuntimeError, match=f"{unseen} jobs failed that nobody waited for, the first was job"):
            chain.close()
    else:
        chain.close()
    chain.close()
    for ticket, (pick, tokens, out) in pending.items():  # closing has finished them
        if ticket not in failing:
            assert out.tobytes() == expected[pick][tokens].tobytes()


def test_a_hundred_jobs_queued_before_the_close_are_all_finished(expected):
    with ColdChain(2, spin_us=0) as chain:
        layer = chain.layer(LAYOUT)
        outs = [submit(chain, layer, at % 4, [0, 1, 2, 3])[1] for at in range(100)]
    assert all(out.tobytes() == expected[at % 4].tobytes() for at, out in enumerate(outs))


def test_a_failure_in_the_middle_of_a_job_is_told_and_the_next_job_is_right(expected):
    with ColdChain(2) as chain:
        layer = chain.layer(LAYOUT)
        for piece in range(2):  # of gate and up, of down
            chain.fail_next(piece)
            broken, _ = submit(chain, layer, 0, [0])
            sound, out = submit(chain, layer, 1, [0, 1, 2, 3])
            chain.wait(sound)
            assert out.tobytes() == expected[1].tobytes()
            with pytest.raises(RuntimeError, match="failed in the worker: its output is not to be used"):
                chain.wait(broken)


def test_the_worker_keeps_the_arrays_of_a_job_that_nobody_else_holds(expected):
    import gc
    import weakref

    with ColdChain(1, spin_us=0) as chain:
        layer = chain.layer(LAYOUT)
        x, out = X.copy(), np.empty((1, 64), np.float32)
        gone = weakref.ref(out)
        ticket = chain.submit(layer, *job([ROWS[0]], [[0]]), x, out)
        del x, out
        gc.collect()
        assert gone() is not None
        chain.wait(ticket)
        gc.collect()
        assert gone() is None


def test_several_python_threads_share_one_chain(expected):
    wrong = []

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(100):
            pick, tokens = int(draw.integers(4)), draw.integers(0, 4, 3).tolist()
            ticket, out = submit(chain, layer, pick, tokens)
            chain.wait(ticket)
            if out.tobytes() != expected[pick][tokens].tobytes():
                wrong.append((pick, tokens))

    with ColdChain(2, spin_us=5) as chain:
        layer = chain.layer(LAYOUT)
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert wrong == []


SETTING = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np
from cold_cases import *
layout = RowLayout(512, 512, ("bf16",) * 3)
row, x, out = some_row(layout, 0), inputs(4, 512), np.empty((400, 512), np.float32)
arrays = job([row] * 100, [[0, 1, 2, 3]] * 100)
"""


def in_a_fresh_process(script):
    return python(SETTING.format(tests=str(Path(__file__).parent)) + script)


def test_an_interpreter_that_ends_without_closing_finishes_its_jobs_and_does_not_hang():
    assert in_a_fresh_process(
        "chain = ColdChain(2, spin_us=1e6).open(); layer = chain.layer(layout)\n"
        "for _ in range(20): chain.submit(layer, *arrays, x, out)\nprint('end')"
    ) == "end\n"  # fmt: skip


def test_a_chain_that_is_dropped_joins_its_threads():
    assert in_a_fresh_process(
        "import gc\nfrom executor_cases import no_thread_left\nbefore = len(os.listdir('/proc/self/task'))\n"
        "with no_thread_left():\n"
        "    chain = ColdChain(3).open(); chain.submit(chain.layer(layout), *arrays, x, out)\n"
        "    print(len(os.listdir('/proc/self/task')) - before)\n    del chain; gc.collect()"
    ) == "3\n"  # fmt: skip


def test_a_forked_child_is_told_and_ends_while_the_parent_goes_on():
    assert (
        in_a_fresh_process("""
chain = ColdChain(2).open()
layer = chain.layer(layout)
ticket = chain.submit(layer, *arrays, x, out)
child = os.fork()
if not child:
    try:
        chain.submit(layer, *arrays, x, out)
    except RuntimeError as told:
        assert "before a fork" in str(told)
        with ColdChain(1) as own:
            own.wait(own.submit(own.layer(layout), *arrays, x, out))
        sys.exit(7)  # the finalisers of the parent's chain run here too
chain.wait(ticket)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
        == "7\n"
    )


def test_waiting_lets_other_python_threads_run():
    """The other looks again and again: before the wait it may do so twice, while it lasts a hundred times."""
    with ColdChain(1, spin_us=0) as chain:
        layout = RowLayout(512, 512, ("bf16",) * 3)
        row, x, out = some_row(layout, 0), inputs(4, 512), np.empty((8000, 512), np.float32)
        arrays = job([row] * 2000, [[0, 1, 2, 3]] * 2000)

        def looks():
            """How often another thread saw the job at work while this one waited for it."""
            seen, over = [], threading.Event()
            ticket = chain.submit(chain.layer(layout), *arrays, x, out)

            def look():
                while not over.wait(1e-3):
                    seen.append(chain.done(ticket))

            other = threading.Thread(target=look)
            other.start()
            chain.wait(ticket)
            over.set()
            other.join()
            return seen.count(False)

        assert any(looks() >= 8 for _ in range(50))  # once is enough: others may want the processors too


def test_pinned_threads_stay_on_their_cores():
    core = sorted(os.sched_getaffinity(0))[-1]
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    with ColdChain(1, cores=[core]) as chain:
        chain.read(np.zeros(100))
        mine = {task.name for task in Path("/proc/self/task").iterdir()} - before
        assert [os.sched_getaffinity(int(task)) for task in mine] == [{core}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offsets": [0, 1, 1]}, "3 offsets for 1 rows: there must be one more than rows"),
        ({"offsets": [0, 2]}, "offsets must rise from 0 to the number of tokens, 1"),
        ({"tokens": [4]}, "token 4 of pair 0: x has tokens 0 to 3"),
        ({"tokens": [-1]}, "token -1 of pair 0"),
        ({"rows": [0]}, "row 0 has the address 0"),
    ],
)
def test_a_wrong_job_is_refused_in_words_and_the_chain_goes_on(expected, change, words):
    arrays = dict(zip(("rows", "offsets", "tokens"), job([ROWS[0]], [[0]]), strict=True))
    wrong = arrays | {name: np.array(values, np.int64) for name, values in change.items()}
    out = np.empty((1, 64), np.float32)
    with ColdChain(1) as chain:
        layer = chain.layer(LAYOUT)
        with pytest.raises(BadExecutor, match=words):
            chain.submit(layer, *wrong.values(), X, out)
        chain.wait(chain.submit(layer, *arrays.values(), X, out))
    assert out.tobytes() == expected[0][:1].tobytes()


def test_wrong_arrays_are_refused_in_words():
    arrays = job([ROWS[0]], [[0]])
    out = np.empty((1, 64), np.float32)
    with ColdChain(1) as chain:
        layer = chain.layer(LAYOUT)
        for x, y, words in [
            (X.astype(np.float64), out, "x is float64 and out is float32: both must be float32"),
            (X[:, :32], out, r"x has the shape \(4, 32\): the layer takes \[n, 64\]"),
            (np.zeros((4, 128), np.float32)[:, ::2], out, "contiguous"),
            (X, np.empty((0, 64), np.float32), "place 0 of pair 0: out has rows 0 to -1"),
        ]:
            with pytest.raises(BadExecutor, match=words):
                chain.submit(layer, *arrays, x, y)
        with pytest.raises(BadExecutor, match="rows has items of 4 bytes: pass a contiguous array of int64"):
            chain.submit(layer, arrays[0].astype(np.int32), *arrays[1:], X, out)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="ticket 99: this chain gave out tickets 1 to 0"):
            chain.wait(99)
        with pytest.raises(BadExecutor, match="it fills f32, f16 and bf16"):
            chain.fill_normal(out, "Q8_0", 1)
        with pytest.raises(BadExecutor, match="with gaps"):
            chain.read(np.zeros((4, 4))[:, ::2])
    with pytest.raises(RuntimeError, match="the cold chain is closed: open another"):
        chain.submit(layer, *arrays, X, out)
