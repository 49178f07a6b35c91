"""The copy engine on a GPU: the same bytes land whichever way rows are copied; tickets say when."""

import numpy as np
import pytest
from cupy_cases import gpu, no_allocations

from slotwise.executor.cupy_copies import WAYS, CopyEngine, CopyFailed
from slotwise.executor.cupy_small import SmallKernels, page_locked
from slotwise.executor.errors import BadExecutor

pytestmark = pytest.mark.gpu
ROW = 40_000


def store(rows):
    memory = page_locked(rows * ROW).reshape(rows, ROW)
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.shape, np.uint8)
    return memory


@pytest.mark.parametrize("how", WAYS)
def test_rows_land_byte_for_byte_however_they_are_copied(how):
    cupy, rows = gpu(), store(20)
    there = cupy.full((25, ROW), 0xEE, np.uint8)
    cupy.cuda.Device().synchronize()
    with CopyEngine(how=how) as engine:
        assert engine.how == how
        first = engine.submit(
            [int(there[i].data.ptr) for i in (3, 9, 24)], [rows[i].ctypes.data for i in (7, 0, 19)], [ROW, 100, ROW]
        )
        second = engine.submit([int(there[9].data.ptr) + 100], [rows[1].ctypes.data], [ROW - 100])
        engine.wait(second)
        assert engine.landed(first)
        assert engine.landed(second)
    found, expected = there.get(), np.full((25, ROW), 0xEE, np.uint8)
    expected[3], expected[24], expected[9, :100], expected[9, 100:] = rows[7], rows[19], rows[0, :100], rows[1, :-100]
    assert np.array_equal(found, expected)


def test_a_stream_that_is_held_reads_what_landed_and_the_host_does_not_wait():
    cupy, rows = gpu(), store(64)
    there, seen = cupy.zeros((64, ROW), np.uint8), cupy.zeros((64, ROW), np.uint8)
    reader = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with CopyEngine() as engine:
        ticket = engine.submit([int(row.data.ptr) for row in there], [row.ctypes.data for row in rows], [ROW] * 64)
        engine.hold(reader.ptr, ticket)
        seen.data.copy_from_device_async(there.data, there.nbytes, reader)
        reader.synchronize()
    assert np.array_equal(seen.get(), rows)


def test_copies_that_are_held_wait_for_the_last_reader_of_a_slot():
    cupy, rows, small = gpu(), store(1), SmallKernels()
    there, seen = cupy.full(ROW, 0x11, np.uint8), cupy.zeros(ROW, np.uint8)
    reader, read = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    cupy.cuda.Device().synchronize()
    with CopyEngine() as engine:
        small.busy_wait(reader.ptr, 20_000)  # a slow reader: the copy is submitted long before it has read
        seen.data.copy_from_device_async(there.data, there.nbytes, reader)
        read.record(reader)
        engine.hold_copies(read.ptr)
        ticket = engine.submit([int(there.data.ptr)], [rows.ctypes.data], [ROW])
        assert not engine.landed(ticket)
        engine.wait(ticket)
    assert (seen.get() == 0x11).all()
    assert np.array_equal(there.get(), rows[0])


def test_submissions_allocate_nothing_on_the_device():
    cupy, rows = gpu(), store(8)
    there = cupy.zeros((8, ROW), np.uint8)
    to, source = [int(row.data.ptr) for row in there], [row.ctypes.data for row in rows]
    with CopyEngine() as engine:
        engine.wait(engine.submit(to, source, [ROW] * 8))
        with no_allocations():
            for _ in range(300):
                engine.wait(engine.submit(to, source, [ROW] * 8))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_batch_that_fails_says_whether_rows_may_be_on_their_way_and_the_next_one_lands(after):
    cupy, rows = gpu(), store(3)
    there = cupy.zeros((3, ROW), np.uint8)
    batch = [int(row.data.ptr) for row in there], [row.ctypes.data for row in rows], [ROW] * 3
    with CopyEngine() as engine:
        engine.fail_next(after)
        with pytest.raises(CopyFailed) as failed:
            engine.submit(*batch)
        assert failed.value.doubtful == (after > 0)
        engine.stream.synchronize()
        assert [bool(row.any()) for row in there.get()] == [i < after for i in range(3)]
        engine.wait(engine.submit(*batch))
    assert np.array_equal(there.get(), rows)


def test_wrong_batches_and_tickets_are_refused_with_the_rule():
    gpu()
    with pytest.raises(BadExecutor, match="how='fast' of the copies: batch, batch_12_8, loop"):
        CopyEngine(how="fast")
    with CopyEngine(batch_rows=8, tickets=4) as engine:
        with pytest.raises(BadExecutor, match="9 rows in one batch: 1 to 8"):
            engine.submit([0] * 9, [0] * 9, [0] * 9)
        with pytest.raises(BadExecutor, match="0 rows in one batch"):
            engine.submit([], [], [])
        with pytest.raises(BadExecutor, match="ticket 2: the last is 1"):
            engine.landed(2)
