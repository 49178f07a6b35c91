"""The small kernels on a GPU: the join to the byte of its twin on the host, norm, words to the host, busy time."""

import functools
import time

import numpy as np
import pytest
from cupy_cases import gpu

from slotwise.executor.cupy_small import LAST_FLAG, SmallKernels, page_locked
from slotwise.executor.merge import ABSENT, COLD, HOT, merged

pytestmark = pytest.mark.gpu


@functools.cache
def small():
    gpu()
    return SmallKernels()


def stream():
    return gpu().cuda.Stream(non_blocking=True)


@pytest.mark.parametrize(("n", "k", "hidden"), [(1, 8, 2048), (8, 8, 2048), (3, 6, 1000), (2, 1, 8)])
def test_the_join_gives_the_bytes_that_the_host_gives(n, k, hidden):
    cupy, on = gpu(), stream()
    draw = np.random.default_rng(n)
    out, weights = draw.normal(size=(n, k, hidden)).astype(np.float32), draw.random((n, k), np.float32)
    where = draw.choice([ABSENT, HOT, COLD], (n, k))
    cold = page_locked(out.nbytes).view(np.float32).reshape(out.shape)
    cold[where == COLD] = out[where == COLD]
    cold[where != COLD] = np.nan
    hot = cupy.asarray(np.where((where == HOT)[:, :, None], out, np.float32(np.nan)))
    there, y = cupy.asarray(weights), cupy.full((n, hidden), np.nan, np.float32)
    cupy.cuda.Device().synchronize()
    small().merge(on.ptr, hot.data.ptr, cold.ctypes.data, where.ravel(), there.data.ptr, y.data.ptr, n, k, hidden)
    on.synchronize()
    assert np.array_equal(y.get(), merged(out, where, weights))


def test_the_join_waits_until_the_host_has_counted_so_far():
    cupy, on = gpu(), stream()
    n, k, hidden = 2, 3, 64
    cold, counter = page_locked(4 * n * k * hidden).view(np.float32).reshape(n, k, hidden), page_locked(64)
    weights, y = cupy.ones((n, k), np.float32), cupy.zeros((n, hidden), np.float32)
    cupy.cuda.Device().synchronize()
    where, count = np.full((n, k), COLD), counter.view(np.uint32)
    count[0] = 2**32 - 2  # it wraps
    small().merge(
        on.ptr, cold.ctypes.data, cold.ctypes.data, where, weights.data.ptr, y.data.ptr, n, k, hidden,
        counter.ctypes.data, 1,
    )  # fmt: skip
    for value in (2**32 - 1, 0):
        time.sleep(0.01)
        count[0] = value
        assert not on.done
    cold[:] = 7
    count[0] = 1
    on.synchronize()
    assert (y.get() == 21).all()


def test_the_norm_has_a_mean_square_of_one():
    cupy, on = gpu(), stream()
    draw = np.random.default_rng(1)
    x, y = (draw.normal(size=(5, 2880)).astype(np.float32) for _ in range(2))
    x_there, y_there = cupy.asarray(x), cupy.asarray(y)
    cupy.cuda.Device().synchronize()
    small().norm(on.ptr, x_there.data.ptr, y_there.data.ptr, x_there.data.ptr, 5, 2880)
    on.synchronize()
    v = x.astype(np.float64) + y
    expected = v / np.sqrt((v**2).mean(axis=1, keepdims=True) + 1e-6)
    assert np.abs(x_there.get() - expected).max() < 1e-5


def test_a_host_that_sees_the_sequence_number_sees_the_words():
    cupy, on = gpu(), stream()
    board = page_locked(4096).view(np.uint32)
    for sequence in range(1, 200):
        words = cupy.full(64, 7 * sequence, np.uint32)
        cupy.cuda.get_current_stream().synchronize()
        at = board.ctypes.data
        there = words.data.ptr
        small().tell(
            on.ptr, (there, there + 128, there), (at, at + 128, at + 512), (32, 32, 64), at + 4 * 900, sequence
        )
        until = time.monotonic() + 5
        while board[900] != sequence:
            assert time.monotonic() < until, "the flag never came"
        assert (board[:64] == 7 * sequence).all()
        while board[900 + LAST_FLAG] != sequence:
            assert time.monotonic() < until, "the last flag never came"
        assert (board[128:192] == 7 * sequence).all()


def test_busy_wait_holds_the_stream_for_its_microseconds():
    cupy, on = gpu(), stream()
    small().busy_wait(on.ptr, 10)
    for us in (100, 1000, 5000):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(on)
        small().busy_wait(on.ptr, us)
        end.record(on)
        end.synchronize()
        assert us - 3 <= 1000 * cupy.cuda.get_elapsed_time(begin, end) < us + 100


def test_the_read_takes_every_byte():
    cupy, on = gpu(), stream()
    words = cupy.asarray(np.random.default_rng(0).integers(0, 2**32, 4 * 1_234_567, dtype=np.uint32))
    cupy.cuda.Device().synchronize()
    small()._sink.fill(0)
    cupy.cuda.Device().synchronize()
    small().read(on.ptr, words.data.ptr, words.nbytes)
    on.synchronize()
    assert np.bitwise_xor.reduce(small()._sink.get()) == np.bitwise_xor.reduce(words.get())
