"""The benchmarks run: tiny, and every figure is there. Times are never asserted, they belong to the machine."""

import json
import math
import sys

import pytest
from conftest import ROOT, python, run, some

import slotwise

pytestmark = pytest.mark.once

SPEED = ("load_speed", "startup", "memory", "live_calls", "replay_speed", "pricing_speed", "cold_speed")
PEERLESS = {"replay_speed": "measures against libCacheSim"}  # the benchmarks that need the extra `bench`


def bench(name, *words, code=0):
    """The rows that a benchmark prints, the first being the machine."""
    printed = run(sys.executable, ROOT / "benchmarks" / f"{name}.py", *words, "--tiny", code=code).stdout
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("name", some(SPEED))
def test_a_benchmark_prints_the_machine_and_its_figures(name):
    """They are rounded: on a busy machine one may read 0.0, all of a row cannot."""
    if name in PEERLESS:
        pytest.importorskip("libcachesim", reason=f"{name} {PEERLESS[name]}: pip install '.[bench]'")
    machine, *rows = bench(name)
    assert machine["machine"]["cores"] >= 1
    assert rows
    for row in rows:
        figures = {key: value for key, value in row.items() if isinstance(value, float) or key.endswith(", ns")}
        assert figures
        assert all(0 <= value < math.inf for value in figures.values()), row
        assert any(figures.values()), row


def test_the_cost_of_a_capture_is_measured_for_decode_for_prompts_and_for_the_file_alone():
    pytest.importorskip("torch", reason="captures need torch: pip install '.[capture]'")
    pytest.importorskip("transformers", reason="captures need transformers: pip install '.[capture]'")
    rows = bench("capture_overhead")[1:]
    assert [(row["what"], row["batch"]) for row in rows] == [
        ("decode", 1),
        ("decode", 8),
        ("prompts", 1),
        ("one token", 1),
    ]
    assert all(row["time with / without"] > 0 for row in rows)


def test_an_executor_under_stress_takes_no_memory_after_it_has_opened():
    """1,900 tokens of a prompt and 400 verify steps: the benchmark would end with an error itself."""
    (row,) = bench("stress")[1:]
    assert (row["allocations"], row["device bytes taken"]) == (0, 0)
    assert row["grown, KiB"] <= 2048
    assert 0 < row["step p50, ms"] <= row["step p95, ms"] <= row["step p99, ms"]
    assert row["steps"] == 400


def test_live_calls_covers_every_policy_that_can_run_live():
    policies = python(
        f"import sys; sys.path[0] = {str(ROOT / 'benchmarks')!r}; import live_calls as l; print(*l.ranked_policies())"
    )
    live = {row["name"] for row in slotwise.list_policies() if not row["needs_future"] and row["name"][0] != "+"}
    assert live - set(policies.split()) == {"static"}


def test_a_short_fuzz_finds_no_reader_that_breaks(tmp_path):
    """A few cases a reader; a failure would end the benchmark with an error and keep its file."""
    rows = bench("fuzz_formats", "--failures", tmp_path)[1:]
    assert {row["format"] for row in rows} == {row["name"] for row in slotwise.list_formats()}
    assert all(row["cases"] >= 20 for row in rows if "skipped" not in row)
    assert [row["format"] for row in rows if "skipped" in row] in ([], ["sglang"])


BROKEN = """
import sys
sys.path[0] = {folder!r}
from pathlib import Path
import fuzz_cases, numpy, slotwise
read = slotwise.open_trace
def broken(path, *words, **hints):
    if Path(path).stat().st_size % 3 == 1:
        {what}
    return read(path, *words, **hints)
slotwise.open_trace = broken
lines = [b'{{"layer_idx": 0, "token_idx": %d, "selected_ids": [1]}}\\n' % t for t in range(9)]
print(fuzz_cases.fuzz("lattice", [("t.dat", b"".join(lines), {{"n_experts": 4}})], 20, 0, Path({out!r}))["failure"])
"""


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("raise slotwise.BadTrace('two\\nlines')", "AssertionError: more than one line"),
        ("raise slotwise.BadTrace('which?')", "AssertionError: the file is not named"),
        ("numpy.ones(1 << 27).sum()", "bytes were taken for a file of"),
    ],
)
def test_a_reader_that_breaks_is_found(tmp_path, what, words):
    assert words in python(BROKEN.format(folder=str(ROOT / "benchmarks"), what=what, out=str(tmp_path)))


def test_a_reader_that_takes_its_process_with_it_is_found_and_its_file_kept(tmp_path):
    script = """
import sys
sys.path[0] = {folder!r}
from argparse import Namespace
import fuzz_cases, fuzz_formats
from pathlib import Path
Path({out!r}, "dies.py").write_text("import os, sys; open(sys.argv[4] + '/npz', 'w').close(); os.abort()")
fuzz_cases.__file__ = {out!r} + "/dies.py"
fuzz_formats.shutil.copytree = lambda *words, **options: None
print(fuzz_formats.fuzzed(["npz", "tidy"], 1, Namespace(seed=0, failures={out!r})))
"""
    said = python(script.format(folder=str(ROOT / "benchmarks"), out=str(tmp_path)))
    assert "'format': 'npz', 'failure': 'the process ended with -6" in said


def test_an_import_of_text_tells_its_memory():
    (row,) = bench("import_memory")[1:]
    assert row["file, MB"] >= 4
    assert 0 < row["above 1 MB, MB"] < 40


def test_the_published_table_is_held_against_ours_row_by_row(shared):
    rows = bench("bigmoeonedge", shared / "traces" / "bigmoeonedge")[1:]
    assert len(rows) == 6
    assert all(row["equal"] == 3 for row in rows)


def test_a_published_figure_that_differs_is_an_error(shared, tmp_path):
    folder = shared / "traces" / "bigmoeonedge"
    table = (folder / "gemma-curve.csv").read_text().replace("27.443", "27.444", 1)
    (tmp_path / "gemma-curve.csv").write_text(table)
    (tmp_path / "gemma.route.csv").symlink_to(folder / "gemma.route.csv")
    rows = bench("bigmoeonedge", tmp_path, code=1)[1:]
    assert [row["equal"] for row in rows] == [2, 3, 3]


def test_prices_are_held_against_runs_over_traces_and_the_same_command_goes_on(tmp_path):
    pytest.importorskip("slotwise.executor._cold", reason="the cold chain was not built")
    words = "--out", tmp_path / "V"
    _, part, whole = bench("validation", *words)
    assert (part["what"], whole["what"]) == ("tiny, as is, sample-cut", "all")
    assert sum(each["configurations"] for each in part["by bound"].values()) == part["configurations"] >= 6
    there = {path.name: path.read_bytes() for path in (tmp_path / "V").iterdir()}
    assert there.keys() == {"tiny-as-is.machine.json", "tiny-as-is-sample.validation.json", "all.json"}
    assert json.loads(there["all.json"])["parts"][0]["trace"] == "sample-cut"
    bench("validation", *words)
    assert {path.name: path.read_bytes() for path in (tmp_path / "V").iterdir()} == there
