"""Sweeps: a grid into one file. Nothing that finished is run again or lost, and the same grid gives the same bytes."""

import fcntl
import signal
import sys

import pyarrow.parquet as pq
import pytest
from conftest import run
from trace_cases import demanding, tiny

import slotwise
from slotwise import BadOption, BadPolicy, BadTrace

GRID = {"policies": ["lru", "lfru+guard"], "slots": "2,50%", "widths": [0, 2]}  # 8 configurations


@pytest.fixture(scope="module")
def trace():
    """2 layers of 8 experts, 90 tokens of two requests, two predictions each."""
    return slotwise.Trace.synthesise(
        n_tokens=90, n_layers=2, n_experts=8, top_k=2, width=2, requests=2, prompt_tokens=6, row_bytes=100, name="toy"
    )


@pytest.fixture
def out(tmp_path):
    return tmp_path / "r.parquet"


def ran(*traces, out, **how) -> int:
    """How many configurations a sweep ran (those that it found in the file are not among them)."""
    told = []
    grid = {"policies": ["lru"], "slots": "2"} | how
    slotwise.sweep(traces, out=out, progress=lambda done, total, what: told.append((done, total)), **grid)
    assert told == [(i + 1, len(told)) for i in range(len(told))]
    return len(told)


def rows(out):
    return [row | {"seconds": None} for row in pq.read_table(out).to_pylist()]


def shown(out):
    return [(row["trace"], row["policy"], row["slots_asked"], row["width"]) for row in rows(out)]


# ---- what is in the file


def test_every_row_is_what_a_replay_of_its_own_says(trace, out):
    assert slotwise.sweep([trace], **GRID, out=out, plan_hash=True, window=20) == out
    how = {"plan_hash": True, "window": 20}
    singles = [
        slotwise.replay(trace, policy, slots, width=width, **how).to_row()
        | {"seconds": None, "content_sha256": trace.content_sha256}
        for policy in GRID["policies"] for slots in ("2", "50%") for width in (0, 2)
    ]  # fmt: skip
    assert rows(out) == singles
    assert len({row["plan_sha256"] for row in singles}) >= 6


def test_the_file_says_what_it_is_and_nothing_is_left_beside_it(trace, out):
    slotwise.sweep([trace], ["lru"], [2], out=out)
    schema = pq.read_schema(out)
    assert schema.metadata[b"format"] == b"slotwise.sweep"
    assert schema.metadata[b"version"] == b"3"
    assert {str(schema.field(name).type) for name in ("hits", "slots", "bytes_moved", "token_cycle_bytes")} == {"int64"}
    assert str(schema.field("seconds").type) == str(schema.field("accept").type) == "double"
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert out.stat().st_mode & 0o777 == 0o644


def test_sizes_are_counts_fractions_ranges_and_budgets_and_none_runs_twice(trace, out):
    assert ran(trace, out=out, slots=["2:8:3", "25%", "2, 2"], vram=["800"], policies=["lru", " lru()"]) == 5
    assert [(row["slots_asked"], row["slots"]) for row in rows(out)] == [
        ("2", 2), ("5", 5), ("8", 8), ("25%", 2), ("800", 4),
    ]  # fmt: skip


def test_several_traces_share_one_file(trace, out):
    assert ran(trace, tiny(name="other"), out=out, slots=2) == 2
    assert shown(out) == [("toy", "lru", "2", 0), ("other", "lru", "2", 0)]
    assert len({row["trace_sha256"] for row in rows(out)}) == 2


def test_the_number_of_workers_changes_no_byte_but_the_seconds(trace, tmp_path):
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    for path, workers in ((one, 1), (two, 2)):
        slotwise.sweep([trace], **GRID, out=path, workers=workers)
    assert rows(one) == rows(two)
    assert pq.read_schema(one).equals(pq.read_schema(two), check_metadata=True)


# ---- going on


def test_what_is_in_the_file_is_not_run_again(trace, out):
    assert ran(trace, out=out, **GRID) == 8
    before = out.read_bytes()
    assert ran(trace, out=out, **GRID) == 0
    assert out.read_bytes() == before
    assert ran(trace, out=out, **GRID | {"slots": "2,50%,6"}) == 4
    assert len(rows(out)) == 12


@pytest.mark.parametrize(
    "options",
    [{"accept": 1, "verify_tokens": 3}, {"verify_tokens": 2, "accept": 0.5}, {"accept": 1}, {"steps": 7}, {"window": 3},
     {"row_bytes": 50}, {"pollution": True}, {"plan_hash": True}, {"max_loads": 1}],
    ids=str,
)  # fmt: skip
def test_whatever_the_options_they_are_found_again_and_are_other_rows_than_without(out, options):
    """Five decode tokens, one a step."""
    assert ran(tiny(), out=out, **options) == 1
    assert ran(tiny(), out=out, **options) == 0
    assert len(rows(out)) == 1
    assert ran(tiny(), out=out) == (0 if options == {"accept": 1} else 1)


def test_verify_steps_are_found_again_though_there_are_fewer_of_them_than_tokens(out):
    """150 tokens in 75 verify steps: the default window, 1 % of the steps, is that of the steps that were built."""
    trace = demanding(*[0, 1] * 75)
    assert ran(trace, out=out, verify_tokens=2) == 1
    assert ran(trace, out=out, verify_tokens=2) == 0
    assert [row["along"]["window_steps"] for row in rows(out)] == [1]


@pytest.mark.once
def test_a_policy_of_ones_own_runs_again_once_its_file_has_changed(out, tmp_path):
    text = "from slotwise.policies.policy_lfu import Lfu\nclass Mine(Lfu):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(text)
    grid = {"out": out, "policies": [f"{tmp_path / 'mine.py'}:Mine"]}
    assert [ran(tiny(), **grid), ran(tiny(), **grid)] == [1, 0]
    (tmp_path / "mine.py").write_text(text + "    source = 'elsewhere'\n")
    assert [ran(tiny(), **grid), ran(tiny(), **grid)] == [1, 0]


KILLED = """
import os, signal, sys
import slotwise
def die_at_three(done, total, what):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
policies, slots = ["lru", "fifo"], "1,2,3"
slotwise.sweep([sys.argv[1]], policies, slots, out=sys.argv[2], workers=2, progress=die_at_three)
"""


@pytest.fixture
def killed(tmp_path, out):
    """A sweep of 6 configurations killed when three had been reported; returns its trace's file."""
    tiny().save(tmp_path / "t.parquet")
    run(sys.executable, "-c", KILLED, tmp_path / "t.parquet", out, code=-signal.SIGKILL)
    assert not out.exists()
    assert len((tmp_path / "r.parquet.part").read_text().splitlines()) == 3
    return tmp_path / "t.parquet"


def test_a_killed_sweep_loses_nothing_and_the_next_one_finishes(killed, out, tmp_path):
    grid = {"policies": ["lru", "fifo"], "slots": "1,2,3"}
    assert ran(killed, out=out, **grid) == 3
    assert ran(killed, out=tmp_path / "whole.parquet", **grid) == 6
    assert rows(out) == rows(tmp_path / "whole.parquet"), "in the same order, too"
    assert not out.with_name("r.parquet.part").exists()


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_a_last_line_that_the_kill_cut_short_is_run_again_and_only_that(killed, out, kept):
    """Of the third line nothing is left, or one character, or half, or all but its end."""
    part = out.with_name("r.parquet.part")
    first, second, third = part.read_text().splitlines()
    part.write_text(f"{first}\n{second}\n{third[: int(kept * len(third)) if kept == 0.5 else kept]}")
    assert ran(killed, out=out, policies=["lru", "fifo"], slots="1,2,3") == 4
    assert len(rows(out)) == 6


@pytest.mark.parametrize("line", ["not json", "{}", "3", "[]", '{"along": null}', "\x00"])
def test_a_journal_that_no_sweep_wrote_is_named_with_its_line_and_left_alone(out, line):
    part = out.with_name("r.parquet.part")
    part.write_text(f"{line}\n")
    with pytest.raises(BadOption, match=r"r\.parquet\.part line 1 is not a result; move "):
        ran(tiny(), out=out)
    assert part.read_text() == f"{line}\n"


def test_what_had_finished_when_a_configuration_failed_is_kept(trace, out):
    """Width 3 is more than the trace records, and the last in the grid."""
    with pytest.raises(BadTrace, match="width 3 is above the 2 predictions"):
        ran(trace, out=out, widths=[0, 2, 3], workers=1)
    assert ran(trace, out=out, widths=[0, 2]) == 0


def test_a_journal_that_another_sweep_ended_with_while_it_was_being_locked_is_opened_anew(trace, out, monkeypatch):
    """Between our open and our lock another sweep finishes: its journal, which we hold, has no name any more."""
    lock, told = fcntl.flock, []

    def late(file, how):
        if not told:
            told.append(file)
            assert ran(trace, out=out, slots="3") == 1
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert ran(trace, out=out, slots="2,3") == 1
    assert [row["slots"] for row in rows(out)] == [3, 2]
    assert [path.name for path in out.parent.iterdir()] == [out.name]


# ---- what is left out, and what is refused


def test_combinations_that_a_policy_refuses_are_left_out_and_named_once(trace, out):
    left_out = []
    assert ran(trace, out=out, policies=["opt", "lru"], slots="0,2,4", widths=[0, 2], skipped=left_out.append) == 8
    assert len(left_out) == 2
    assert "width 2 with 0 slots" in left_out[0]
    assert "opt bounds runs without prefetch" in left_out[1]
    assert [row for row in shown(out) if row[1] == "opt"] == [("toy", "opt", slots, 0) for slots in "024"]


def test_a_grid_of_which_all_is_refused_is_an_error(trace, out):
    with pytest.raises(BadOption, match=r"^every configuration was refused: opt bounds runs"):
        ran(trace, out=out, policies=["opt"], widths=[2])
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"slots": None}, BadOption, "no sizes: give slots"),
        ({"slots": "8:2:1"}, BadOption, "a range is low:high:step"),
        ({"slots": "2:8:0"}, BadOption, "a range is low:high:step"),
        ({"slots": "2,,4"}, BadOption, "slots '': write a count"),
        ({"policies": []}, BadOption, "nothing to do"),
        ({"widths": []}, BadOption, "nothing to do"),
        ({"policies": ["lruu"]}, BadPolicy, "Did you mean 'lru'?"),
        ({"vram": ["1KB"], "slots": None}, BadOption, "add --row-bytes N"),
        ({"contract": "atomic"}, BadOption, "contract is event or sequential"),
        ({"contrct": "event"}, BadOption, "no option named 'contrct'"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_runs(out, how, error, words):
    with pytest.raises(error, match=words.replace("?", r"\?")):
        ran(tiny(), out=out, **how)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["text", "empty", "a trace", "a folder", "another table"])
def test_a_file_that_no_sweep_wrote_is_not_touched(out, kind):
    if kind == "a folder":
        out.mkdir()
    elif kind == "a trace":
        tiny().save(out)
    elif kind == "another table":
        import pyarrow as pa

        pq.write_table(pa.table({"x": [1]}), out)
    else:
        out.write_text("" if kind == "empty" else "my notes\n")
    before = None if out.is_dir() else out.read_bytes()
    words = "name a file in" if kind == "a folder" else r"r\.parquet exists and is not a sweep's result"
    with pytest.raises(BadOption, match=words):
        ran(tiny(), out=out)
    assert out.is_dir() if before is None else out.read_bytes() == before


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadOption, match=r"none/r.parquet.*: name a file in"):
        ran(tiny(), out=tmp_path / "none" / "r.parquet")
