"""Validations of several traces and machines are judged as one, and a line that fits everything is no reason."""

import numpy as np
import pytest

from slotwise.validate_judge import Evidence, judge
from slotwise.validate_merge import merge_validations


def result(predicted, measured, *, trace="a", machine="m", drift=None, blocks=7):
    """What `validate` returns, in what a merge reads of it, of configurations with these tokens per second."""
    n = len(predicted)
    found = Evidence(
        predicted=np.array(predicted), measured=np.tile(measured, (blocks, 1)) * NEAR[:blocks, None],
        sentinel=np.tile([measured[0]] * 2, (blocks, 1)), strata=["cold", "hot"] * (n // 2), twins=["all"] * n,
        misses=np.arange(n) / n, loads=np.zeros(n), drift=drift, labels=["SIMULATED"] * n,
    )  # fmt: skip
    judged = judge(found)
    fitted = judged.pop("baseline")
    rows = [
        {
            "label": "SIMULATED", "predicted": told, "measured": true, "error": told / true - 1, "stratum": stratum,
            "baseline": line, "terms": {"rest_s": {"predicted": 0.2, "measured": 0.1}},
        }
        for told, true, line, stratum in zip(predicted, judged["measured"], fitted, found.strata, strict=True)
    ]  # fmt: skip
    said = dict.fromkeys(
        ("content_sha256", "machine_date", "backend", "device", "processor", "restricted_to", "options")
    )
    return judged | said | {
        "rows": "tiny, f32", "trace": trace, "machine": machine, "machine_sha256": machine,
        "configurations": rows, "terms": {"rest_s": 0.1},
        "each_block": [{}] * blocks,
    }  # fmt: skip


NEAR = np.array([1, 1.001, 0.999, 1, 1.001, 0.999, 1])
SPEEDS = [10.0, 20.0, 40.0, 80.0]


def test_validations_of_one_machine_share_its_last_calibration_and_their_errors_are_summed_up_together():
    one = result([10.1, 20.2, 40.4, 80.8], SPEEDS, trace="a")
    other = result([10.2, 20.4, 40.8, 81.6], SPEEDS, trace="b", drift=0.01)
    both = merge_validations([one, other])
    assert one["verdict"] == "inconclusive"
    assert both["verdict"] == "passed"
    assert both["drift"] == 0.01
    assert both["all"]["configurations"] == 8
    assert both["all"]["median"] == pytest.approx(0.015, abs=0.001)
    assert both["all"]["worst"] == pytest.approx(0.02)
    assert both["strata"]["hot"]["configurations"] == 4
    assert both["kendall_tau"] == 1
    assert both["pairs"]["of"] == 12
    last = both["pairs"]["each"][-1]
    assert (last["first"], last["second"]) == (6, 7)
    assert [row["part"] for row in both["configurations"]] == [1] * 4 + [2] * 4
    assert [part["trace"] for part in both["parts"]] == ["a", "b"]


def test_a_part_that_is_wrong_or_restless_decides_for_all_and_is_named():
    good = result(SPEEDS, SPEEDS, drift=0.01)
    bad = result([12.0, 24.0, 48.0, 96.0], SPEEDS, machine="other", drift=0.01)
    found = merge_validations([good, bad])
    assert found["verdict"] == "failed"
    assert "worst error 20.0 %; at most 15 %" in found["reasons"]
    restless = merge_validations([good, result(SPEEDS, SPEEDS, machine="other", drift=0.05)])
    assert restless["verdict"] == "inconclusive"
    assert "part 2, tiny, f32, a: prices of two calibrations differ by 5.0 %; at most 3 %" in restless["reasons"]
    few = merge_validations([good, result(SPEEDS, SPEEDS, machine="third", blocks=3)])
    assert "part 2, tiny, f32, a: 3 blocks count; at least 7 must" in few["reasons"]
    assert "part 2, tiny, f32, a: the machine was not calibrated again afterwards" in few["reasons"]


def test_a_line_through_every_point_is_no_reason_but_a_doubt():
    found = result([10.4, 20.8], [10.0, 20.0], drift=0.01)
    assert found["reasons"] == ["a line of 3 coefficients goes through 2 configurations: run more"]
    assert found["verdict"] == "inconclusive"
    many = result([10.4, 20.8, 41.6, 83.2], SPEEDS, drift=0.01)
    assert "a line of 3 coefficients" not in str(many["reasons"])
