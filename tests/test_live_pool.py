"""Live calls of `Pool`, tick by tick, against the slow twin: verb for verb, slot for slot, counter for counter."""

import inspect
import itertools
import re

import numpy as np
import pytest
from conftest import each_kernel, examples
from hypothesis import given
from hypothesis import strategies as st
from oracle_case import case, spelled, with_profiles
from oracle_chance import NAMES, cases, options, policies
from oracle_counts import BYTES, DROP, INVALID, LATE
from oracle_counts import NAMES as COUNTERS

import slotwise
from slotwise.policies.errors import PolicyWarning

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny traces and pools are warned about

VERBS = "hit load_demand load_speculative evict drop bypassed gated throttled late streamed invalid redundant".split()
LIVE = tuple(name for name in NAMES if name not in ("belady", "opt"))  # no future in a live pool


def ids(*chosen):
    return np.array(chosen, np.uint8)


def said(plan):
    """The decisions of a plan in the oracle's words, (verb, layer, expert, slot); initial loads it does not name."""
    return [(VERBS.index(verb), *rest) for verb, *rest in plan.decisions() if verb != "load_initial"]


def pool_for(trace, policy, how):
    """A live pool with the options of a replay; horizon, width and resets are what its caller does."""
    skip = ("horizon", "width", "reset", "miss", "vram")
    kept = {name: value for name, value in how.items() if name not in skip}
    if "vram" in how:
        kept |= {"capacity_bytes": how["vram"]}
    return slotwise.Pool(
        spelled(policy), n_layers=trace.n_layers, n_experts=trace.n_experts, row_bytes=trace.row_bytes, **kept
    )


def drive(pool, trace, *, width=0, horizon=1, dtype=np.int16, resets=()):
    """Call the pool as a model would: every layer of every step, and after each the look-ahead. Yields its plans."""
    starts = trace.starts
    for now, (first, last) in enumerate(itertools.pairwise(starts)):
        if now in resets:
            pool.reset()
        for layer in range(trace.n_layers):
            k = max(len(row) for rows in trace.experts for row in rows if row)
            rows = [row or [-1] * k for row in trace.experts[layer][first:last]]
            plan = pool.step(layer, np.array(rows, dtype))
            yield now, layer, "step", said(plan)
            if width and layer + horizon < trace.n_layers:
                rows = [row[:width] for row in trace.predicted[horizon][layer + horizon][first:last]]
                plan = pool.prefetch(layer + horizon, np.array(rows, dtype))
                yield now, layer, "prefetch", said(plan)


def heard(ticks):
    """What is law in the decisions of ticks: the order of what moves, but of what is refused what and why;
    invalid predictions are counted, not listed."""
    out = []
    for now, layer, kind, verbs in ticks:
        moves = [(verb, of, e, -1 if verb == DROP else slot) for verb, of, e, slot in verbs if verb <= DROP]
        refusals = sorted((verb, of, e) for verb, of, e, _ in verbs if verb > DROP and verb != INVALID)
        if moves or refusals:
            out.append((now, layer, kind, moves, refusals))
    return out


@pytest.mark.parametrize("name", each_kernel(LIVE))
@examples(150)
@given(data=st.data())
def test_live_calls_decide_what_the_law_decides(name, data, tmp_path_factory):
    trace = data.draw(cases())
    policy = with_profiles(data.draw(policies(trace, [name])), tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy)) | {"reset": "persistent", "miss": "cpu"}
    if "vram" in how and (how["scope"] == "layer" or len(set(trace.row_bytes)) == 1):
        how["slots"] = data.draw(st.integers(1, trace.n_experts))
        del how["vram"]
    law = trace.by_law(policy, **how)
    pool = pool_for(trace, policy, how)
    ahead = {name: how[name] for name in ("width", "horizon") if name in how}
    lived = list(drive(pool, trace, **ahead))
    assert heard(lived) == heard(law.ticks)
    counters = pool.counters
    for name in COUNTERS:
        if name not in BYTES:
            assert counters[name] == law.counters[name], name
    for layer in range(trace.n_layers):
        landed, flying = (
            {e: slot for kept in place.values() for slot, (of, e) in kept.items() if of == layer}
            for place in (law.residents, law.in_flight)
        )
        assert pool.residents(layer) == sorted(landed)
        assert pool.slots_of(layer) == landed | flying


def test_one_dimension_is_one_token():
    one, two = (slotwise.Pool("lru", n_layers=1, n_experts=4, slots=2) for _ in range(2))
    assert said(one.step(0, ids(0, 1))) == said(two.step(0, ids(0, 1)[None]))


def test_a_layer_not_above_the_last_one_begins_a_step_and_skipped_layers_are_empty_ticks():
    """Lag 2 in a model of 3 layers: loaded at (0, 0), landed at (1, 0), which is three ticks later."""
    pool = slotwise.Pool("lru", n_layers=3, n_experts=4, slots=2, lag_demand=2)
    pool.step(0, ids(0))
    assert said(pool.step(0, ids(0))) == [(0, 0, 0, 0)]
    pool = slotwise.Pool("lru", n_layers=3, n_experts=4, slots=2, lag_demand=3)
    pool.step(0, ids(0))
    assert said(pool.step(0, ids(0))) == [(LATE, 0, 0, 0)]


def test_half_life_counts_live_steps():
    """A is demanded four times at steps 0 to 3, B at 4 and 5; with half_life=2 A is down to 1 at step 4, 0 at 6."""
    pool = slotwise.Pool("lfu(half_life=2)", n_layers=1, n_experts=4, slots=2)
    for chosen in ([0], [0], [0], [0], [1], [1]):
        pool.step(0, ids(*chosen))
    assert said(pool.step(0, ids(2))) == [(3, 0, 0, 0), (1, 0, 2, 0)]


def test_a_reset_starts_anew_but_keeps_counting_what_happened():
    trace = case([[0], [0], [0], [0]], request=[1, 1, 2, 2])
    law = trace.by_law("lru", slots=2, reset="request")
    pool = slotwise.Pool("lru", n_layers=1, n_experts=1, slots=2)
    lived = list(drive(pool, trace, resets=[2]))
    assert heard(lived) == heard(law.ticks)
    assert pool.counters["discarded"] == law.counters["discarded"] == 1
    assert pool.counters["compulsory"] == law.counters["compulsory"] == 2


def test_the_plan_of_a_call_is_kept_by_copy():
    pool = slotwise.Pool("lru", n_layers=1, n_experts=4, slots=2)
    kept = pool.step(0, ids(0, 1)).copy()
    before = said(kept)
    pool.step(0, ids(2, 3))
    assert said(kept) == before


@pytest.mark.parametrize("policy", ["belady", "opt"])
def test_policies_that_need_the_future_are_refused_live(policy):
    with pytest.raises(slotwise.BadPolicy, match="replay"):
        slotwise.Pool(policy, n_layers=1, n_experts=4, slots=2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
def test_any_integer_type_of_ids_is_the_same_to_a_pool(dtype):
    pool = slotwise.Pool("lru", n_layers=1, n_experts=4, slots=2)
    assert said(pool.step(0, np.array([[3, 1]], dtype))) == [(1, 0, 3, 0), (1, 0, 1, 1)]


def test_two_pools_share_nothing():
    one, two = (slotwise.Pool("lru", n_layers=1, n_experts=4, slots=2) for _ in range(2))
    one.step(0, ids(0))
    assert one.counters["demands"] == 1
    assert two.counters["demands"] == 0


def small(**how):
    return slotwise.Pool("lru", **{"n_layers": 2, "n_experts": 4, "slots": 2} | how)


@pytest.mark.parametrize("chosen", [[3, 1], [[3, 1]], (3, 1), ((3, 1),)])
def test_lists_are_as_good_as_arrays(chosen):
    pool = small()
    assert said(pool.step(0, chosen)) == [(1, 0, 3, 0), (1, 0, 1, 1)]
    assert said(pool.prefetch(1, chosen)) == [(2, 1, 3, 0), (2, 1, 1, 1)]
    assert said(pool.step(1, [])) == said(pool.step(0, [[]])) == said(pool.step(1, np.zeros((0, 2), np.uint8))) == []


@pytest.mark.parametrize(
    ("chosen", "words"),
    [(3, "they are an array [n_tokens, k]"), (np.uint8(3), "[k] for one token"), (None, "are an array"),
     (np.zeros((1, 1, 1), np.uint8), "are an array"), (np.zeros((1, 1, 1), np.int64), "they are an array"),
     ([[1], [1, 2]], "every token has as many"), ([0.0], "not float64"), ([True], "whole numbers, not bool"),
     (["1"], "not <U1"), ([10**30], "not object"), ({1, 2}, "are an array"), (np.array(3, np.uint8), "are an array"),
     ([None], "not object")],
)  # fmt: skip
def test_ids_that_are_none_are_refused_and_nothing_is_counted(chosen, words):
    pool = small()
    for call in (pool.step, pool.prefetch):
        with pytest.raises(slotwise.BadPolicy) as refused:
            call(0, chosen)
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not any(pool.counters.values())


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_the_largest_number_of_a_wide_type_is_out_of_range_and_not_absent(dtype):
    pool = small()
    most = np.array([np.iinfo(dtype).max], dtype)
    with pytest.raises(slotwise.BadPolicy, match="is not below 4"):
        pool.step(0, most)
    pool.prefetch(0, most)
    assert pool.counters["invalid"] == 1


@pytest.mark.parametrize("layer", [-1, 2, 1.0, True, "0", None, np.float64(0), 10**400])
def test_a_layer_that_is_none_is_refused(layer):
    pool = small()
    for call in (pool.step, pool.prefetch):
        with pytest.raises(slotwise.BadPolicy, match=r"^layer=.*: it is a whole number from 0 to 1$"):
            call(layer, [0])
    assert said(pool.step(np.int64(1), [0])) == [(1, 1, 0, 0)]


@pytest.mark.parametrize(
    "value", [-1, 1.5, 2.0, True, "2", float("nan"), 10**30, 10**400, [2, 2, 2]], ids=lambda v: repr(v)[:40]
)
@pytest.mark.parametrize(
    "name", ["slots", "batch_gate", "lag_demand", "lag_prefetch", "max_loads", "width", "n_layers", "n_experts",
             "row_bytes", "capacity_bytes"],
)  # fmt: skip
def test_a_number_that_is_none_is_refused_when_the_pool_is_made(name, value):
    with pytest.raises(slotwise.BadPolicy) as refused:
        small(**{"row_bytes": 1, "slots": None if name == "capacity_bytes" else 2} | {name: value})
    assert str(refused.value).startswith(name)
    assert len(str(refused.value)) < 200


def test_a_pool_is_sized_by_slots_or_by_bytes_and_never_in_silence():
    make = {"n_layers": 2, "n_experts": 8}
    with pytest.raises(slotwise.BadPolicy, match="slots is not given: write slots=32"):
        slotwise.Pool("lru", **make)
    with pytest.raises(slotwise.BadPolicy, match="slots=3 and capacity_bytes=100: a pool is sized by one of them"):
        slotwise.Pool("lru", **make, slots=3, capacity_bytes=100, row_bytes=[1, 2], scope="global")
    with pytest.warns(PolicyWarning, match="slots=9: a pool has only 8 keys, so 8 are used") as said:
        assert slotwise.Pool("lru", **make, slots=[4, 9]).slots == [4, 8]
    assert said[0].filename == __file__
    assert slotwise.Pool("lru", **make, slots=0).slots == [0, 0]


def test_help_names_every_argument_of_a_pool():
    said = slotwise.Pool.__doc__.split("Args:")[1]
    names = list(inspect.signature(slotwise.Pool).parameters)
    assert [name for name in names if not re.search(rf"\b{name}\b[^\n:]*:", said)] == []
    assert "plain: internal" in said


def test_slots_and_row_bytes_are_one_number_or_one_for_each_layer():
    assert small(slots=np.array([1, 3]), row_bytes=(5, 6)).slots == [1, 3]
    for name in ("slots", "row_bytes"):
        with pytest.raises(slotwise.BadPolicy, match=f"^{name}: 3 of them, but there must be 2, or one number for all"):
            small(**{name: [1, 2, 3]})
