"""One suite over every policy that is installed: what each must honour, whatever it prefers. New ones join by scan."""

import json

import numpy as np
import pytest
from conftest import each_kernel, examples, few_policies
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle_case import case as spelled_out
from oracle_chance import cases
from plan_log import Tick, judge, live_ticks, logged_ticks, replayed

import slotwise
from slotwise.policies.spelling import installed

ALONE = {"static": "static(warmup=2)"}  # what cannot stand without a parameter
KINDS = {ALONE.get(name, name): kind for name, kind in installed().items()}
POLICIES = few_policies(KINDS)
LIVE = [name for name in POLICIES if not KINDS[name].needs_future]
SEERS = [name for name in POLICIES if KINDS[name].needs_future]
STRUCTURED = [name for name in POLICIES if KINDS[name].keeps_order]

few = examples(25)
pytestmark = pytest.mark.filterwarnings("ignore:the global pool")


def everywhere(*, top_k=1, n_layers=1, n_experts=4, n_steps=4, **columns):
    """Every layer demands the experts 0 to top_k - 1 at every step of one token."""
    ids = np.tile(np.arange(top_k), (n_steps, n_layers, 1))
    return slotwise.Trace.from_arrays(ids, n_experts=n_experts, **columns)


def width_of(case, policy, draw):
    """A width that the case has predictions for and the policy takes."""
    if not case.predicted or KINDS[policy].bound:
        return 0
    return draw(st.integers(0, len(case.predicted[1][0][0])))


def plan_hash(trace, policy, slots, **options):
    return slotwise.replay(trace, policy, slots, plan_hash=True, **options).plan_sha256


# ---- what is said about a policy


@pytest.mark.parametrize("row", slotwise.list_policies(), ids=lambda row: row["name"])
def test_every_policy_and_addition_says_what_it_does_where_it_is_from_and_what_it_takes(row):
    assert set(row) >= {"name", "description", "source", "parameters", "needs_future"}
    assert row["description"][0].isupper()
    assert "\n" not in row["description"]
    assert row["source"]
    assert all(name.isidentifier() and type(default) in (int, float, str, bool)
               for name, default in row["parameters"].items())  # fmt: skip


def test_the_list_is_the_folder():
    assert [row["name"] for row in slotwise.list_policies()] == [*installed(), "+guard", "+gate", "+pin"]
    assert set(installed()) >= {"lru", "fifo", "lfu", "lfru", "random", "static", "belady", "opt"}
    assert {name for name, kind in installed().items() if kind.needs_future} == {"belady", "opt"}


# ---- what every plan honours

BAD_PLANS = {  # of one layer, 1 slot, steps that demand 0, then 1, then 0
    "never more residents than slots": [[("load_demand", 0)], [("load_demand", 1)]],
    "only a resident leaves": [[("evict", 2), ("load_demand", 0)]],
    "never what is demanded": [[("load_demand", 0), ("evict", 0)]],
    "never one in flight": [[("load_demand", 0)], [("evict", 0), ("load_demand", 1)], [("evict", 1)]],
    "never a pinned one": [[("load_initial", 3)], [("evict", 3), ("load_demand", 1)]],
    "only what was asked for": [[("load_demand", 1)]],
    "a hit is what had landed": [[("hit", 0)]],
}


@pytest.mark.parametrize("fault", BAD_PLANS)
def test_the_judge_convicts_a_plan_that_breaks_a_rule(fault):
    case = spelled_out([[0], [1], [0]], n_experts=4)
    ticks = [Tick(now, 0, False, [(v, 0, e) for v, e in moves]) for now, moves in enumerate(BAD_PLANS[fault])]
    with pytest.raises(AssertionError, match=fault):
        judge(case, ticks, slots=1, lag_demand=1, pinned=[(0, 3)])


@pytest.mark.parametrize("policy", LIVE)
@few
@given(data=st.data())
def test_live_plans_never_overfill_and_take_no_victim_in_use_in_flight_or_pinned(policy, data, tmp_path_factory):
    case = data.draw(cases())
    width = width_of(case, policy, data.draw)
    wide = data.draw(st.booleans())
    slots = data.draw(st.integers(1, case.n_experts))
    lags = {name: data.draw(st.integers(0, 3)) for name in ("lag_demand", "lag_prefetch")}
    spelling = policy + data.draw(st.sampled_from(["", "+guard", "+gate(window=4, admit=2)"]))
    pinned = []
    if policy not in ALONE.values() and data.draw(st.booleans()):
        counts = [[7] + [0] * (case.n_experts - 1)] * case.n_layers
        profile = tmp_path_factory.mktemp("profile") / "p.json"
        profile.write_text(json.dumps({"format": "slotwise.profile", "counts": counts}))
        spelling += f"+pin(profile={profile}, n=1)"
        pinned = [(layer, 0) for layer in range(1 if wide else case.n_layers)]
    pool = slotwise.Pool(
        spelling, n_layers=case.n_layers, n_experts=case.n_experts, slots=slots,
        scope="global" if wide else "layer", **lags,
    )  # fmt: skip
    there = judge(case, live_ticks(pool, case, width=width), slots=slots, wide=wide, width=width, pinned=pinned, **lags)
    for layer in range(case.n_layers):
        assert sorted(pool.slots_of(layer)) == sorted(e for of, e in there if of == layer)


@pytest.mark.parametrize("policy", SEERS)
@few
@given(data=st.data())
def test_plans_that_know_the_future_honour_the_same(policy, data):
    case = data.draw(cases())
    width = width_of(case, policy, data.draw)
    slots = data.draw(st.integers(1, case.n_experts))
    _, logs = replayed(case.trace(), policy, slots, width=width)
    for layer, rows in enumerate(logs):
        judge(
            case, logged_ticks(rows, layer, len(case.starts) - 1), slots=slots, width=width, bound=KINDS[policy].bound
        )


@pytest.mark.parametrize("policy", POLICIES)
@few
@given(data=st.data())
def test_the_same_call_twice_makes_the_same_plan(policy, data):
    case = data.draw(cases())
    slots = data.draw(st.integers(1, case.n_experts))
    how = {"width": width_of(case, policy, data.draw), "scope": data.draw(st.sampled_from(["layer", "global"]))}
    assert plan_hash(case.trace(), policy, slots, **how) == plan_hash(case.trace(), policy, slots, **how)


# ---- sizes at the edge


@pytest.mark.parametrize("policy", POLICIES)
def test_without_slots_everything_is_bypassed(policy):
    """4 steps x 2 layers x 2 experts = 16 demands."""
    counters = slotwise.replay(everywhere(top_k=2, n_layers=2), policy, 0).counters
    assert {name: n for name, n in counters.items() if n} == {
        "demands": 16, "misses": 16, "compulsory": 4, "bypassed": 16, "routed": 16,
    }  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@few
@given(case=cases())
def test_with_a_slot_for_every_expert_nothing_leaves_and_only_first_demands_miss(policy, case):
    counters = slotwise.replay(case.trace(), policy, case.n_experts).counters
    assert counters["evictions"] == 0
    if policy == "static(warmup=2)":  # what misses while it counts may miss again
        assert counters["misses"] == counters["loads_demand"] + counters["bypassed"]
    else:
        assert counters["misses"] == counters["compulsory"] == counters["loads_demand"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_of_one_expert_misses_it_once_a_layer(policy):
    """5 steps x 3 layers. A static pool that counts for 2 steps starts with the third."""
    counters = slotwise.replay(everywhere(n_layers=3, n_experts=1, n_steps=5), policy, 1).counters
    once = 2 if policy == "static(warmup=2)" else 1
    assert (counters["demands"], counters["misses"], counters["hits"]) == (15, 3 * once, 15 - 3 * once)
    assert counters["residents"] + counters["in_flight"] == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_when_every_expert_is_demanded_always_the_first_ones_stay(policy):
    """E = top_k = 3, 2 slots, 6 steps: a tick keeps its own demand, so 0 and 1 stay and 2 is bypassed for ever."""
    counters = slotwise.replay(everywhere(top_k=3, n_experts=3, n_steps=6), policy, 2).counters
    filled = 2 if policy == "static(warmup=2)" else 1
    assert (counters["hits"], counters["evictions"]) == (2 * (6 - filled), 0)
    assert counters["bypassed"] == 6 + (2 * 2 if policy == "static(warmup=2)" else 0)


@pytest.mark.parametrize("policy", POLICIES)
@few
@given(case=cases())
def test_a_layer_without_rows_has_no_events_and_leaves_the_others_alone(policy, case):
    """Layer 0 of a trace does the same whether an absent layer follows or not."""
    ids = case.trace().blocks()
    alone = np.concatenate([block.experts[0] for block in ids])[:, None].astype(np.int64)
    alone[alone == 255] = -1
    columns = {"n_experts": case.n_experts, "step": case.step, "request": case.request, "phase": case.phase}
    assume((alone >= 0).any())
    with_absent = slotwise.Trace.from_arrays(np.concatenate([alone, np.full_like(alone, -1)], 1), **columns)
    slots = max(1, case.n_experts // 2)
    one = slotwise.replay(slotwise.Trace.from_arrays(alone, **columns), policy, slots).by_layer
    two = slotwise.replay(with_absent, policy, slots).by_layer
    state = ("residents", "in_flight", "bytes_loaded", "bytes_moved", "pollution")
    for name in set(one) - set(state):
        assert two[name] == [one[name][0], 0], name
    # the last tick of a step is that of the absent layer, so what the demand loaded has landed by then
    assert two["residents"] == [one["residents"][0] + one["in_flight"][0], 0]


# ---- fast forms against plain ones


@pytest.mark.once
@pytest.mark.parametrize("policy", each_kernel(name for name in STRUCTURED if name in LIVE))
@few
@given(data=st.data())
def test_a_faster_victim_structure_chooses_what_the_scan_chooses(policy, data):
    case = data.draw(cases())
    width = width_of(case, policy, data.draw)
    slots = data.draw(st.integers(1, case.n_experts))
    how = {"scope": data.draw(st.sampled_from(["layer", "global"]))}
    spelling = policy + data.draw(st.sampled_from(["", "+guard", "+gate(window=4, admit=2)"]))
    if data.draw(st.booleans()):
        how |= {"contract": data.draw(st.sampled_from(["event", "sequential"])), "lag_prefetch": 1, "max_loads": 2}
    fast, plain = (
        slotwise.Pool(spelling, n_layers=case.n_layers, n_experts=case.n_experts, slots=slots, plain=plain, **how)
        for plain in (False, True)
    )
    assert list(live_ticks(fast, case, width=width)) == list(live_ticks(plain, case, width=width))
    assert fast.counters == plain.counters
    assert [fast.slots_of(layer) for layer in range(case.n_layers)] == [
        plain.slots_of(layer) for layer in range(case.n_layers)
    ]


@pytest.mark.once
@pytest.mark.parametrize("policy", each_kernel(name for name in STRUCTURED if name in LIVE))
def test_a_global_pool_of_more_keys_than_a_score_has_room_for_decides_the_same(policy):
    """300 layers of 250 experts are 75,000 keys; only layers 0 and 1 are ever called."""
    few, many = (
        slotwise.Pool(policy, n_layers=n_layers, n_experts=250, slots=6, scope="global") for n_layers in (2, 300)
    )
    rng = np.random.default_rng(0)
    for _ in range(40):
        for layer in (0, 1):
            ids = np.sort(rng.choice(12, 2, replace=False)).astype(np.uint8)
            assert few.step(layer, ids).decisions() == many.step(layer, ids).decisions()
    assert few.counters["evictions"] == (0 if policy == "static(warmup=2)" else few.counters["loads_demand"] - 6)


@pytest.mark.kernels
@pytest.mark.once
@pytest.mark.parametrize("policy", [name for name, kind in KINDS.items() if kind.keeps_order and kind.needs_future])
@few
@given(data=st.data())
def test_a_structure_that_knows_the_future_chooses_what_its_plain_form_chooses(policy, data):
    case = data.draw(cases())
    slots = data.draw(st.integers(1, case.n_experts))
    fast, plain = (replayed(case.trace(), policy, slots, plain=plain) for plain in (False, True))
    assert same(fast, plain)


@pytest.mark.kernels
@pytest.mark.parametrize("policy", POLICIES)
@few
@given(data=st.data())
def test_a_kernel_with_every_feature_plans_what_the_lean_one_plans(policy, data):
    case = data.draw(cases())
    slots = data.draw(st.integers(1, case.n_experts))
    width = width_of(case, policy, data.draw)
    lean, full = (replayed(case.trace(), policy, slots, full=full, look=True, width=width) for full in (False, True))
    assert same(lean, full)


def same(one, other):
    """Whether two replays counted the same and logged the same decisions."""
    logs = zip(one[1], other[1], strict=True)
    return one[0].to_dict() == other[0].to_dict() and all(np.array_equal(a, b) for a, b in logs)


@pytest.mark.kernels
@few
@given(data=st.data())
def test_plain_lru_counts_what_the_general_kernel_counts(data):
    case = data.draw(cases())
    trace = case.trace(group_rows=data.draw(st.sampled_from([None, 3])))
    slots = data.draw(st.integers(0, case.n_experts))
    how = {"phase": data.draw(st.sampled_from(["all", "decode", "prefill"])), "window": data.draw(st.integers(1, 5))}
    fast = replayed(trace, "lru", slots, log=False, **how)[0]
    assert fast.to_dict() == replayed(trace, "lru", slots, log=False, general=True, **how)[0].to_dict()


@pytest.mark.kernels
def test_plain_lru_takes_the_runs_it_is_for_and_no_others():
    trace = everywhere(top_k=2, n_layers=2, n_experts=4)
    replayed(trace, "lru", 2, log=False, general=True)
    others = {"scope": "global"}, {"contract": "sequential"}, {"reset": "request"}, {"lag_demand": 1}, {"max_loads": 1}
    for options in (*others, {"overflow": "exceed"}, {"prefill": "stream"}, {"pollution": True}):
        with pytest.raises(AssertionError, match="nothing to keep out"):
            replayed(trace, "lru", 2, log=False, general=True, **options)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_pools_that_no_memory_holds_are_refused_with_their_size_before_anything_is_allocated(scope):
    """A hundred thousand layers of 65535 experts: 64 bytes and more for each."""
    pool = slotwise.Pool("lfru", n_layers=10**5, n_experts=65535, slots=4, scope=scope)
    with pytest.raises(
        slotwise.BadPolicy, match=r"100000 layers x 65535 experts need [\d,.]+ GiB of memory .* replay fewer"
    ):
        pool.open()
