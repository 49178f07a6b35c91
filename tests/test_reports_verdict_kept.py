"""The verdict of a validation file is held against its own numbers before a report repeats it."""

import pytest
from test_reports_validation import made_up, report

import slotwise
from slotwise.validate_merge import merge_validations

SAID = "its verdict is '{}', but its numbers say '{}': the file was changed, or judged by other rules; make it again"


@pytest.mark.parametrize("told", ["passed", "failed", "inconclusive"])
@pytest.mark.parametrize(
    ("right", "found"),
    [
        ("passed", made_up()),
        ("failed", made_up(off=0.3)),
        ("inconclusive", made_up(drift=None)),
        ("failed", merge_validations([made_up(), made_up(off=0.3) | {"trace": "another"}])),
        ("inconclusive", merge_validations([made_up(), made_up(drift=0.5) | {"machine_sha256": "e" * 64}])),
        ("passed", merge_validations([made_up(), made_up(drift=None) | {"trace": "another"}])),
    ],
)
def test_a_verdict_that_the_numbers_of_its_file_contradict_is_refused_in_a_line(tmp_path, right, found, told):
    assert found["verdict"] == right
    if told == right:
        assert f"Verdict: {right}" in report(found, tmp_path)[1].text
        return
    with pytest.raises(slotwise.BadResult) as refused:
        report(found | {"verdict": told}, tmp_path)
    assert SAID.format(told, right) in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_numbers_that_were_changed_under_a_verdict_are_found_too(tmp_path):
    found = made_up()
    found["configurations"][0]["measured"] /= 2
    with pytest.raises(slotwise.BadResult, match="is 'passed', but its numbers say 'failed'"):
        report(found, tmp_path)
