"""Faults that caches of this kind have really had, one example each that would catch it, in both engines."""

import math
from dataclasses import replace

import pytest
from oracle_case import case, with_profiles

import slotwise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny traces and pools are warned about


@pytest.fixture(params=["law", "replay"])
def replayed(request, tmp_path):
    """A function that runs a case and gives its counters, in each engine."""

    def run(trace, policy="lru", **options):
        if isinstance(policy, dict):
            policy = with_profiles(policy, tmp_path)
        return (trace.by_law if request.param == "law" else trace.by_replay)(policy, **options)

    return run


def has(run, **expected):
    assert {name: run.counters[name] for name in expected} == expected


A, B, C, D = 0, 1, 2, 3


def test_an_empty_slot_does_not_look_like_expert_zero(replayed):
    has(replayed(case([[A]]), slots=3), hits=0, misses=1, loads_demand=1)


def test_a_pinned_row_is_never_the_victim_not_even_of_an_overflow(replayed):
    """A is pinned in the only slot: nothing else finds a place, and an overflow trims what came, not A."""
    pinned = {"name": "lru", "params": {}, "pin": {"counts": [[9, 1, 1]], "n": 1}}
    trace = case([[A], [B], [C], [A]], predicted=None)
    has(replayed(trace, pinned, slots=1), loads_initial=1, hits=2, bypassed=2, evictions=0)
    has(replayed(trace, pinned, slots=1, overflow="exceed"), loads_initial=1, hits=2, loads_demand=2, evictions=2)


def test_pins_hold_for_predictions_too(replayed):
    pinned = {"name": "lru", "params": {}, "pin": {"counts": [[0, 0, 0], [1, 5, 9]], "n": 2}}
    trace = case([[A]], [[C]], predicted=[[], [[A]]])
    has(replayed(trace, pinned, slots=2, width=1), dropped_no_victim=1, hits=1, loads_initial=2)


def test_a_prediction_is_no_demand(replayed):
    trace = case([[A]], [[A]], predicted=[[], [[B, C]]])
    has(replayed(trace, slots=4, width=2), demands=2, hits=0, misses=2, loads_speculative=2, compulsory=2, unresolved=2)


@pytest.mark.parametrize("params", [{}, {"half_life": 1}])
def test_a_row_never_demanded_scores_nothing_however_young_the_run(replayed, params):
    """C is loaded ahead at step 0 and never asked for. B needs a place at step 1: C leaves, not A, though A is cold."""
    trace = case([[A], [A], [A]], [[A], [B], [A]], predicted=[[], [[C], None, None]])
    policy = {"name": "lfru", "params": params}
    has(replayed(trace, policy, slots=2, width=1), wasted=1, evictions=1, hits=2 + 1)


def test_the_load_budget_is_not_spent_on_what_needs_no_load(replayed):
    """One load a tick: the redundant A and the invalid 9 cost nothing, C takes it, D is one too many."""
    trace = case([[A], [A]], [[A], [A]], predicted=[[], [None, [A, 9, C, D]]], n_experts=4)
    has(replayed(trace, slots=4, width=4, max_loads=1), redundant=1, invalid=1, loads_speculative=1, dropped_throttle=1)


def test_in_a_global_pool_demand_and_speculation_share_the_load_budget(replayed):
    trace = case([[A]], [[A]], predicted=[[], [[B]]])
    has(replayed(trace, slots=4, width=1, max_loads=1, scope="global"), loads_demand=2, dropped_throttle=1)
    has(replayed(trace, slots=4, width=1, max_loads=1, scope="layer"), loads_demand=2, loads_speculative=1)


def test_streamed_prefill_does_not_heat_what_decode_will_weigh(replayed):
    """A passes five times in prefill, once in decode; B is asked for twice. C drives A out, so B still hits."""
    rows = [[A], [A], [A], [A], [A], [A], [B], [B], [C], [B]]
    trace = case(rows, step=[0, 0, 0, 0, 0, 1, 2, 3, 4, 5], phase=[0] * 5 + [1] * 5)
    has(replayed(trace, "lfu", slots=2, prefill="stream", batch_gate=4), streamed=1, hits=2, evictions=1)

    trace = case([[A]] * 5, [[A]] * 5, [[A]] * 5)
    has(replayed(trace, slots=2, scope="global"), hits=0, demands=15)
    has(replayed(trace, slots=3, scope="global"), hits=12)


def test_a_byte_pool_gathers_victims_until_the_row_fits(replayed):
    """Capacity 20: the rows of layer 0 have 10 bytes, those of layer 1 have 20, for which all others must leave."""
    trace = case([[A], [B], [A], [A]], [[A], [A], [A], [A]], row_bytes=(10, 20))
    law = trace.by_law("lru", scope="global", vram=20)
    first = [entry for entry in law.plan[0] if entry[0] <= 1]
    assert first == [(0, 0, A, 1), (0, 0, A, 3), (0, 1, A, 1), (1, 1, A, 3), (1, 0, B, 1), (1, 0, B, 3), (1, 1, A, 1)]
    trace = case([[A, B], [C, D]], [[A], [A]], row_bytes=(10, 20))
    has(replayed(trace, scope="global", vram=20), loads_demand=2 + 1 + 2 + 1, evictions=2 + 1 + 2, bypassed=0)
    has(replayed(trace, scope="global", vram=19), loads_demand=1 + 0 + 1 + 0, evictions=1, bypassed=1 + 1 + 1 + 1)


def test_a_row_for_which_all_cannot_make_room_has_no_victim_and_no_guard_is_asked(replayed):
    """Layer 1's row of 100 never fits into 90. That A is warm is not the reason."""
    trace = case([[A], [A], [A], [B]], [None] * 4, row_bytes=(40, 100), n_experts=2)
    ahead = {1: [[[-1]] * 4, [[-1], [-1], [-1], [A]]]}
    guarded = {"name": "lfru", "params": {}, "guard": {"warm": 2, "ratio": 0.25, "counts": 4}}
    got = replayed(replace(trace, predicted=ahead), guarded, scope="global", vram=90, width=1)
    has(got, dropped_no_victim=1, dropped_guard=0, evictions=0)


@pytest.mark.parametrize(("heat", "dropped"), [(1, 0), (3, 1)])
def test_the_guard_is_asked_for_each_row_that_must_leave(replayed, heat, dropped):
    """Two rows of 40 lie in 90 bytes, and 80 are predicted: cold B would go first, but both go or none."""
    rows = [*([[A]] * heat), [B], None]
    n = len(rows)
    trace = case(rows, [None] * n, row_bytes=(40, 80), n_experts=2)
    ahead = {1: [[[-1]] * n, [*([[-1]] * (n - 1)), [A]]]}
    guarded = {"name": "lfru", "params": {}, "guard": {"warm": 2, "ratio": 0.25, "counts": 4}}
    got = replayed(replace(trace, predicted=ahead), guarded, scope="global", vram=90, width=1)
    has(got, dropped_guard=dropped, evicted_by_prefetch=2 - 2 * dropped, loads_speculative=1 - dropped)


def test_bytes_count_what_is_staged(replayed):
    """Rows of 10 bytes. What the pool does not load moves only if it is fetched, be it streamed or bypassed."""
    trace = case([[A], [A], [B], [C], [B]], step=[0, 1, 1, 1, 2], row_bytes=(10,))
    streamed = {"slots": 1, "prefill": "stream", "batch_gate": 2}
    has(replayed(trace, **streamed), streamed=2, bytes_loaded=20, bytes_moved=20)
    has(replayed(trace, **streamed, miss="fetch"), streamed=2, bytes_loaded=20, bytes_moved=40)
    trace = case([[A, B, C]], row_bytes=(10,))
    has(replayed(trace, slots=1), bypassed=2, bytes_loaded=10, bytes_moved=10)
    has(replayed(trace, slots=1, miss="fetch"), bypassed=2, bytes_loaded=10, bytes_moved=30)


@pytest.mark.parametrize("policy", ["lfru", "belady"])
def test_ties_go_to_the_lowest_id(policy):
    """B, A and C come in one step and never again: whatever their slots, A leaves first, then B."""
    trace = case([[B, A, C], [D], [D + 1]])
    plan = trace.by_law(policy, slots=3).plan[0]
    assert [expert for _, _, expert, verb in plan if verb == 3] == [A, B]
    assert trace.by_replay(policy, slots=3).plan_sha256 == trace.by_law(policy, slots=3).plan_sha256


def test_what_is_loaded_ahead_is_billed(replayed):
    trace = case([[A]], [[A]], predicted=[[], [[B]]], row_bytes=(3, 5))
    has(replayed(trace, slots=4, width=1), bytes_loaded=3 + 5 + 5, bytes_moved=13)


def test_a_late_row_is_billed_once_and_staged_never(replayed):
    trace = case([[A], [A]], row_bytes=(3,))
    has(replayed(trace, slots=1, lag_demand=5, miss="fetch"), late=1, bytes_loaded=3, bytes_moved=3)


def test_a_demand_that_drives_out_its_own_prefetch_pays_twice(replayed):
    """Sequential, two slots: B lies there unused, A comes first and drives it out, then B is a miss."""
    trace = case([[A], [A]], [[C], [A, B]], predicted=[[], [None, [B, D]]])
    has(replayed(trace, slots=2, width=2, contract="sequential"), wasted=2, loads_speculative=2, prefetch_hits=0)


def test_no_demand_has_no_hit_rate():
    run = case([[A], [A]]).by_replay("lru", slots=1, phase="prefill")
    assert run.counters["demands"] == 0
    assert math.isnan(run.rates["hit_rate"])


@pytest.mark.once
def test_a_profile_replayed_on_its_own_trace_is_warned_about(tmp_path):
    path = tmp_path / "trace.parquet"
    case([[A], [A], [B], [A]]).trace().save(path)
    from conftest import slotwise as command

    command("trace", "profile", path, "-o", tmp_path / "profile.json")
    said = command("replay", path, "--policy", f"static(profile={tmp_path / 'profile.json'})", "--slots", "1")
    assert "this very trace" in said.stderr


def test_a_mixed_step_cannot_be_reset_by_request():
    trace = case([[A], [B]], step=[0, 0], request=[0, 1])
    with pytest.raises(slotwise.BadOption, match="request"):
        trace.by_replay("lru", slots=1, reset="request")


def test_look_ahead_into_no_slots_is_refused():
    trace = case([[A]], [[A]], predicted=[[], [[B]]])
    with pytest.raises((slotwise.BadOption, slotwise.BadPolicy), match="0 slots"):
        trace.by_replay("lru", slots=0, width=1)


@pytest.mark.parametrize(
    "option", [{"width": 1}, {"contract": "sequential"}, {"overflow": "exceed"}, {"lag_demand": 1}]
)
def test_the_bound_refuses_what_it_would_not_bound(option):
    trace = case([[A]], [[A]], predicted=[[], [[B]]])
    with pytest.raises((slotwise.BadOption, slotwise.BadPolicy), match="opt"):
        trace.by_replay("opt", slots=1, **option)
