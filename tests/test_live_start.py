"""Live pools where a call is missing: before the first step, at skipped layers, between a reset and the next step."""

import json

import numpy as np
import pytest

import slotwise
from slotwise import BadPolicy, Pool

ANY = {"n_layers": 2, "n_experts": 8, "slots": 2}


def ids(*chosen):
    return np.array(chosen, np.uint8)


def counted(pool):
    return {name: n for name, n in pool.counters.items() if n}


def bulk(trace, *how, **options):
    counters = slotwise.replay(trace, *how, **options).counters
    return {name: n for name, n in counters.items() if n and not name.startswith("bytes")}


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "p.json"
    counts = [[3, 2, 1, 0]] * 3
    path.write_text(json.dumps({"format": "slotwise.profile", "version": 1, "counts": counts, "traces": []}))
    return path


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize(
    "policy",
    ["static(profile={})", "lru+pin(profile={}, n=1)", "static(warmup=1)", "static(warmup=1)+pin(profile={}, n=1)"],
)
def test_rows_from_the_start_are_there_at_skipped_layers_and_before_the_first_step(profile, policy, scope):
    """Layer 1 is never called. What is there from the start is named by the first plan of its pool, once."""
    policy = policy.format(profile)
    shape = {"n_layers": 3, "n_experts": 4, "slots": 2, "scope": scope}
    trace = slotwise.Trace.from_arrays(np.array([[[0], [-1], [1]]] * 3), n_experts=4)
    asked, pool = Pool(policy, **shape), Pool(policy, **shape)
    initial = [] if policy == "static(warmup=1)" else [0] if "pin" in policy or scope == "global" else [0, 1]
    assert [asked.residents(0), list(asked.slots_of(0))] == [initial, initial]
    named = []
    for each in (asked, pool):
        plans = [each.step(layer, ids(expert)).copy() for _ in range(3) for layer, expert in ((0, 0), (2, 1))]
        named.append([plan.decisions() for plan in plans])
        assert counted(each) == bulk(trace, policy, 2, scope=scope)
    assert named[0] == named[1]
    loads = [move for decisions in named[0] for move in decisions if move[0] == "load_initial"]
    assert len(loads) == len(set(loads)) >= 1
    assert not any(move[0] == "load_initial" for move in named[0][5])
    if scope == "layer":
        assert pool.residents(1) == initial


def test_rows_of_a_warm_up_that_ends_while_a_layer_is_skipped_are_named_when_it_is_called():
    pool = Pool("static(warmup=1)", **ANY)
    steps = [(0, 5), (1, 6)], [(0, 5)], [(0, 5), (1, 6)]
    plans = [[pool.step(layer, ids(expert)).decisions() for layer, expert in step] for step in steps]
    assert plans[1] == [[("load_initial", 0, 5, 0), ("hit", 0, 5, 0)]]
    assert plans[2][1] == [("load_initial", 1, 6, 0), ("hit", 1, 6, 0)]


def test_layers_skipped_in_a_wide_streamed_step_trim_nothing():
    how = {"overflow": "exceed", "prefill": "stream", "batch_gate": 1}
    pool = Pool("lru", **ANY | {"slots": 1}, **how)
    for layer, chosen in ((0, ids(0, 1)), (1, ids(0, 1)), (0, np.array([[2, 3], [4, 5]], np.uint8)), (0, ids(0, 1)),
                          (1, ids(0, 1))):  # fmt: skip
        pool.step(layer, chosen)
    chosen = [[[0, 1], [0, 1]], [[2, 3], [-1, -1]], [[4, 5], [-1, -1]], [[0, 1], [0, 1]]]
    trace = slotwise.Trace.from_arrays(np.array(chosen), n_experts=8, step=np.array([0, 1, 1, 2]))
    assert counted(pool) == bulk(trace, "lru", 1, **how)


@pytest.mark.parametrize("how", [{}, {"full": True}, {"max_loads": 5}], ids=str)
def test_what_is_loaded_before_the_first_step_has_landed_when_it_begins(how):
    pool = Pool("lru", **ANY, **how)
    assert pool.prefetch(0, ids(3)).decisions() == [("load_speculative", 0, 3, 0)]
    assert (pool.residents(0), list(pool.slots_of(0))) == ([], [3])
    assert pool.step(0, ids(3, 4)).decisions() == [("hit", 0, 3, 0), ("load_demand", 0, 4, 1)]
    assert pool.counters["prefetch_hits"] == 1


def test_a_lag_counts_from_the_tick_before_the_first():
    """Two layers: issued at tick -1 with lag 1 it lands in tick 1, so layer 0 meets it late and layer 1 does not."""
    pool = Pool("lru", **ANY, lag_prefetch=1)
    pool.prefetch(0, ids(3))
    pool.prefetch(1, ids(3))
    assert [pool.step(layer, ids(3)).decisions()[0][0] for layer in (0, 1)] == ["late", "hit"]


def test_a_reset_forgets_what_was_considered_at_its_tick():
    pool = Pool("lru", **ANY)
    pool.step(0, ids(1))
    for _ in range(2):
        assert pool.prefetch(1, ids(3)).decisions() == [("load_speculative", 1, 3, 0)]
        pool.reset()
    assert pool.counters["invalid"] == 0


@pytest.mark.once
def test_ids_out_of_range_stay_so_where_all_sixteen_bits_are_taken():
    """65,535 experts: 65,534 is the last of them, 65,535 in uint16 is none."""
    pool = Pool("lru", n_layers=2, n_experts=65535, slots=2)
    for wrong in (65535, 70000):
        with pytest.raises(BadPolicy, match=f"expert {wrong} is not below 65535"):
            pool.step(0, [1, wrong])
    assert len(pool.step(0, np.array([65535], np.uint16))) == 0
    assert pool.step(0, [65534]).loads[0].expert == 65534
    pool.prefetch(1, [70000, 65535, -1, 7])
    assert (pool.counters["predictions"], pool.counters["invalid"]) == (3, 2)


def test_an_id_out_of_range_is_named_as_it_was_given():
    pool = Pool("lru", n_layers=1, n_experts=100, slots=2)
    with pytest.raises(BadPolicy, match="expert 70000 is not below 100"):
        pool.step(0, np.array([[1, 70000]]))
