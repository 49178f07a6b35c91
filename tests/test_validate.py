"""Prices are held against runs: plans are equal or it fails; the verdict follows its rules. No time is judged here."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from cold_cases import built
from conftest import slotwise as command
from executor_cases import no_thread_left

import slotwise
from slotwise.executor.errors import CheckFailed
from slotwise.validate_grid import grid_of
from slotwise.validate_judge import Evidence, baseline, judge, kendall, kept_blocks, noise_of

native = pytest.mark.skipif(not built(), reason="the cold chain was not built")
SMALL = {"policies": ["lru", "lfru+guard"], "slots": ["25%"], "steps": 6, "headroom": 0, "alias_layers": 1}


@pytest.fixture(scope="module")
def machine():
    return slotwise.calibrate(shape="tiny", quick=True, cpu_threads=1)


# --- the runs ---


@pytest.mark.once
@native
def test_a_grid_of_everything_plans_as_its_replays_do_and_every_configuration_is_priced_and_measured(machine):
    found = slotwise.validate(
        "sample", machine, **SMALL, widths=[0, 2], overlaps=["on", "off"], verify_tokens=[1, 3],
        misses=["cpu", "fetch"], blocks=1, again=False,
    )  # fmt: skip
    rows = found["configurations"]
    assert len({tuple(list(row.values())[:6]) for row in rows}) == len(rows) == 24
    assert found["plans"] == "equal"
    assert all(row["predicted"] > 0 and row["measured"] > 0 and row["label"] == "SIMULATED" for row in rows)
    assert {row["stratum"] for row in rows} <= {"cold", "hot", "link", "host"}
    assert sum(each["configurations"] for each in found["strata"].values()) == found["all"]["configurations"] == 24
    assert found["left_out"] == ["lfru+guard"]
    assert found["pairs"]["of"] == 8, "two policies at each of 8 settings with a width"
    assert found["verdict"] == "inconclusive"
    assert "1 block counts; at least 7 must" in found["reasons"]
    assert "the machine was not calibrated again afterwards" in found["reasons"]
    assert [len(runs) for runs in found["each_block"][0]["tokens_per_s"]] == [3, *[1] * 23], "the sentinel ran thrice"
    first = rows[0]
    law = slotwise.replay("sample", "lru", "25%", steps=6, row_bytes=3 * 128 * 64 * 4, plan_hash=True, machine=machine)
    assert (first["plan_sha256"], first["predicted"]) == (law.plan_sha256, law.price.tokens_per_s)


@native
def test_a_plan_that_is_not_the_replays_ends_it(machine, monkeypatch):
    module = import_module("slotwise.validate")
    true = module.replay_run
    monkeypatch.setattr(module, "replay_run", lambda *a, **k: replace(true(*a, **k), plan_sha256="0" * 64))
    with (
        no_thread_left(),
        pytest.raises(CheckFailed, match="lru, 25% slots, width 0, overlap on, cpu: the plans differ"),
    ):
        slotwise.validate("sample", machine, **SMALL, blocks=1, again=False)


@native
def test_finished_blocks_are_kept_and_gone_on_with_for_the_same_question_alone(machine, tmp_path):
    out = tmp_path / "V.json"
    asked = SMALL | {"blocks": 2, "again": False, "out": out}

    def stop(done, total, what):
        if what.startswith("block 2"):
            raise KeyboardInterrupt

    with no_thread_left(), pytest.raises(KeyboardInterrupt):
        slotwise.validate("sample", machine, **asked, progress=stop)
    first = json.loads((tmp_path / "V.json.part").read_text())["blocks"]
    assert len(first) == 1
    with pytest.raises(slotwise.BadOption, match="holds blocks of another validation; remove it"):
        slotwise.validate("sample", machine, **asked | {"steps": 5})
    found = slotwise.validate("sample", machine, **asked)
    assert found["each_block"][0] == first[0]
    assert json.loads(out.read_text()) == found
    assert [path.name for path in tmp_path.iterdir()] == ["V.json"]
    with pytest.raises(slotwise.BadOption, match=r"V.json exists: a validation replaces none"):
        slotwise.validate("sample", machine, **asked)


@native
def test_the_command_calibrates_again_and_prints_tables_or_json(machine, tmp_path):
    file = slotwise.write_machine(machine, tmp_path / "machine.json")
    words = ["validate", "sample", "--machine", file, "--steps", "3", "--headroom", "0", "--alias-layers", "1"]
    words += ["--blocks", "1", "--policy", "lru", "--slots", "25%"]
    found = json.loads(command(*words, "--json").stdout)
    assert set(found["drift_by_part"]) == {"hot", "cold", "link", "host"}
    said = command(*words, "--overlap", "on,off", "--not-again", "-o", tmp_path / "V.json").stdout
    assert "plans equal, tick for tick; 1 block," in said
    assert "clocks and temperature are not told by this backend" in " ".join(said.split())
    assert "verdict: inconclusive" in said


def test_what_cannot_be_validated_is_refused(tmp_path):
    estimated = slotwise.estimate_machine(link="12GB/s", host_read="45GB/s", device_read="360GB/s")
    with pytest.raises(slotwise.BadOption, match="its figures come from no measurement here; `slotwise calibrate`"):
        slotwise.validate("sample", estimated)
    measured = replace(estimated, label="MEASURED", details={"asked": {}})
    with pytest.raises(slotwise.BadOption, match="blocks=0: a whole number of at least 1"):
        slotwise.validate("sample", measured, blocks=0)


# --- the verdict ---


def evidence(off=0.0, noise=0.0, **more):
    """Eight configurations, two policies at four sizes, whose prices are all off by so much; ten blocks."""
    true = np.array([10.0, 12.0, 20.0, 25.0, 30.0, 33.0, 50.0, 60.0])
    wave = 1 + noise * np.where(np.arange(10) % 2, 1, -1)[:, None]
    found = {
        "predicted": true * (1 + off), "measured": true * np.ones((10, 8)),
        "sentinel": 10 * np.hstack([wave, 1 / wave]),
        "strata": ["cold", "hot", "link", "host"] * 2, "twins": [0, 0, 1, 1, 2, 2, 3, 3],
        "misses": np.array([9, 7, 6, 5, 3, 4, 1, 2.0]), "loads": np.array([1, 5, 2, 8, 3, 1, 0, 2.0]),
        "drift": 0.01, "labels": ["SIMULATED"] * 8,
    }  # fmt: skip
    return Evidence(**found | more)


def test_right_prices_pass():
    found = judge(evidence())
    assert (found["verdict"], found["reasons"], found["kendall_tau"]) == ("passed", [], 1.0)
    assert found["all"]["median"] == found["all"]["worst"] == 0.0
    assert (found["pairs"]["of"], found["pairs"]["decided"], found["pairs"]["wrong_sign"]) == (4, 4, 0)


def test_wrong_prices_fail_by_every_limit_that_they_break():
    assert judge(evidence(off=0.04))["all"]["median"] == pytest.approx(0.04)
    found = judge(evidence(off=0.2))
    assert found["verdict"] == "failed"
    assert found["reasons"][:3] == [
        "median error 20.0 %; at most 5 %", "p95 error 20.0 %; at most 10 %", "worst error 20.0 %; at most 15 %"
    ]  # fmt: skip


def test_policies_in_the_wrong_order_fail_whatever_the_error():
    told = np.array([10.0, 9.9, 20.0, 25.0, 30.0, 33.0, 50.0, 60.0])
    found = judge(evidence(predicted=told))
    assert found["pairs"]["wrong_sign"] == 1
    assert "1 of 4 pairs of policies have the wrong sign" in found["reasons"]
    assert found["kendall_tau"] == pytest.approx(1 - 2 / 28)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"noise": 0.03}, "identical runs differ by 4.2 %; at most 2.5 %"),
        ({"drift": None}, "the machine was not calibrated again afterwards"),
        ({"drift": 0.05}, "prices of two calibrations differ by 5.0 %; at most 3 %"),
        ({"labels": ["ESTIMATED"] * 8}, "8 prices are ESTIMATED: the machine has no sheets for these rows"),
        ({"measured": np.ones((6, 8)), "sentinel": np.ones((6, 2))}, "6 blocks count; at least 7 must"),
    ],
)
def test_a_restless_machine_concludes_nothing(more, said):
    found = judge(evidence(**more))
    assert found["verdict"] == "inconclusive"
    assert found["reasons"][0] == said


@pytest.mark.parametrize(
    ("passes", "does_not"),
    [({"noise": 0.017}, {"noise": 0.018}), ({"drift": 0.03}, {"drift": 0.0301})],  # repeats 2.4 and 2.55 % apart
)
def test_each_rule_has_its_limit_where_the_law_puts_it(passes, does_not):
    assert judge(evidence(**passes))["verdict"] == "passed"
    assert judge(evidence(**does_not))["verdict"] == "inconclusive"


def test_dropped_blocks_count_neither_among_the_seven_nor_in_the_figures():
    found = evidence()
    sentinel, measured = found.sentinel[:8].copy(), found.measured[:8].copy()
    sentinel[:2] *= [[1.031], [0.969]]
    measured[:2] *= 3
    judged = judge(replace(found, sentinel=sentinel, measured=measured))
    assert (judged["blocks"], judged["blocks_dropped"]) == (8, 2)
    assert judged["all"]["worst"] == 0
    assert judged["reasons"] == ["6 blocks count; at least 7 must"]
    sentinel[:2] = found.sentinel[:2] * [[1.029], [0.971]]
    assert judge(replace(found, sentinel=sentinel, measured=measured))["blocks_dropped"] == 0


def test_too_few_blocks_give_no_interval_and_decide_no_pair():
    for blocks, there in ((4, False), (5, True)):
        found = evidence()
        judged = judge(replace(found, measured=found.measured[:blocks], sentinel=found.sentinel[:blocks]))
        assert all((each is not None) == there for each in judged["intervals"])
        pairs = judged["pairs"]["each"]
        assert pairs
        assert all((pair["interval"] is not None) == there for pair in pairs)
        assert any(pair["decided"] for pair in pairs) == there


def test_blocks_whose_sentinel_is_off_are_dropped():
    sentinel = np.array([[100.0, 100.0]] * 5 + [[110.0, 100.0]])
    assert kept_blocks(sentinel).tolist() == [True] * 5 + [False]
    assert noise_of(np.array([[99.0, 101.0], [101.0, 99.0]])) == pytest.approx(0.02 / 2**0.5)


def test_the_baseline_is_a_line_and_tau_counts_pairs():
    misses, loads = np.array([0.0, 1, 2, 3]), np.array([5.0, 0, 1, 7])
    assert baseline(1 / (2 + 3 * misses + 0.5 * loads), misses, loads) == pytest.approx(
        1 / (2 + 3 * misses + 0.5 * loads)
    )
    assert kendall(np.array([1, 2, 3]), np.array([1, 3, 2])) == pytest.approx(1 / 3)
    assert kendall(np.array([1]), np.array([1])) is None


# --- the grid ---

AXES = (["10%", "25%", "50%", "75%", "90%"], [0, 2, 4, 8], ["on", "off"], [1, 4], ["cpu", "fetch"])
POLICIES = ["lru", "lfru", "lfru+guard", "lru+gate"]


def alike(config):
    return "link"


@pytest.mark.parametrize("draw", [1, 7, 20, 100, 159])
def test_drawn_settings_are_even_and_all_different_and_the_same_twice(draw):
    grid, same, other = (grid_of(POLICIES, *AXES, draw=draw, seed=seed, bound_by=alike) for seed in (3, 3, 4))
    assert grid == same != other
    settings = [one[1:] for one in grid if one.policy == "lru"]
    assert len(set(settings)) == len(settings) == draw
    for axis, met in zip(AXES, zip(*settings, strict=True), strict=True):
        counts = [met.count(value) for value in axis]
        assert draw > 20 or max(counts) - min(counts) <= 1
    assert {one[1:] for one in grid if one.policy == "lfru+guard"} == {one for one in settings if one[1]}


def test_what_few_settings_are_bound_by_is_drawn_as_often_as_what_most_are():
    def bound_by(config):
        return "link" if config.width else "hot" if config.overlap == "on" else "cold"

    grid = grid_of(["lru"], *AXES, draw=9, seed=0, bound_by=bound_by)
    assert sorted(map(bound_by, grid)) == ["cold"] * 3 + ["hot"] * 3 + ["link"] * 3


def test_a_pair_that_its_own_blocks_do_not_tell_apart_better_is_not_called_wrong():
    found = evidence()
    restless = found.measured.copy()
    restless[:, 1] *= np.tile([1.0, 1.1, 0.9], 5)[: len(restless)]
    told = found.predicted.copy()
    told[1] *= 1.06  # the pair's gain is off by more than a quarter and by more than identical runs are
    for measured, wrong in ((found.measured, 1), (restless, 0)):
        judged = judge(replace(found, predicted=told, measured=measured))
        assert judged["pairs"]["decided"] == 4
        assert judged["pairs"]["wrong_size"] == wrong


def test_all_settings_are_the_product_and_a_guard_alone_is_run_as_asked():
    every = grid_of(POLICIES, *AXES, draw=None, seed=0, bound_by=alike)
    assert len(every) == 4 * 160 - 40
    assert grid_of(POLICIES, *AXES, draw=200, seed=0, bound_by=alike) == every
    alone = grid_of(["lru+guard"], ["1"], [0], ["on"], [1], ["cpu"], draw=None, seed=0, bound_by=alike)
    assert [one.policy for one in alone] == ["lru+guard"]
    with pytest.raises(slotwise.BadOption, match=r"draw=0: a whole number of settings, at least 1"):
        grid_of(POLICIES, *AXES, draw=0, seed=0, bound_by=alike)
