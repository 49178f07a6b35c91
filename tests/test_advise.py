"""Advice is the best of prices that anybody can ask for, chosen on one part of a trace and told of the other."""

import json

import numpy as np
import pytest
from conftest import slotwise as command

import slotwise
from slotwise.advise_parts import parts_of

ROW, GIB = 9_437_184, 1 << 30
ASKED = {"row_bytes": ROW, "steps": 300, "headroom": 0, "policies": ["lru", "lru+gate"]}


@pytest.fixture(scope="module")
def machine():
    return slotwise.estimate_machine(["rtx-3060-x16", "ddr4"])


@pytest.fixture(scope="module")
def advice(machine):
    return slotwise.advise("sample", machine, "8GiB", **ASKED)


def price(machine, policy, **options):
    asked = {"row_bytes": ROW, "steps": 300, "phase": "decode", "bounds": False} | options
    return slotwise.replay("sample", policy, machine=machine, **asked).price


@pytest.mark.once
def test_the_answer_is_chosen_on_the_first_part_and_told_of_the_rest(machine, advice):
    tried = {(one["policy"], one["width"], one["scope"], one["overlap"]) for one in advice["candidates"]}
    assert tried == {(p, w, s, o) for p in ("lru", "lru+gate") for w in (0, 4) for s in ("layer", "global")
                     for o in ("on", "off")}  # fmt: skip
    chose = [one["chosen_by"] for one in advice["candidates"]]
    assert chose == sorted(chose, reverse=True)
    for one in advice["candidates"]:
        named = {name: one[name] for name in ("width", "scope", "overlap")}
        mine = price(machine, one["policy"], vram="8GiB", **named)
        decode = np.flatnonzero(mine.step_phase == 1)
        first, rest = decode[: decode.size // 2], decode[decode.size // 2 :]  # one request: cut in the middle
        assert one["chosen_by"] == pytest.approx(mine.step_tokens[first].sum() / mine.step_s[first].sum())
        assert one["tokens_per_s"] == pytest.approx(mine.step_tokens[rest].sum() / mine.step_s[rest].sum())
        low, high = one["tokens_per_s_interval"]
        assert low < one["tokens_per_s"] < high
    best = advice["candidates"][0]
    for name in ("policy", "width", "scope", "overlap", "tokens_per_s", "tokens_per_s_interval"):
        assert advice[name] == best[name]
    assert advice["label"] == "ESTIMATED"
    assert advice["held_out"] == {"by": "step", "chosen_steps": 149, "judged_steps": 150}
    assert advice["slots"] == (8 * GIB // ROW if best["scope"] == "global" else 8 * GIB // 24 // ROW)
    assert advice["layer_slots"] == 8 * GIB // 24 // ROW


def test_it_is_held_against_no_cache_the_cpu_and_the_bound(machine, advice):
    against, way = advice["against"], {"overlap": advice["overlap"]}
    others = {
        "all_cpu": price(machine, "lru", slots=0, **way),
        "no_cache": price(machine, "lru", slots=0, miss="fetch", **way),
        "bound": price(machine, "opt", vram="8GiB", scope=advice["scope"], **way),
    }
    judged = parts_of(others["bound"]).judged
    for name, other in others.items():
        part = other.only(judged)
        assert against[name]["tokens_per_s"] == pytest.approx(part.tokens_per_s)
        assert against[name]["times"] == pytest.approx(advice["tokens_per_s"] / part.tokens_per_s)
        low, high = against[name]["times_interval"]
        assert low <= against[name]["times"] <= high
    ahead = next(one for one in advice["candidates"] if one["width"])
    still = next(one for one in advice["candidates"] if not one["width"])
    assert advice["prefetch"]["gain"] == pytest.approx(ahead["tokens_per_s"] / still["tokens_per_s"])
    assert advice["prefetch"]["pays"] == (advice["prefetch"]["gain_interval"][0] > 1)


def test_the_curve_ends_where_all_experts_fit_and_a_further_gib_is_what_it_brings(advice):
    curve = advice["curve"]
    assert curve[-1]["pool_bytes"] == 24 * 128 * ROW
    at = next(i for i, one in enumerate(curve) if one["pool_bytes"] == 8 * GIB)
    here, after = curve[at : at + 2]
    assert here["tokens_per_s"] == advice["tokens_per_s"]
    assert after["pool_bytes"] == 9 * GIB
    assert here["per_gib"] == pytest.approx(after["tokens_per_s"] - here["tokens_per_s"])
    low, high = here["per_gib_interval"]
    assert low < here["per_gib"] < high
    flat = [one["pool_bytes"] for one in curve if (one["share_per_gib"] or 0) < 0.01]
    assert advice["flat_from_bytes"] in flat
    assert all(one["pool_bytes"] in flat for one in curve if one["pool_bytes"] >= advice["flat_from_bytes"])


@pytest.mark.once
def test_slots_that_differ_by_layer_take_the_same_bytes_and_are_judged_on_steps_that_divided_nothing(machine, advice):
    found = advice["by_layer"]
    assert sum(found["slots"]) <= 24 * advice["layer_slots"]
    mine = price(machine, found["policy"], slots=found["slots"], width=found["width"], overlap=found["overlap"])
    even = price(machine, found["policy"], vram="8GiB", width=found["width"], overlap=found["overlap"])
    judged = parts_of(mine).judged
    ratio, interval = mine.only(judged).compared(even.only(judged))
    assert (found["gain"], tuple(found["gain_interval"])) == (pytest.approx(ratio), pytest.approx(interval))
    assert found["pays"] == (interval[0] > 1)


def test_a_short_trace_or_small_pools_are_warned_of(machine, advice):
    assert advice["warnings"] == []
    small = slotwise.advise("sample", machine, "1GiB", **ASKED | {"widths": [0], "steps": 100, "scopes": ["global"]})
    assert "less than a token cycle of 1,811,939,328 (8 rows in each layer)" in small["warnings"][0]
    assert "too short to hold a part of it out" in small["warnings"][1]
    assert small["held_out"]["by"] is None
    assert small["by_layer"] is None


@pytest.mark.once
def test_where_nobody_tried_look_ahead_it_is_asked_what_it_could_bring(machine):
    only = slotwise.advise("sample", machine, "8GiB", **ASKED | {"widths": [0]})
    assert (only["prefetch"]["width"], only["prefetch"]["predictor"]) == (4, "trace")
    blind = slotwise.synthesise(n_tokens=400, n_layers=4, n_experts=16, top_k=2)
    asked = {"row_bytes": ROW, "headroom": 0, "policies": ["lru"], "scopes": ["layer"]}
    found = slotwise.advise(blind, machine, 4 * 8 * ROW, **asked)
    assert found["prefetch"]["predictor"] == "oracle"
    assert {one["width"] for one in found["candidates"]} == {0}


@pytest.mark.once
def test_rows_of_unequal_size_have_no_bound_in_one_pool_and_still_an_answer(machine):
    trace = slotwise.open_trace("sample").with_row_bytes([ROW if layer % 3 else ROW // 2 for layer in range(24)])
    asked = {"steps": 200, "headroom": 0, "policies": ["lru"], "widths": [0], "overlaps": ["on"]}
    found = slotwise.advise(trace, machine, "6GiB", scopes=["global"], **asked)
    assert found["slots"] is None
    assert "as many rows as fit in one pool of all layers" in found["answer"][0]
    assert set(found["against"]) == {"all_cpu", "no_cache"}
    assert "rows of unequal size" in found["refused"]["the bound opt"]
    layered = slotwise.advise(trace, machine, "6GiB", scopes=["layer"], **asked)
    slots, row_bytes = layered["by_layer"]["slots"], layered["row_bytes"]
    granted = sum(n * row for n, row in zip(layered["slots_by_layer"], row_bytes, strict=True))
    assert sum(n * row for n, row in zip(slots, row_bytes, strict=True)) <= granted <= 6 * GIB
    assert "bound" in layered["against"]


def test_anchors_set_the_seconds_and_leave_the_machine_its_look_ahead(machine):
    anchors = ["slots=0,tps=40", "slots=64,tps=60"]
    found = slotwise.advise("sample", machine, "8GiB", anchors=anchors, **ASKED)
    fit, replays = found["anchors"], {slots: price(machine, "lru", slots=slots) for slots in (0, 64)}
    misses = {slots: one.step_misses[one.step_phase == 1].mean() for slots, one in replays.items()}
    cost = (1 / 40 - 1 / 60) / (misses[0] - misses[64])
    assert (fit["miss_s"], fit["base_s"]) == (pytest.approx(cost), pytest.approx(1 / 40 - cost * misses[0]))
    best = price(machine, found["policy"], vram="8GiB", scope=found["scope"])
    rest = parts_of(best).judged
    seconds = fit["base_s"] + fit["miss_s"] * best.step_misses[rest]
    assert found["tokens_per_s"] == pytest.approx(rest.sum() / seconds.sum())
    assert {(one["width"], one["overlap"]) for one in found["candidates"]} == {(0, "on")}
    assert set(found["against"]) == {"all_cpu", "bound"}
    assert found["prefetch"]["label"] == "ESTIMATED"
    assert "By your 2 anchors (lru)" in found["answer"][-1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"row_bytes": None}, "the trace does not record how large a row is; give row_bytes"),
        ({"headroom": "8GiB"}, "takes 226,492,416; give vram of 8,816,427,008 bytes or more, or take less"),
        ({"context_bytes": "7.9GiB"}, "less context 8,482,560,409, headroom 0 leaves 107,374,183 bytes"),
        ({"policies": []}, "no candidate can be priced"),
        ({"steps": 1}, "the trace has no decode steps: use phase all"),
        ({"steps": 0}, "steps=0: there is nothing to price; give at least 1"),
        ({"anchor_policy": "lfu"}, "anchor_policy='lfu': .*; give anchors with it"),
        ({"widht": 3}, "no option named 'widht'"),
        ({"scope": "layer"}, r"give scopes=\('layer',\)"),
        ({"ctx": 4096}, "ctx=4096: it is counted from the header of a model; give gguf with it"),
        ({"anchors": ["slots=0,tps=1"]}, "1 anchor: a line needs two runs"),
        ({"anchors": ["slots=0,tps=1", "slots=129,tps=2"]}, "one has 128 experts"),
        ({"anchors": ["slots=0,tps=1", "slots=9,tps=2"], "phase": "all"}, "anchors are speeds of decode"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(machine, more, said):
    with pytest.raises(slotwise.BadOption, match=said):
        slotwise.advise("sample", machine, "8GiB", **ASKED | more)


@pytest.mark.parametrize("more", [{"policies": ["lru", "opt"]}, {"policies": ["belady"]}, {"anchor_policy": "opt"}])
def test_what_knows_the_future_is_no_candidate(machine, more):
    with pytest.raises(slotwise.BadPolicy, match="needs to know the future, so no engine can run it"):
        slotwise.advise("sample", machine, "8GiB", **ASKED | {"anchors": ["slots=0,tps=1", "slots=9,tps=2"]} | more)


def test_the_command_prints_thirty_lines_or_json_and_writes_a_page(machine, tmp_path, advice):
    file = slotwise.write_machine(machine, tmp_path / "machine.json")
    words = ["advise", "sample", "--machine", file, "--vram", "8GiB", "--headroom", "0", "--row-bytes", str(ROW)]
    words += ["--steps", "300", "--policy", "lru", "--policy", "lru+gate"]
    assert json.loads(command(*words, "--json").stdout) == json.loads(json.dumps(advice))
    page = tmp_path / "advice.html"
    said = command(*words, "-o", page).stdout
    assert said.count("\n") <= 31
    assert said.startswith(f"Run {advice['policy']} ")
    for wanted in ("all experts on the CPU", "Warm-up: ", "--moe-cache-slots 37", "not run here", "a further GiB"):
        assert wanted in said
    assert page.read_text().startswith("<!doctype html>")
    again = command(*words, "-o", page, code=2)
    assert again.stderr == f"slotwise: {page}: is there already; name another file, or replace it with --force\n"


def test_where_all_experts_are_resident_no_precision_is_asked_for(machine):
    """8 GiB hold the 2 x 8 experts many times over; with pools that start anew at each request look-ahead may pay."""
    trace = slotwise.synthesise(n_tokens=300, n_layers=2, n_experts=8, top_k=2)
    asked = {"row_bytes": 4_000_000, "headroom": "2MiB", "policies": ["lru"], "scopes": ["layer"]}
    found = slotwise.advise(trace, machine, "8GiB", **asked)
    assert (found["all_resident"], found["prefetch"]) == (True, None)
    assert sum("Look-ahead has nothing to bring: the pools hold all experts" in one for one in found["answer"]) == 1
    assert not any("needed" in one for one in found["answer"])
    for less in ({"reset": "request"}, {"vram": "60MiB"}):
        other = slotwise.advise(trace, machine, **{"vram": "8GiB", **asked, **less})
        assert (other["all_resident"], other["prefetch"]["width"]) == (False, 4)
        assert any("needed" in one for one in other["answer"])


def test_sizes_below_a_gib_are_told_in_mib_and_warnings_stand_on_stderr_alone(machine, tmp_path):
    slotwise.synthesise(n_tokens=100, n_layers=2, n_experts=8, top_k=2).save(tmp_path / "t.parquet")
    file = slotwise.write_machine(machine, tmp_path / "machine.json")
    words = ["advise", tmp_path / "t.parquet", "--machine", file, "--vram", "20MiB", "--headroom", "2MiB"]
    words += ["--row-bytes", "4000000", "--policy", "lru", "-o", tmp_path / "a.html", "--force"]
    told, printed = command(*words), command(*words, "--json")
    assert "20 MiB of VRAM - 2 MiB headroom = 18 MiB, 18 MiB of it for experts" in " ".join(told.stdout.split())
    assert "7.63 MiB" in told.stdout  # a row in each layer, the curve's first size
    assert "0.01 GiB" not in told.stdout
    assert "warning" not in told.stdout
    assert told.stderr == printed.stderr
    warnings = json.loads(printed.stdout)["warnings"]
    assert len(warnings) == 1
    assert told.stderr.splitlines() == [f"slotwise: warning: {one}" for one in warnings]


def test_verify_steps_are_named_and_their_optimism_told(machine):
    found = slotwise.advise("sample", machine, "8GiB", verify_tokens=3, accept=0.7, **ASKED | {"widths": [0]})
    assert "verify steps hold the tokens that follow" in found["warnings"][0]
    assert "of decode steps of 3 tokens" in found["answer"][0]
    one = price(machine, found["policy"], vram="8GiB", scope=found["scope"], overlap=found["overlap"],
                verify_tokens=3, accept=0.7)  # fmt: skip
    assert found["tokens_per_s"] == pytest.approx(one.only(parts_of(one).judged).tokens_per_s)
