"""Loops that host figures come from: every kind of tick is met, and each is what it is called."""

from contextlib import closing

import numpy as np
import pytest
from cold_cases import built

from slotwise.calibrate import layout_of
from slotwise.executor.backend import make_backend
from slotwise.executor.calibration_loops import WARM_STEPS, Loop, Mix, _drawn, of_kind, run_loop
from slotwise.executor.cold import ColdChain
from slotwise.executor.executor import Executor
from slotwise.executor.store import HostStore
from slotwise.executor.transfers import Transfers

KINDS = {Mix(): 0.2, Mix(4): 0.3, Mix(3, 1): 0.3, Mix(0, 4): 0.1, Mix(4, ahead=2): 0.1}
STEPS, LAYERS = 12, 4


@pytest.fixture
def looped(tmp_path):
    if not built():
        pytest.skip("the cold chain was not built")

    def run(loop):
        with ColdChain(1) as chain, closing(make_backend("numpy")) as kept:
            store = HostStore([layout_of("tiny", None, None, None)] * LAYERS, 32, kept).fill(0, chain)
            return run_loop(
                loop, lambda: make_backend("numpy"), store, chain, tmp_path, top_k=4, link_pad=0, steps=STEPS,
                random=np.random.default_rng(0),
            )  # fmt: skip

    return run


@pytest.fixture
def plans(monkeypatch):
    """(hits, misses, loads) of every tick, in order."""
    seen = []
    sort = Executor._sort

    def told(self, plan, layer, ids=None):
        work = sort(self, plan, layer, ids)
        if ids is not None:
            seen.append((work.n_hits, work.n_misses, len(work.loads)))
        return work

    monkeypatch.setattr(Executor, "_sort", told)
    return seen


@pytest.mark.parametrize("max_loads", [0, 4])
def test_ticks_are_of_the_kind_that_they_are_called(looped, plans, max_loads):
    found = looped(Loop(KINDS, max_loads=max_loads))
    counted = np.array(plans).reshape(WARM_STEPS + STEPS, LAYERS, 3)[WARM_STEPS:, :-1].reshape(-1, 3)
    assert len(found.kind) == STEPS * (LAYERS - 1)
    assert set(found.kind) == set(range(len(KINDS)))
    for kind, (hits, misses, loads) in zip(found.kind, counted.tolist(), strict=True):
        mix = list(KINDS)[kind]
        assert (hits, misses) == (mix.hits, mix.misses)
        most = max(max_loads, 2)  # predictions are loads, too: a pool has one limit for both
        assert loads == min(mix.misses, most)


def test_the_host_s_parts_of_a_tick_are_within_its_period(looped):
    found = looped(Loop(KINDS))
    parts = found.policy + found.start + found.merge
    assert (parts > 0).all()
    assert (parts < found.period).all()


def test_dense_time_is_part_of_every_period(looped):
    assert (looped(Loop({Mix(4): 1.0}, dense_us=2000.0)).period > 2e-3).all()


def test_rows_under_way_leave_the_ticks_as_they_are(looped, plans, monkeypatch):
    moved = []
    fill = Transfers.fill
    monkeypatch.setattr(Transfers, "fill", lambda self, loads: (moved.append(len(loads)), fill(self, loads)))
    found = looped(Loop(KINDS, crossed=40))
    assert moved.count(40) == WARM_STEPS + STEPS, "more rows than slots, once a step of so few layers"
    assert len(found.kind) == STEPS * (LAYERS - 2), "the first layer comes before the copies"
    assert set(found.kind) == set(range(len(KINDS)))
    counted = np.array(plans).reshape(WARM_STEPS + STEPS, LAYERS, 3)[WARM_STEPS:, 1:-1].reshape(-1, 3)
    assert [list(KINDS)[kind][:2] for kind in found.kind] == [(hits, misses) for hits, misses, _ in counted.tolist()]


def test_seconds_of_a_kind_come_from_all_turns(looped):
    loop = Loop({Mix(): 0.5, Mix(4): 0.5})
    turns = [looped(loop), looped(loop)]
    assert len(of_kind(turns, Mix(4), loop, "period")) == sum((turn.kind == 1).sum() for turn in turns)


def test_a_rare_kind_is_drawn_once_at_least():
    for seed in range(50):
        found = _drawn([0.99, 0.01], (WARM_STEPS + 4, 4), [1, 2], np.random.default_rng(seed))
        assert (found[WARM_STEPS:, 1:-1] == 1).any()
