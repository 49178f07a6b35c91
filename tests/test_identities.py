"""The sums that every run must satisfy, in every cut: run, layer, phase, request, window of steps."""

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from oracle_case import with_profiles
from oracle_chance import NAMES, cases, options, policies

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny traces and pools are warned about

EVERYWHERE = """
    demands = hits + misses
    hits = hits_demand + prefetch_hits
    misses = loads_demand + bypassed + gated + throttled + late + streamed + failed_demand
    predictions = invalid + redundant + dropped + loads_speculative + failed_prediction
    evictions = evicted_by_demand + evicted_by_prefetch
    fills = loads_demand + loads_speculative + loads_initial
    failed = failed_demand + failed_prediction
"""
PER_LAYER = """
    loads_speculative = prefetch_hits + used_late + wasted + unresolved
    fills = evictions + invalidated + discarded + residents + in_flight
"""


def check(counters, equations, where):
    dropped = ("dropped_guard", "dropped_no_victim", "dropped_throttle")
    counters = counters | {"dropped": sum(counters[name] for name in dropped)}
    for line in filter(str.strip, equations.splitlines()):
        left, right = line.split("=")
        parts = {name.strip(): counters[name.strip()] for name in right.split("+")}
        assert counters[left.strip()] == sum(parts.values()), (where, line.strip(), counters[left.strip()], parts)


def rows(columns, names):
    """A table of columns as one dictionary a row."""
    names = [name for name in names if columns[name] is not None]
    return [dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True)]


def check_all(run, row_bytes, *, n_slots=None):
    counters = run.counters
    names = list(counters)
    check(counters, EVERYWHERE + PER_LAYER, "run")
    layers = rows(run.by_layer, [name for name in names if name in run.by_layer])
    for i, layer in enumerate(layers):
        check(layer, EVERYWHERE + PER_LAYER, f"layer {i}")
    for phase, cut in run.by_phase.items():
        check(cut, EVERYWHERE, phase)
    assert counters["compulsory"] <= counters["misses"]
    assert counters["used_late"] <= counters["late"]
    assert counters["demands"] <= counters["routed"]
    assert all(counters[name] >= 0 for name in names if counters[name] is not None)
    if row_bytes is None:
        assert counters["bytes_loaded"] is counters["bytes_moved"] is None
    else:
        loaded = sum(size * n for size, n in zip(row_bytes, run.by_layer["fills"], strict=True))
        assert counters["bytes_loaded"] == loaded <= counters["bytes_moved"]
    if n_slots is not None:
        assert counters["residents"] + counters["in_flight"] <= n_slots


def slots_of(trace, how):
    """What the pools may hold at most, where that is a number of slots and nothing overflows."""
    if "vram" in how or how.get("overflow") == "exceed":
        return None
    return how["slots"] * (trace.n_layers if how["scope"] == "layer" else 1)


@pytest.mark.parametrize("name", NAMES)
@examples(150)
@given(data=st.data())
def test_identities_hold_by_law(name, data):
    trace = data.draw(cases())
    policy = data.draw(policies(trace, [name]))
    how = data.draw(options(trace, policy))
    run = trace.by_law(policy, **how)
    check_all(run, trace.row_bytes, n_slots=slots_of(trace, how))
    for request, cut in run.by_request.items():
        check(cut, EVERYWHERE, f"request {request}")
    for now, cut in enumerate(run.by_step):
        check(cut, EVERYWHERE, f"step {now}")
    landed_and_flying = [*run.residents.values(), *run.in_flight.values()]
    assert sum(map(len, landed_and_flying)) == run.counters["residents"] + run.counters["in_flight"]


@pytest.mark.parametrize("name", NAMES)
@examples(150)
@given(data=st.data())
def test_identities_hold_in_replay(name, data, tmp_path_factory):
    trace = data.draw(cases())
    policy = with_profiles(data.draw(policies(trace, [name])), tmp_path_factory.mktemp("profiles"))
    how = data.draw(options(trace, policy))
    run = trace.by_replay(policy, **how)
    check_all(run, trace.row_bytes, n_slots=slots_of(trace, how))
    for i, cut in enumerate(rows(run.by_request, [n for n in run.by_request if n != "request"])):
        check(cut, EVERYWHERE, f"request {run.by_request['request'][i]}")
    for i, cut in enumerate(rows(run.along, [n for n in run.along if n not in ("window_steps", "first_step")])):
        check(cut, EVERYWHERE, f"window {i}")
