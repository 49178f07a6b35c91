"""Advice is the best of prices that anybody can ask for one by one, against bounds, and warned where pools are tiny."""

import json

import pytest
from conftest import slotwise as command

import slotwise

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
def test_the_answer_is_the_fastest_candidate_and_each_is_an_ordinary_price(machine, advice):
    speeds = [one["tokens_per_s"] for one in advice["candidates"]]
    assert speeds == sorted(speeds, reverse=True)
    assert {(one["policy"], one["width"]) for one in advice["candidates"]} == {
        (policy, width) for policy in ("lru", "lru+gate") for width in (0, 4)
    }
    for one in advice["candidates"]:
        mine = price(machine, one["policy"], vram="8GiB", width=one["width"])
        assert one["tokens_per_s"] == mine.tokens_per_s
        assert tuple(one["tokens_per_s_interval"]) == mine.intervals["tokens_per_s"]
    assert (advice["policy"], advice["tokens_per_s"]) == (advice["candidates"][0]["policy"], speeds[0])
    assert advice["label"] == "ESTIMATED"
    assert advice["slots"] == 8 * GIB // 24 // ROW


def test_it_is_held_against_no_cache_the_cpu_and_the_bound(machine, advice):
    against = advice["against"]
    assert against["all_cpu"]["tokens_per_s"] == price(machine, "lru", slots=0).tokens_per_s
    assert against["no_cache"]["tokens_per_s"] == price(machine, "lru", slots=0, miss="fetch").tokens_per_s
    assert against["bound"]["tokens_per_s"] == price(machine, "opt", vram="8GiB").tokens_per_s
    for one in against.values():
        assert one["times"] == pytest.approx(advice["tokens_per_s"] / one["tokens_per_s"])
    ahead = max((one for one in advice["candidates"] if one["width"]), key=lambda one: one["tokens_per_s"])
    still = max((one for one in advice["candidates"] if not one["width"]), key=lambda one: one["tokens_per_s"])
    assert advice["prefetch"]["gain"] == pytest.approx(ahead["tokens_per_s"] / still["tokens_per_s"])


def test_the_curve_ends_where_all_experts_fit_and_a_further_gib_is_its_slope(advice):
    curve = advice["curve"]
    assert curve[-1]["pool_bytes"] == 24 * 128 * ROW
    assert curve[-1]["slots"] == 128
    a, b = curve[:2]
    rise = (b["tokens_per_s"] - a["tokens_per_s"]) / ((b["pool_bytes"] - a["pool_bytes"]) / GIB)
    assert a["per_gib"] == pytest.approx(rise)
    assert next(one for one in curve if one["pool_bytes"] == 8 * GIB)["tokens_per_s"] == advice["tokens_per_s"]


def test_pools_below_a_token_cycle_are_warned_of(machine, advice):
    assert advice["warnings"] == []
    small = slotwise.advise("sample", machine, "1GiB", **ASKED | {"widths": [0]})
    assert "less than a token cycle of 1,811,939,328 (8 rows in each layer)" in small["warnings"][0]
    assert small["prefetch"] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"row_bytes": None}, "the trace does not record how large a row is; give row_bytes"),
        ({"headroom": "8GiB"}, "leaves 0 bytes: a slot in each layer takes 226,492,416"),
        ({"policies": []}, "no candidate can be priced"),
        ({"steps": 1}, "the trace has no decode steps: use phase all"),
        ({"widht": 3}, "no option named 'widht'"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(machine, more, said):
    with pytest.raises(slotwise.BadOption, match=said):
        slotwise.advise("sample", machine, "8GiB", **ASKED | more)


def test_the_command_prints_an_answer_or_json(machine, tmp_path, advice):
    file = slotwise.write_machine(machine, tmp_path / "machine.json")
    words = ["advise", "sample", "--machine", file, "--vram", "8GiB", "--headroom", "0", "--row-bytes", str(ROW)]
    words += ["--steps", "300", "--policy", "lru", "--policy", "lru+gate"]
    assert json.loads(command(*words, "--json").stdout) == json.loads(json.dumps(advice))
    said = command(*words, "--width", "0").stdout
    assert said.startswith("ESTIMATED, ")
    assert "all experts on the CPU" in said
