"""The guard's published scenario, three slots, through the pool that a live engine calls."""

import numpy as np

import slotwise

A, B, C, D = 0, 1, 2, 3


def ids(*chosen):
    return np.array(chosen, np.uint8)


def test_the_guard_scenario_through_the_live_pool():
    pool = slotwise.Pool("lfru+guard", n_layers=1, n_experts=4, slots=3)
    for chosen in ([A, B, C], [A, B, C], [A]):
        pool.step(0, ids(*chosen))
    assert pool.prefetch(0, ids(D)).drops.tolist() == [D]
    assert pool.counters["dropped_guard"] == 1
    assert pool.counters["loads_speculative"] == pool.counters["evictions"] == 0
    assert pool.step(0, ids(A)).hits.tolist() == [A]


def test_the_guard_gives_way_through_the_live_pool():
    pool = slotwise.Pool("lfru+guard", n_layers=1, n_experts=4, slots=3)
    for chosen in ([A, B, C], [A, B], [A]):
        pool.step(0, ids(*chosen))
    plan = pool.prefetch(0, ids(D))
    assert plan.evictions == [(0, C, 2)]
    assert [tuple(load) for load in plan.loads] == [(0, D, 2, True)]
    pool.step(0, ids(D))
    assert pool.counters["prefetch_hits"] == 1
