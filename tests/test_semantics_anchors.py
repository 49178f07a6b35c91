"""Examples small enough to check by hand, each through the compiled replay and through the oracle."""

import pytest
from oracle_case import case

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny traces and pools are warned about


@pytest.fixture(params=["law", "replay"])
def counters(request):
    """A function that runs a case and gives its counters, in each engine."""

    def run(trace, policy="lru", **options):
        run = trace.by_law if request.param == "law" else trace.by_replay
        return run(policy, **options).counters

    return run


def has(counters, **expected):
    assert {name: counters[name] for name in expected} == expected


A, B, C, D = 0, 1, 2, 3
LFRU_GUARD = {"name": "lfru", "params": {}, "guard": {"warm": 2, "ratio": 0.25, "counts": 4}}


# -- the published hand example --------------------------------------------------------------------------------------
def test_three_layers_that_alternate_two_experts_hit_twelve_times_of_thirty(counters):
    layer = [[0, 1], [0, 2], [0, 1], [0, 3], [0, 1]]
    trace = case(layer, layer, layer)
    has(counters(trace, slots=2), demands=30, hits=12, misses=18, compulsory=12, evictions=12, routed=30)


# -- A B C A B -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("contract", ["event", "sequential"])
@pytest.mark.parametrize(
    ("policy", "hits", "evictions"),
    [
        ("lru", 0, 3),  # C drives A out, A drives B out, B drives C out
        ("fifo", 0, 3),
        ("lfu", 0, 3),  # the same: each of those left has been demanded once, the older leaves
        ("belady", 1, 2),  # C drives B out (A comes sooner), A hits, B drives A out
    ],
)
def test_a_b_c_a_b_with_two_slots(counters, contract, policy, hits, evictions):
    got = counters(case([[A], [B], [C], [A], [B]]), policy, slots=2, contract=contract)
    has(got, demands=5, compulsory=3, bypassed=0, hits=hits, evictions=evictions)


def test_a_b_c_a_b_with_two_slots_is_bounded_by_two_hits(counters):
    """The bound passes C by: it is never asked for again."""
    has(counters(case([[A], [B], [C], [A], [B]]), "opt", slots=2), hits=2, bypassed=1, evictions=0, loads_demand=2)


def test_one_slot_serves_one_expert_again_and_again(counters):
    has(counters(case([[A], [A], [A]]), slots=1), hits=2, misses=1, compulsory=1, residents=1, in_flight=0, fills=1)


def test_no_slots_pass_everything_by(counters):
    has(counters(case([[A, B], [A, B]]), slots=0), hits=0, bypassed=4, fills=0, compulsory=2)


def test_more_slots_than_experts_hold_all_and_no_more(counters):
    has(counters(case([[A, B], [B, C], [A, C]]), slots=9), hits=3, misses=3, evictions=0)


# -- order within a tick ---------------------------------------------------------------------------------------------
def test_lru_counts_the_last_row_that_names_an_expert(counters):
    """Rows [A] [B] [A]: B is older than A, so C drives B out, and A hits."""
    trace = case([[A], [B], [A], [C], [A]], step=[0, 0, 0, 1, 2])
    has(counters(trace, slots=2), demands=4, routed=5, hits=1, evictions=1)


def test_sequential_touches_a_member_once_at_its_turn(counters):
    """Rows [A] [B] [A] of one step are A, B: A is the older, C drives it out, and A misses."""
    trace = case([[A], [B], [A], [C], [A]], step=[0, 0, 0, 1, 2])
    has(counters(trace, slots=2, contract="sequential"), demands=4, hits=0, evictions=2)


def test_a_demand_larger_than_the_pool_passes_its_surplus_by_and_does_not_thrash(counters):
    trace = case([[A, B, C, D], [A, B, C, D]])
    has(counters(trace, slots=2), hits=2, misses=6, loads_demand=2, bypassed=4, evictions=0)


def test_sequential_thrashes_where_event_does_not(counters):
    trace = case([[A, B, C], [A, B, C]])
    has(counters(trace, slots=2, contract="sequential"), hits=0, loads_demand=6, evictions=4)


def test_exceed_loads_the_surplus_and_trims_it_at_the_next_tick_of_the_pool(counters):
    """Three of two stay until the next tick, hit there, and two leave for D: A and B, the oldest rows."""
    trace = case([[A, B, C], [A, B, C], [D, D + 1], [C, D]])
    got = counters(trace, slots=2, overflow="exceed")
    has(got, hits=3 + 1, bypassed=0, evictions=3 + 1, loads_demand=3 + 2 + 1, residents=1, in_flight=1)


def test_misses_load_into_the_lowest_free_slot_and_then_into_the_place_of_the_victim():
    law = case([[A, B], [C, B], [A, C]]).by_law("lru", slots=3)
    assert law.residents[0] == {0: (0, A), 1: (0, B), 2: (0, C)}
    law = case([[A, B], [C, B], [C, B]]).by_law("lru", slots=2)
    assert law.residents[0] == {0: (0, C), 1: (0, B)}


# -- heat and recency ------------------------------------------------------------------------------------------------
def test_heat_halves_at_the_start_of_every_nth_step_and_decides(counters):
    """A is demanded four times, then B and C in turn: undecayed A stays for ever, decayed it leaves for C."""
    trace = case([[A], [A], [A], [A], [B], [B], [C], [B], [C]])
    has(counters(trace, "lfu", slots=2), hits=3 + 1, evictions=3)
    ageing = {"name": "lfu", "params": {"half_life": 2}}
    has(counters(trace, ageing, slots=2), hits=3 + 1 + 2, evictions=1)


def test_an_expert_seen_once_at_the_start_does_not_look_recent_for_ever(counters):
    """lfru: heat 2 of A and B after an age of more than 255 is 512 flat, so ties go to the lowest id."""
    rows = [[A], [A], [B], [B], *([[D]] * 300), [C], [B]]
    has(counters(case(rows), "lfru", slots=3), hits=1 + 1 + 299 + 1, evictions=1)


def test_the_access_clock_counts_distinct_demands_of_all_layers(counters):
    """200 steps of one layer are young for the step clock, but 2 layers make 400 accesses: recency is gone."""
    rows = [[B], [A], *([[D]] * 200), [C], [A]]
    other = [[A]] * len(rows)
    by_steps = {"name": "lfru", "params": {}}
    by_access = {"name": "lfru", "params": {"clock": "access"}}
    assert counters(case(rows, other), by_steps, slots=3)["evictions"] == 1
    steps, access = (case(rows, other).by_law(p, slots=3).plan[0] for p in (by_steps, by_access))
    assert [entry[2] for entry in steps if entry[3] == 3] == [B]
    assert [entry[2] for entry in access if entry[3] == 3] == [A, B]
    assert counters(case(rows, other), by_access, slots=3)["evictions"] == 2


@pytest.mark.parametrize(("now", "leaves"), [(255, B), (256, A)])
def test_recency_ends_at_an_age_of_255_steps(now, leaves):
    """B is demanded at step 0 and A at step 1. While A has a point left for its age B leaves, then ties leave A."""
    trace = case([[B], [A], *([[D]] * (now - 2)), [C]])
    law, run = trace.by_law("lfru", slots=3), trace.by_replay("lfru", slots=3)
    assert [entry[2] for entry in law.plan[0] if entry[3] == 3] == [leaves]
    assert run.plan_sha256 == law.plan_sha256


@pytest.mark.parametrize(("n_streamed", "leaves"), [(253, B), (254, A)])
def test_the_access_clock_counts_streamed_demands_too(n_streamed, leaves):
    """As above, by the access clock: the prompt of distinct experts in between is what makes them old."""
    policy = {"name": "lfru", "params": {"clock": "access"}}
    prompt = [[4 + e] for e in range(n_streamed)]
    step = [0, 1, *([2] * n_streamed), 3]
    trace = case([[B], [A], *prompt, [C]], step=step, n_experts=300)
    how = {"slots": 2, "prefill": "stream"}
    law, run = trace.by_law(policy, **how), trace.by_replay(policy, **how)
    assert [entry[2] for entry in law.plan[0] if entry[3] == 3] == [leaves]
    assert run.plan_sha256 == law.plan_sha256


# -- lag and throttle ------------------------------------------------------------------------------------------------
def test_an_expert_in_flight_is_late_and_not_loaded_twice(counters):
    """One layer, lag 1: loaded at step 0, in flight at step 1, landed at step 2."""
    has(counters(case([[A], [A], [A]]), slots=2, lag_demand=1), loads_demand=1, late=1, hits=1, in_flight=0)


def test_the_load_of_the_last_tick_is_still_in_flight(counters):
    has(counters(case([[A], [B]]), slots=2), loads_demand=2, residents=1, in_flight=1)


def test_a_sequential_load_without_lag_lands_at_once(counters):
    has(counters(case([[A], [B]]), slots=2, contract="sequential"), loads_demand=2, residents=2, in_flight=0)


def test_a_row_in_flight_is_never_the_victim(counters):
    """Lag 2, one slot: A is on its way at steps 1 and 2, so B and C are passed by."""
    has(counters(case([[A], [B], [C], [A]]), slots=1, lag_demand=2), loads_demand=1, bypassed=2, hits=1, evictions=0)


def test_a_throttled_miss_is_loaded_at_a_later_tick(counters):
    has(counters(case([[A, B], [A, B], [A, B]]), slots=2, max_loads=1), loads_demand=2, throttled=1, hits=1 + 2)


# -- look-ahead ------------------------------------------------------------------------------------------------------
def test_a_prediction_is_hit_one_layer_later(counters):
    trace = case([[A]], [[B]], predicted=[[], [[B]]])
    has(counters(trace, slots=2, width=1), predictions=1, loads_speculative=1, prefetch_hits=1, hits=1, hits_demand=0)
    has(counters(trace, slots=2, width=1, lag_prefetch=1), used_late=1, late=1, hits=0, prefetch_hits=0, compulsory=2)


def test_a_wrong_prediction_is_wasted_when_it_leaves_and_unresolved_when_it_stays(counters):
    trace = case([[A], [A]], [[A], [B]], predicted=[[], [[C], None]])
    has(counters(trace, slots=2, width=1), loads_speculative=1, wasted=1, unresolved=0, evicted_by_demand=1)
    has(counters(trace, slots=3, width=1), loads_speculative=1, wasted=0, unresolved=1, evictions=0)


def test_repeats_and_ids_out_of_range_are_invalid_and_not_replaced(counters):
    """Width 3: B, an id beyond the last, B again; the fourth entry, C, is out of reach."""
    trace = case([[A]], [[A]], predicted=[[], [[B, 5, B, C]]], n_experts=4)
    has(counters(trace, slots=4, width=3), predictions=3, invalid=2, loads_speculative=1)


def test_tokens_offer_rank_by_rank(counters):
    """Two tokens, width 2: the firsts of both come before the seconds of any; two slots take the firsts."""
    trace = case([[A], [A]], [[C], [D]], predicted=[[], [[C, A], [D, B]]], step=[0, 0])
    has(counters(trace, slots=2, width=2), loads_speculative=2, prefetch_hits=2, dropped_no_victim=2)


def test_no_prediction_drives_out_another_of_its_tick(counters):
    """B lies in the only slot and is predicted second: the first may not have its place."""
    trace = case([[A], [A]], [[B], [B]], predicted=[[], [None, [C, B]]])
    has(counters(trace, slots=1, width=2), dropped_no_victim=1, redundant=1, hits=2, evictions=0)


def test_predictions_raise_no_heat(counters):
    """B is predicted three times and demanded never; A is demanded twice. C drives B out."""
    trace = case([[A]] * 4, [[A], [A], [D], [C]], predicted=[[], [[B], [B], [B], None]])
    law = trace.by_law("lfu", slots=3, width=1)
    assert [entry[1:3] for entry in law.plan[1] if entry[3] == 3] == [(1, B)]
    has(counters(trace, "lfu", slots=3, width=1), evictions=1, wasted=1, redundant=2)


def test_steps_above_the_batch_gate_offer_nothing(counters):
    trace = case([[A]] * 3, [[B]] * 3, predicted=[[], [[B]] * 3], step=[0, 0, 1])
    has(counters(trace, slots=2, width=1, batch_gate=1), predictions=1, redundant=1)
    has(counters(trace, slots=2, width=1, batch_gate=2), predictions=3, invalid=1, redundant=1, prefetch_hits=1)


def test_a_global_pool_never_gives_the_slot_of_this_ticks_demand_to_a_prediction(counters):
    """One slot: layer 0 reads A from it, so nothing may be loaded ahead; without that the hit would be overwritten."""
    trace = case([[A], [A]], [[B], [B]], predicted=[[], [[B], [B]]])
    got = counters(trace, slots=1, width=1, scope="global")
    has(got, dropped_no_victim=2, loads_speculative=0, hits=0, loads_demand=4)


# -- the guard -------------------------------------------------------------------------------------------------------
def test_the_guard_keeps_three_warm_residents_from_a_stranger(counters):
    """Layer 1 demands A three times, B and C twice, then D is predicted."""
    trace = case([[A]] * 4, [[A, B, C], [A, B, C], [A], [A]], predicted=[[], [None, None, None, [D]]])
    got = counters(trace, LFRU_GUARD, slots=3, width=1)
    has(got, dropped_guard=1, loads_speculative=0, hits=3 + 5, loads_demand=1 + 3, evictions=0)


def test_the_guard_gives_way_where_the_lowest_resident_was_demanded_once(counters):
    trace = case([[A]] * 4, [[A, B], [A, B], [A, C], [A, B]], predicted=[[], [None, None, None, [D]]])
    got = counters(trace, LFRU_GUARD, slots=3, width=1)
    has(got, dropped_guard=0, loads_speculative=1, evicted_by_prefetch=1, unresolved=1)


def test_the_guard_evicts_at_equality_and_keeps_one_point_above(counters):
    """Without ratio and counts the guard compares scores. A and B were demanded at step 0, and B found no slot."""
    bare = {"name": "lru", "params": {}, "guard": {"warm": 0, "ratio": 0, "counts": 0}}
    equal = case([[A]] * 2, [[A, B], [B, C]], predicted=[[], [None, [B]]])
    has(counters(equal, bare, slots=1, width=1), dropped_guard=0, loads_speculative=1, prefetch_hits=1, hits=1 + 1)
    one_younger = case([[A]] * 3, [[B], [A], [C]], predicted=[[], [None, None, [B]]])
    has(counters(one_younger, bare, slots=1, width=1), dropped_guard=1, loads_speculative=0)


@pytest.mark.parametrize(("now", "dropped"), [(132, 0), (133, 1)])
def test_the_guard_adds_a_quarter_and_its_counts_to_the_victims_score(counters, now, dropped):
    """B was demanded a step ago: 510 + 127 + 256 = 893. A was demanded three times, last at step 2: 768 + 255 - age."""
    guard = {"warm": 0, "ratio": 0.25, "counts": 1}
    rows = [[A], [A], [A], *([None] * (now - 4)), [B], [A]]
    trace = case([[A]] * (now + 1), rows, predicted=[[], [None] * now + [[A]]])
    got = counters(trace, {"name": "lru", "params": {}, "guard": guard}, slots=1, width=1)
    has(got, dropped_guard=dropped, loads_speculative=1 - dropped)


# -- gate, pins, static ----------------------------------------------------------------------------------------------
def test_the_gate_admits_the_third_miss_and_forgets_by_halves(counters):
    gate = {"name": "lru", "params": {}, "gate": {"window": 0, "admit": 3}}
    has(counters(case([[A]] * 5), gate, slots=1), gated=2, loads_demand=1, hits=2, compulsory=1)
    gate = {"name": "lru", "params": {}, "gate": {"window": 1, "admit": 3}}  # 1, then 0 + 1, then 0 + 1, ...
    has(counters(case([[A]] * 5), gate, slots=1), gated=5, loads_demand=0)


def test_static_counts_its_warm_up_and_then_nothing_ever_leaves(counters):
    """Two steps: A twice, C twice, B once; A and C stay. B and D find no place."""
    static = {"name": "static", "params": {"warmup": 2}}
    trace = case([[A, C], [C, A], [A, C], [B, D], [A, B]])
    has(counters(trace, static, slots=2), bypassed=4 + 2 + 1, loads_initial=2, hits=3, evictions=0, compulsory=4)


# -- streamed prefill, reset, phases ---------------------------------------------------------------------------------
def test_streamed_prefill_leaves_no_trace_but_hits_and_ticks(counters):
    """A is resident when three rows of prefill pass by: it hits, B and C stream. B's first demand is at step 2."""
    trace = case([[A], [A], [B], [C], [B]], step=[0, 1, 1, 1, 2], phase=[1, 0, 0, 0, 1])
    got = counters(trace, slots=2, prefill="stream", batch_gate=2)
    has(got, hits=1, streamed=2, compulsory=2, loads_demand=2, misses=4)


def test_a_reset_forgets_everything_but_the_step_index(counters):
    """A is cold again for each request; what lay there is discarded."""
    trace = case([[A], [A], [A], [A]], request=[7, 7, 8, 8])
    has(counters(trace, slots=2), hits=3, compulsory=1, discarded=0)
    has(counters(trace, slots=2, reset="request"), hits=2, compulsory=2, discarded=1, residents=1)
