"""The compiled replay against its slow twin: every counter in every cut, and the hash of every plan."""

import pytest
from conftest import each_kernel, examples, few_policies, some
from hypothesis import given
from hypothesis import strategies as st
from oracle_case import with_profiles
from oracle_chance import NAMES, cases, large_cases, options, policies
from oracle_counts import NAMES as COUNTERS
from oracles import pollution

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny traces and pools are warned about

STATES = ("residents", "in_flight")  # of the end of a run: no event of a step


def differences(law, run, window):
    """What the two engines say differently, as (cut, counter, by law, by replay)."""
    events = [name for name in COUNTERS if name not in STATES]
    found = [("run", name, law.counters[name], run.counters[name]) for name in COUNTERS]
    known = [name for name in COUNTERS if law.counters[name] is not None]  # bytes need row sizes
    found += [("layer", name, law.by_layer[name], list(run.by_layer[name])) for name in known]
    for phase in ("prefill", "decode"):
        found += [(phase, name, law.by_phase[phase][name], run.by_phase[phase][name]) for name in events]
    requests = run.by_request["request"]
    found.append(("request", "request", list(law.by_request), sorted(requests)))
    for name in (name for name in known if name in events):
        found.append(("request", name, [law.by_request[r][name] for r in requests], list(run.by_request[name])))
        found.append(("along", name, law.along(name, window), list(run.along[name])))
    if run.plan_sha256 is not None:
        found.append(("plan", "sha256", law.plan_sha256, run.plan_sha256))
    return [entry for entry in found if entry[2] != entry[3]]


def assert_equal(trace, policy, window=1, group_rows=None, plan_hash=True, **how):
    law = trace.by_law(policy, **how)
    run = trace.by_replay(policy, window=window, group_rows=group_rows, plan_hash=plan_hash, **how)
    assert (run.plan_sha256 is None) is (not plan_hash)
    assert not differences(law, run, window)


@pytest.mark.parametrize("name", each_kernel(NAMES))
@examples(250)
@given(data=st.data())
def test_replay_decides_what_the_law_decides(name, data, tmp_path_factory):
    trace = data.draw(cases())
    policy = with_profiles(data.draw(policies(trace, [name])), tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy, fails=True))
    assert_equal(trace, policy, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([None, 1, 5])), **how)


@pytest.mark.once
@pytest.mark.parametrize("name", each_kernel(some(NAMES, 1)))
@examples(40)
@given(data=st.data())
def test_many_experts_in_many_slots_take_the_fast_paths_to_the_same_end(name, data, tmp_path_factory):
    """Without rare options, and without a plan to keep: bulk lists, vector scans, kernels that leave things out."""
    trace = data.draw(large_cases())
    policy = data.draw(policies(trace, [name]))
    parts = data.draw(st.sampled_from([(), ("guard",), ("guard", "gate", "pin")]))
    policy = {**policy, **{part: None for part in ("guard", "gate", "pin") if part not in parts}}
    policy = with_profiles(policy, tmp_path_factory.mktemp("profiles"))
    slots = data.draw(st.integers(3, trace.n_experts))
    width = 0 if name == "opt" else data.draw(st.sampled_from([0, 0, 1, 4]))
    how = {"scope": data.draw(st.sampled_from(["layer", "layer", "global"]))}
    how |= {"reset": data.draw(st.sampled_from(["persistent", "persistent", "request"]))}
    assert_equal(trace, policy, 7, 50, data.draw(st.booleans()), slots=slots, width=width, **how)


@examples(60)
@given(data=st.data())
def test_speculative_verify_steps_are_built_as_the_law_says(data, tmp_path_factory):
    trace = data.draw(cases(one_row=True))
    policy = with_profiles(data.draw(policies(trace)), tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy))
    verify = {
        "verify_tokens": data.draw(st.integers(2, 5)),
        "accept": data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
        "seed": data.draw(st.integers(0, 99)),
    }
    group_rows = data.draw(st.sampled_from([None, 1, 4]))
    assert_equal(trace, policy, group_rows=group_rows, verify=verify, **how)


@examples(60)
@given(data=st.data())
def test_a_reported_phase_is_that_part_of_the_whole_replay(data):
    trace = data.draw(cases())
    phase = data.draw(st.sampled_from(["prefill", "decode"]))
    law = trace.by_law("lru", slots=2)
    run = trace.by_replay("lru", slots=2, phase=phase)
    for name in COUNTERS:
        if name not in STATES:
            assert run.counters[name] == law.by_phase[phase][name], name


@examples(60)
@given(data=st.data())
def test_the_first_steps_alone_are_a_trace_of_their_own(data):
    """Also for the policies that know the future: it ends where the replay ends."""
    trace = data.draw(cases())
    policy = data.draw(st.sampled_from(few_policies(["lru", "lfu", "belady", "opt"])))
    n = data.draw(st.integers(1, len(trace.starts)))
    n_rows = trace.starts[min(n, len(trace.starts) - 1)]
    whole = trace.by_replay(policy, slots=2, steps=n)
    part = trace.first(n_rows).by_law(policy, slots=2)
    assert not differences(part, trace.by_replay(policy, slots=2, steps=n, window=1), 1)
    assert whole.plan_sha256 == part.plan_sha256


@examples(100)
@given(data=st.data())
def test_pollution_counts_the_misses_that_prefetch_has_caused(data, tmp_path_factory):
    trace = data.draw(cases())
    policy = data.draw(policies(trace, [name for name in NAMES if name not in ("static", "opt")]))
    policy = with_profiles(policy, tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy))
    expected = pollution(trace.by_law(policy, **how), trace.by_law(policy, **{**how, "width": 0}))
    run = trace.by_replay(policy, pollution=True, **how)
    assert run.counters["pollution"] == expected
    assert trace.by_replay(policy, **how).counters["pollution"] is None


@examples(40)
@given(data=st.data())
def test_threads_change_nothing(data, tmp_path_factory):
    trace = data.draw(cases())
    policy = with_profiles(data.draw(policies(trace)), tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy))
    one, two = (trace.by_replay(policy, threads=n, window=1, **how) for n in (1, 2))
    assert (one.counters, one.by_layer, one.by_phase) == (two.counters, two.by_layer, two.by_phase)
    assert (one.by_request, one.along, one.plan_sha256) == (two.by_request, two.along, two.plan_sha256)


@pytest.mark.parametrize("run", ["by_law", "by_replay"])
@examples(100)
@given(data=st.data())
def test_one_expert_a_step_makes_the_two_contracts_equal(run, data, tmp_path_factory):
    """With one row a step and one expert a layer a tick has nothing to be atomic about, but when its load lands."""
    trace = data.draw(cases(one_row=True, top_k=1))
    rivals = [name for name in NAMES if name != "opt"]
    policy = with_profiles(data.draw(policies(trace, rivals)), tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy))
    event, sequential = (getattr(trace, run)(policy, **how | {"contract": c}) for c in ("event", "sequential"))
    for name in COUNTERS:
        if name not in STATES:
            assert event.counters[name] == sequential.counters[name], name
    assert event.plan_sha256 == sequential.plan_sha256
