"""What the options of a replay mean, and what its result says: small traces, numbers that can be checked by hand."""

import hashlib
import json
import math
import warnings

import numpy as np
import pytest
from trace_cases import demanding, tiny

import slotwise
from slotwise import BadOption, BadPolicy, BadTrace
from slotwise.replay.errors import ReplayWarning

A, B, C = 0, 1, 2
STATE = ("residents", "in_flight")


@pytest.fixture(scope="module")
def mixed():
    """3 layers of 16 experts, three requests with a prefill step each, three predictions a token."""
    return slotwise.Trace.synthesise(
        n_tokens=240, n_layers=3, n_experts=16, top_k=2, width=3, requests=3, prompt_tokens=15, row_bytes=1000
    )


def without_time(result):
    return result.to_dict() | {"seconds": None}


# ---- what is replayed and what is reported


def test_a_phase_is_reported_alone_but_everything_is_replayed():
    """Prefill A and B in one step of two rows, then decode A and B: they hit because the prefill loaded them."""
    trace = demanding(A, B, A, B, step=[0, 0, 1, 2], phase=[0, 0, 1, 1])
    whole, prefill, decode = (slotwise.replay(trace, slots=2, phase=phase) for phase in ("all", "prefill", "decode"))
    assert [run.counters["hits"] for run in (whole, prefill, decode)] == [2, 0, 2]
    assert [run.counters["demands"] for run in (whole, prefill, decode)] == [4, 2, 2]
    assert [run.rates["misses_per_token"] for run in (whole, prefill, decode)] == [0.5, 1, 0]
    assert [run.counters["residents"] for run in (whole, prefill, decode)] == [2, 2, 2]
    assert decode.by_phase == whole.by_phase
    assert {name: n for name, n in decode.counters.items() if name not in STATE} == {
        name: n for name, n in whole.by_phase["decode"].items() if name not in (*STATE, "tokens")
    }


@pytest.mark.parametrize(("steps", "hits", "demands"), [(0, 0, 0), (1, 0, 1), (3, 1, 3), (4, 2, 4), (99, 2, 4)])
def test_the_first_steps_alone_can_be_replayed(steps, hits, demands):
    run = slotwise.replay(demanding(A, B, A, B), slots=2, steps=steps)
    assert (run.counters["hits"], run.counters["demands"], run.identity["n_steps"]) == (hits, demands, demands)


def test_a_window_cuts_the_counts_along_the_steps():
    """A A A B B: two steps a window, the last one shorter."""
    run = slotwise.replay(demanding(A, A, A, B, B), slots=1, window=2)
    along = {name: run.along[name] for name in ("window_steps", "first_step", "demands", "hits", "misses")}
    assert along == {
        "window_steps": 2, "first_step": [0, 2, 4], "demands": [2, 2, 1], "hits": [1, 1, 1], "misses": [1, 1, 0],
    }  # fmt: skip
    assert slotwise.replay(demanding(A, A), slots=1).along["window_steps"] == 1


def test_pollution_counts_the_misses_that_only_a_wrong_look_ahead_made():
    """Layer 1 has one slot and wants A four times; C, predicted each time, pushes A out each time but the first."""
    predicted = np.full((4, 2, 1), C)
    trace = demanding(A, A, A, A, n_layers=2, predicted=predicted)
    run = slotwise.replay(trace, slots=1, width=1, pollution=True)
    assert (run.counters["pollution"], run.by_layer["pollution"]) == (3, [0, 3])
    assert (run.by_layer["misses"], run.counters["wasted"]) == ([1, 4], 4)
    assert slotwise.replay(trace, slots=1, pollution=True).counters["pollution"] == 0
    assert slotwise.replay(trace, slots=1, width=1).counters["pollution"] is None


@pytest.mark.parametrize("phase", ["all", "decode", "prefill"])
def test_the_counts_of_layers_phases_requests_and_windows_each_sum_to_the_whole(mixed, phase):
    run = slotwise.replay(mixed, "lfru+guard", 4, width=3, pollution=True, window=7, phase=phase)
    assert run.by_request["request"] == [0, 1, 2]
    assert {run.counters[n] > 0 for n in ("prefetch_hits", "wasted", "dropped_guard", "pollution")} == {
        phase != "prefill"
    }
    for name, total in run.counters.items():
        assert sum(run.by_layer[name]) == total, name
        if name not in STATE:
            assert sum(run.by_request[name]) == sum(run.along[name]) == total, name
            parts = [run.by_phase[part][name] for part in ("prefill", "decode") if phase in ("all", part)]
            assert sum(parts) == total, name


def test_a_reset_at_each_request_forgets_what_was_there():
    """A A, then A of another request: it is a hit, unless the pools were emptied."""
    trace = demanding(A, A, A, request=[4, 4, 9])
    keeps, forgets = (slotwise.replay(trace, slots=1, reset=reset) for reset in ("persistent", "request"))
    assert [run.by_request["request"] for run in (keeps, forgets)] == [[4, 9]] * 2
    assert [run.by_request["hits"] for run in (keeps, forgets)] == [[1, 1], [1, 0]]
    assert [run.counters["discarded"] for run in (keeps, forgets)] == [0, 1]
    assert [run.counters["compulsory"] for run in (keeps, forgets)] == [1, 2]


def test_a_step_that_mixes_requests_cannot_be_reset_but_counts_under_minus_one():
    trace = demanding(A, B, B, C, step=[0, 1, 1, 2], request=[0, 0, 1, 1])
    with pytest.raises(BadOption, match=r"^reset request: step 1 mixes requests; use reset persistent"):
        slotwise.replay(trace, slots=1, reset="request")
    run = slotwise.replay(trace, slots=1)
    assert (run.by_request["request"], run.by_request["demands"]) == ([-1, 0, 1], [1, 1, 1])


def test_verify_steps_carry_the_tokens_that_a_draft_guessed():
    """A B C A B in steps of two, all accepted: A B, C A, B. C pushes out B (the second A is a hit): one hit."""
    run = slotwise.replay(tiny(), slots=2, verify_tokens=2)
    assert (run.identity["n_steps"], run.counters["routed"], run.counters["hits"]) == (3, 5, 1)
    never = slotwise.replay(tiny(), slots=2, verify_tokens=2, accept=0)
    assert (never.identity["n_steps"], never.identity["n_tokens"], never.counters["routed"]) == (5, 5, 9)


def test_tokens_of_phases_requests_and_windows_are_those_that_verify_steps_accepted():
    """Six decode tokens of two requests in steps of up to three rows, of which one is accepted: six tokens, not 12."""
    trace = slotwise.Trace.from_arrays(
        np.zeros((7, 1, 1), int), n_experts=2, request=[0, 0, 0, 0, 1, 1, 1], phase=[0, 1, 1, 1, 1, 1, 1]
    )
    run = slotwise.replay(trace, slots=1, verify_tokens=3, accept=0, window=4)
    assert run.counters["routed"] == 1 + (3 + 2 + 1) + (3 + 2 + 1)
    assert [run.by_phase[phase]["tokens"] for phase in ("prefill", "decode")] == [1, 6]
    assert (run.by_request["tokens"], run.along["tokens"]) == ([4, 3], [4, 3])
    assert slotwise.replay(trace, slots=1, verify_tokens=3, accept=0, phase="decode").by_request["tokens"] == [3, 3]


@pytest.mark.parametrize("how", [{}, {"width": 3}, {"width": 2, "scope": "global"}])
def test_the_number_of_threads_changes_nothing(mixed, how):
    one, two = (slotwise.replay(mixed, "lfru+guard", 6, plan_hash=True, threads=n, **how) for n in (1, 2))
    assert without_time(one) == without_time(two)


# ---- look-ahead that cannot be


def test_a_width_without_predictions_names_the_predictors_that_need_none():
    with pytest.raises(
        BadTrace, match=r"no recorded predictions .* width 2 needs .*: coupled, frequency, noisy, oracle, previous$"
    ):
        slotwise.replay(demanding(A, n_layers=2), slots=2, width=2)


def test_a_width_above_the_recorded_one_names_both(mixed):
    with pytest.raises(BadTrace, match=r"^width 4 is above the 3 predictions that trace .* records at horizon 1"):
        slotwise.replay(mixed, slots=4, width=4)


def test_a_horizon_that_was_not_recorded_names_those_that_were(mixed):
    with pytest.raises(BadTrace, match=r"no recorded predictions at horizon 2 \(recorded: horizons 1\)"):
        slotwise.replay(mixed, slots=4, width=1, horizon=2)


def test_look_ahead_without_slots_is_refused(mixed):
    with pytest.raises(BadPolicy, match="width 1 with 0 slots"):
        slotwise.replay(mixed, slots=0, width=1)


@pytest.mark.parametrize(
    ("predictor", "words"),
    [("orcale", "Did you mean 'oracle'?"), ("noisy(recal=0.5)", "noisy has no parameter 'recal'; it takes recall=0.8"),
     ("noisy(recall=2)", "it must lie in 0 to 1"), ("oracle(", "Did you mean 'oracle'?")],
)  # fmt: skip
def test_a_predictor_that_is_misspelt_is_answered_with_the_way_out(mixed, predictor, words):
    with pytest.raises(ValueError) as raised:
        slotwise.replay(mixed, slots=4, width=1, predictor=predictor)
    assert type(raised.value) in (BadTrace, BadOption, BadPolicy)
    assert words in str(raised.value)


def test_the_predictor_is_named_in_full_and_is_none_where_nothing_is_predicted(mixed):
    spelt = slotwise.replay(mixed, slots=4, width=1, predictor="noisy( recall=0.5 )").options["predictor"]
    assert spelt == "noisy(recall=0.5)"
    with pytest.warns(UserWarning, match="at width 0 nothing is predicted"):
        assert slotwise.replay(mixed, slots=4, predictor="oracle").options["predictor"] == "none"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("contract", "atomic", "contract is event or sequential, not 'atomic'"),
        ("scope", "model", "scope is layer or global, not 'model'"),
        ("reset", "never", "reset is persistent or request, not 'never'"),
        ("phase", "verify", "phase is all or decode or prefill, not 'verify'"),
        ("overflow", "grow", "overflow is bypass or exceed, not 'grow'"),
        ("prefill", "skip", "prefill is cached or stream, not 'skip'"),
        ("width", -1, "width=-1: it is at least 0"),
        ("horizon", 0, "horizon=0: it is at least 1"),
        ("lag_prefetch", -1, "lag_prefetch=-1: it is at least 0"),
        ("max_loads", -1, "max_loads=-1: it is at least 0"),
        ("steps", -1, "steps=-1: it is at least 0"),
        ("window", 0, "window=0: it is at least 1"),
        ("row_bytes", 0, "row_bytes=0: it is at least 1"),
        ("accept", 1.5, "accept=1.5: it is a probability, 0 to 1"),
        ("accept", "1", "accept='1': it is a probability, 0 to 1"),
        ("accept", math.nan, "accept=nan: it is a probability"),
        ("steps", 1.5, "steps=1.5: it is at least 0 and at most 1099511627776, a whole number"),
        ("width", "4", "width='4': it is at least 0"),
        ("width", True, "width=True: it is at least 0"),
        ("batch_gate", None, "batch_gate=None: it is at least 0"),
        ("lag_demand", 10**25, "lag_demand=10000000000000000000000000: it is at least 0 and at most"),
        ("seed", None, "seed=None: a seed is a whole number of 64 bits"),
        ("seed", 2**63, "a seed is a whole number of 64 bits"),
        ("predictor", 3, "predictor=3: it is a name"),
        ("pollution", "no", "pollution='no': it is True or False"),
        ("widht", 4, "no option named 'widht'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name_value_and_rule(option, value, words):
    with pytest.raises(BadOption) as raised:
        slotwise.replay(demanding(A), slots=1, **{option: value})
    assert words in str(raised.value)


# ---- the result


def test_rates_without_a_denominator_are_nan_and_null_in_json():
    run = slotwise.replay(demanding(A), slots=1, steps=0)
    assert all(map(math.isnan, run.rates.values()))
    written = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert set(written["rates"].values()) == {None}
    assert "hit rate – (0 of 0 demands); – loads per token, yield – hits per load" in repr(run)


def test_rates_are_the_counts_divided():
    """A B A A with two slots: 2 of 4 hit; 2 loads in 4 tokens; 1 hit a load; both misses are first demands."""
    rates = slotwise.replay(demanding(A, B, A, A, row_bytes=[10]), slots=2).rates
    wanted = {"hit_rate": 0.5, "loads_per_token": 0.5, "misses_per_token": 0.5, "bytes_per_token": 5, "yield": 1}
    assert {name: rates[name] for name in wanted} == wanted
    assert rates["compulsory_share"] == 1


def test_a_result_reads_as_three_lines_and_a_fourth_about_predictions(mixed):
    assert repr(slotwise.replay(demanding(A, B, A, A), slots=2)) == (
        "lru on arrays: 2 slots of 8 experts x 1 layers, layer scope, event contract, width 0\n"
        "  pools: 2 slots per layer; row size unknown\n"
        "  hit rate 50.00 % (2 of 4 demands); 0.50 loads per token, yield 1.00 hits per load"
    )
    told = repr(slotwise.replay(mixed, slots=4, width=1)).splitlines()[3]
    assert told.startswith("  predictions ")
    assert "invalid" not in told


def test_predictions_that_name_no_expert_are_told_in_the_line():
    trace = slotwise.Trace.from_arrays(
        np.zeros((3, 2, 1), np.uint8), n_experts=8, predicted=np.full((3, 2, 1), 9, np.uint8)
    )
    told = repr(slotwise.replay(trace, slots=4, width=1))
    assert "predictions 3: 0 loaded" in told
    assert told.endswith("3 invalid (repeated, or no expert of the trace)")


def test_the_counts_of_the_layers_are_a_polars_frame(mixed):
    run = slotwise.replay(mixed, slots=4)
    frame = run.to_polars()
    assert (frame.shape[0], frame["layer"].to_list()) == (3, [0, 1, 2])
    assert {name: frame[name].to_list() for name in ("hits", "bytes_loaded")} == {
        name: run.by_layer[name] for name in ("hits", "bytes_loaded")
    }
    unknown = slotwise.replay(demanding(A), slots=1).to_polars().columns
    assert {"bytes_loaded", "bytes_moved", "pollution"}.isdisjoint(unknown)


def test_the_plan_hash_is_that_of_the_decisions_written_down():
    """A B C A B, two slots: two loads, then each miss evicts the older one. Rows: step, layer, expert, verb."""
    rows = [(0, A, 1), (1, B, 1), (2, A, 3), (2, C, 1), (3, B, 3), (3, A, 1), (4, C, 3), (4, B, 1)]
    pool = hashlib.sha256(np.array([(s, 0, e, v) for s, e, v in rows], "<i4").tobytes()).digest()
    assert slotwise.replay(tiny(), slots=2, plan_hash=True).plan_sha256 == hashlib.sha256(pool).hexdigest()
    assert slotwise.replay(tiny(), slots=2).plan_sha256 is None


def test_an_ordinary_replay_warns_of_nothing(mixed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slotwise.replay(mixed, slots=4, width=1)
        slotwise.replay(mixed, slots=8, scope="global")
    with pytest.warns(ReplayWarning, match=r"^the global pool \(5\) is smaller than a token cycle, 3 x 2 rows"):
        slotwise.replay(mixed, slots=5, scope="global")


@pytest.mark.parametrize("how", [{"slots": 99}, {"slots": 1, "scope": "global"}, {"vram": 1}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_warning_points_at_the_line_that_asked_for_the_replay(how):
    trace = demanding(A, B, n_layers=2, row_bytes=[10, 10])
    with pytest.warns(ReplayWarning) as warned:
        slotwise.replay(trace, **how)
    assert {one.filename for one in warned} == {__file__}


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_threads_and_workers_are_at_least_one(tmp_path, value):
    with pytest.raises(BadOption, match=r"threads=.*: it is at least 1"):
        slotwise.replay(demanding(A), slots=1, threads=value)
    with pytest.raises(BadOption, match=r"workers=.*: it is at least 1"):
        slotwise.sweep(demanding(A), "lru", 1, out=tmp_path / "r.parquet", workers=value)
