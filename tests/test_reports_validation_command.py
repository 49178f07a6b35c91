"""`slotwise validate -o` leaves a page beside its result, and `slotwise report` makes the same one of it again."""

import json

import pytest
from cold_cases import built
from conftest import slotwise as command

import slotwise
from slotwise.reports import metrics


@pytest.mark.skipif(not built(), reason="the cold chain was not built")
def test_the_command_leaves_result_and_page_in_a_folder_and_report_makes_the_same_page_again(tmp_path):
    machine = slotwise.calibrate(shape="tiny", quick=True, cpu_threads=1)
    file = slotwise.write_machine(machine, tmp_path / "machine.json")
    words = ["validate", "sample", "--machine", file, "--steps", "3", "--headroom", "0", "--alias-layers", "1"]
    words += ["--blocks", "2", "--policy", "lru", "--policy", "lfru", "--slots", "25%", "--not-again"]
    out = tmp_path / "out"
    assert f"Report: {out}/report.html" in command(*words, "-o", out).stdout
    found = json.loads((out / "validation.json").read_text())
    first = (out / "report.html").read_bytes()
    assert f"Verdict: {found['verdict']}" in first.decode()
    row = found["configurations"][1]
    assert metrics.number(row["measured"]) in first.decode()
    command("report", out / "validation.json", "-o", out)
    assert (out / "report.html").read_bytes() == first
    assert "a validation replaces none; name another" in command(*words, "-o", out, code=2).stderr
    command("report", file, "-o", tmp_path / "other")
    said = command(*words, "-o", tmp_path / "other", code=2).stderr
    assert "holds a report on host memory" in said
    assert not (tmp_path / "other/validation.json").exists()
    command(*words, "--cpu", "x", "-o", tmp_path / "none", code=2)
    command(*words[:2], "--machine", tmp_path / "missing.json", "-o", tmp_path / "none", code=2)
    assert not (tmp_path / "none").exists()
