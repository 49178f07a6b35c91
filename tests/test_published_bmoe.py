"""The published BigMoeOnEdge curves, reproduced to the last printed digit through the public call.

Their simulator fills past its limit and trims after every tick, which is `overflow="exceed"`; its prompt is one step.
"""

import csv

import pytest
from oracles import oracle_replay, rows_of

import slotwise

pytestmark = pytest.mark.once

SCOPES = {  # their name -> our policy and scope
    "belady": ("belady", "global"),
    "lru": ("lru", "global"),
    "lfu": ("lfu", "global"),
    "layer": ("lru", "layer"),
    "layerlfu": ("lfu", "layer"),
}
SUMS = {  # demands of the prefill and of the decode, ticks
    "qwen": (2662, 36864, 6192),
    "gemma": (1538, 23040, 3870),
}


@pytest.fixture(scope="module", params=SUMS)
def published(request, shared):
    """A model's name, its trace, and the rows of its table."""
    folder = shared / "traces" / "bigmoeonedge"
    with (folder / f"{request.param}-curve.csv").open() as file:
        table = [row for row in csv.DictReader(file) if row["policy"] in SCOPES]
    return request.param, slotwise.open_trace(folder / f"{request.param}.route.csv"), table


def replayed(trace, name, budget_mib):
    policy, scope = SCOPES[name]
    return slotwise.replay(trace, policy, vram=budget_mib << 20, scope=scope, overflow="exceed")


def printed(run):
    """The three published figures of a run, rounded as they are printed."""
    decode = run.by_phase["decode"]
    return (
        f"{100 * run.counters['hits'] / run.counters['demands']:.3f}",
        f"{100 * decode['hits'] / decode['demands']:.3f}",
        f"{run.counters['bytes_loaded'] / 2**20:.1f}",
    )


@pytest.mark.parametrize("policy", SCOPES)
def test_every_budget_is_reproduced_to_the_last_printed_digit(published, policy):
    _, trace, table = published
    rows = [row for row in table if row["policy"] == policy]
    assert len(rows) == 11
    for row in rows:
        expected = (row["hit_pct_cum"], row["hit_pct_decode"], row["read_mib"])
        assert printed(replayed(trace, policy, int(row["budget_mib"]))) == expected, row["budget_mib"]


def test_the_check_sums_of_the_traces_hold(published):
    model, trace, _ = published
    prefill, decode, ticks = SUMS[model]
    run = replayed(trace, "lru", 1000)
    assert run.by_phase["prefill"]["demands"] == prefill
    assert run.by_phase["decode"]["demands"] == decode
    assert trace.n_steps * trace.n_layers == ticks


def test_below_one_token_cycle_a_global_lru_never_hits(published):
    _, trace, table = published
    below = {int(row["budget_mib"]) for row in table if int(row["budget_mib"]) << 20 < trace.token_cycle_bytes}
    assert below
    assert all(replayed(trace, "lru", budget).counters["hits"] == 0 for budget in below)


@pytest.mark.parametrize("policy", ["lru", "layerlfu", "belady"])
def test_the_slow_twin_reproduces_a_budget_too(published, policy):
    _, trace, table = published
    row = next(row for row in table if row["policy"] == policy and row["budget_mib"] == "1500")
    arguments, vram = rows_of(trace), 1500 << 20
    if SCOPES[policy][1] == "global":
        arguments |= {"scope": "global", "capacity_bytes": vram}
    else:
        arguments["slots"] = [vram // trace.n_layers // size for size in trace.row_bytes]
    law = oracle_replay(**arguments, policy=SCOPES[policy][0], overflow="exceed")
    assert printed(law) == (row["hit_pct_cum"], row["hit_pct_decode"], row["read_mib"])
