"""The launch from compiled code, with the driver's functions played by ones that write down their calls."""

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.executor.cupy_hot import WORK
from slotwise.executor.cupy_launch import FITS_NOT, UNIT, Launch, address_of
from slotwise.executor.cupy_program import MAX_PAIRS, MAX_ROWS

GRAPHS = np.array([[1, 10, 11, 12, 13, 14], [2, 20, 21, 22, 23, 24], [8, 80, 81, 82, 83, 84]], np.int64)
STREAM, X, OUT = 99, 1000, 2000


class Driver:
    """Its calls in order; `answers` are the error codes of the first of them, 0 later."""

    def __init__(self, answers=()):
        self.calls, self._answers = [], list(answers)

    def _function(self, name, n_words):
        def called(*words):
            self.calls.append((name, *words))
            return self._answers.pop(0) if self._answers else 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * n_words)(called)

    def launch(self, work):
        self._held = [self._function(*each) for each in (("set", 3), ("launch", 2), ("record", 2))]
        where = dict(zip(("set_node", "launch", "record"), map(address_of, self._held), strict=True))
        return Launch(work, GRAPHS, **where)


def rows_of(counts, addresses):
    offsets = np.cumsum([0, *counts])
    pairs = np.arange(offsets[-1])
    return np.array(addresses, np.int64), offsets.astype(np.int64), pairs % 7, pairs[::-1].copy()


@pytest.mark.once
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**20)), min_size=1, max_size=MAX_ROWS + 2))
def test_what_the_driver_is_given_is_what_the_rows_say(rows):
    counts, at = zip(*rows, strict=True)
    addresses = [7 * 2**30 + UNIT * each for each in at]
    work, driver = np.zeros(1, WORK), Driver()
    arrays = rows_of(counts, addresses)
    answer = driver.launch(work).start(STREAM, *arrays, X, OUT, 5, 6, 7)
    if len(rows) > MAX_ROWS or sum(counts) > MAX_PAIRS or max(counts) > 8:
        assert answer == FITS_NOT
        assert driver.calls == []
        return
    assert answer == 0
    _, graph, *nodes = next(row for row in GRAPHS.tolist() if max(counts) <= row[0])
    assert driver.calls == [
        ("set", graph, *nodes[:2]), ("set", graph, *nodes[2:]), ("record", 5, STREAM), ("launch", graph, STREAM),
        ("record", 6, STREAM), ("record", 7, STREAM),
    ]  # fmt: skip
    told, n, pairs = work[0], len(rows), sum(counts)
    assert (told["x"], told["out"], told["slots"], told["rows"]) == (X, OUT, min(addresses), n)
    assert (told["slots"] + UNIT * told["slot"][:n].astype(np.int64)).tolist() == addresses
    assert told["first"][: n + 1].tolist() == arrays[1].tolist()
    assert told["token"][:pairs].tolist() == arrays[2].tolist()
    assert told["to"][:pairs].tolist() == arrays[3].tolist()


def test_without_events_none_is_recorded():
    driver = Driver()
    assert driver.launch(np.zeros(1, WORK)).start(STREAM, *rows_of([1], [UNIT]), X, OUT) == 0
    assert [name for name, *_ in driver.calls] == ["set", "set", "launch"]


@pytest.mark.parametrize("failing", range(6))
def test_the_first_error_is_answered_and_nothing_is_called_after_it(failing):
    driver = Driver([0] * failing + [700])
    assert driver.launch(np.zeros(1, WORK)).start(STREAM, *rows_of([1, 1], [0, UNIT]), X, OUT, 5, 6, 7) == 700
    assert len(driver.calls) == failing + 1


def test_rows_too_far_apart_for_32_bits_are_not_wrapped():
    driver = Driver()
    far = rows_of([1, 1], [0, UNIT * 2**32])
    assert driver.launch(np.zeros(1, WORK)).start(STREAM, *far, X, OUT) == FITS_NOT
    near = rows_of([1, 1], [0, UNIT * (2**32 - 1)])
    assert driver.launch(np.zeros(1, WORK)).start(STREAM, *near, X, OUT) == 0
