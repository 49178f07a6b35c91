"""`slotwise trace`: whole commands, their exit codes, and what they say on which stream."""

import contextlib
import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import run, slotwise
from trace_cases import tiny, whole

from slotwise.traces import BadTrace, Trace, open_trace
from slotwise.traces.synth import synthesise

KEYS = {
    "name", "format", "version", "model", "revision", "n_layers", "model_layers", "n_experts", "top_k", "row_bytes",
    "router", "predictor", "captured_by", "captured_at", "source", "licence", "sha256", "n_tokens", "n_steps",
    "n_requests", "phases", "requests", "token_cycle_bytes", "first_touch", "overlap", "layers", "predictions",
    "weights", "warnings",
}  # fmt: skip


@pytest.fixture
def foreign(tmp_path):
    ids = np.argsort(np.random.default_rng(0).random((30, 2, 16)), axis=2)[..., :4].astype(np.uint8)
    np.savez(tmp_path / "foreign.npz", experts=ids, offsets=[0, 20, 30], row_bytes=[100, 200])
    return tmp_path / "foreign.npz"


def test_import_writes_a_trace_and_warns_on_stderr(tmp_path, foreign):
    done = slotwise("trace", "import", foreign, "-o", tmp_path / "t.parquet")
    assert done.stdout.startswith(f"{tmp_path / 't.parquet'}: <Trace foreign: unnamed model, 30 tokens x 2 layers")
    assert done.stderr.startswith(
        f"slotwise: warning: {foreign}: n_experts is not recorded; taken as the largest id + 1 = 16; "
        "`slotwise trace import ... --n-experts N` says better"
    )
    assert done.stderr.count("\n") == 1
    expected = whole(open_trace(foreign, n_experts=16))
    assert all(np.array_equal(expected[key], array) for key, array in whole(open_trace(tmp_path / "t.parquet")).items())


def test_an_import_of_text_shows_on_a_terminal_how_far_it_is(tmp_path):
    line = '{"layer_idx": 0, "token_idx": %d, "selected_ids": [%d]}' + " " * 2000 + "\n"
    (tmp_path / "t.jsonl").write_text("".join(line % (t, t * t % 7) for t in range(2000)))
    terminal, there = pty.openpty()
    words = [sys.executable, "-m", "slotwise", "trace", "import", "t.jsonl", "-o", "t.parquet", "--n-experts", "8"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=there):
        os.close(there)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    size = (tmp_path / "t.jsonl").stat().st_size
    told = {int(n) for n in re.findall(rb"(\d+)/%d" % size, said)}
    assert max(told) > size / 2
    assert b"reading" in said


def test_import_takes_what_the_capture_does_not_say(tmp_path, foreign):
    words = "--n-experts", "64", "--model", "toy", "--format", "npz", "--top-k", "4"
    done = slotwise("trace", "import", foreign, "-o", tmp_path / "t.parquet", *words)
    trace = open_trace(tmp_path / "t.parquet")
    assert (done.stderr, trace.n_experts, trace.model, trace.row_bytes) == ("", 64, "toy", (100, 200))


def test_info_prints_one_json_object_and_nothing_else():
    done = slotwise("trace", "info", "sample", "--json")
    facts = json.loads(done.stdout)
    assert set(facts) == KEYS
    assert (facts["n_tokens"], facts["n_steps"], facts["n_requests"]) == (6272, 4487, 7)
    assert facts["overlap"]["uniform"] < facts["overlap"]["shuffled"] < facts["overlap"]["previous"]
    assert facts["predictions"][0]["recall"][-1] > 0.8
    assert (facts["warnings"], done.stderr) == ([], "")


def test_info_of_a_trace_and_of_the_capture_it_was_imported_from_agree(tmp_path, foreign):
    slotwise("trace", "import", foreign, "-o", tmp_path / "foreign.parquet")
    ours, theirs = (
        slotwise("trace", "info", path, "--json").stdout for path in (tmp_path / "foreign.parquet", foreign)
    )
    assert ours == theirs


@pytest.mark.once
def test_info_says_in_words_what_the_trace_is(tmp_path, foreign):
    told = slotwise("trace", "info", foreign).stdout
    for words in (
        "2 MoE layers x 16 experts, top 4", "30 tokens in 30 steps, 1 in the largest", "of 2 requests",
        f"{4 * 300:,} bytes", "0.250 if drawn evenly", "in bits; 4.00 if all",
        "token cycle T  what one token reads: 2 x 4 rows, 1,200 bytes", "experts chosen at least once, of 16",
    ):  # fmt: skip
        assert words in told
    tiny(phase=[0, 1, 1, 1, 1]).save(tmp_path / "t.parquet")
    assert "1 tokens in 1 step, 1 in the largest" in slotwise("trace", "info", tmp_path / "t.parquet").stdout
    told = slotwise("trace", "info", "sample").stdout
    for words in (
        "row size unknown",
        "8 predictions made 1 layer ahead",
        "precision@W",
        "recall@8",
        "novel, python, c",
    ):
        assert words in told


@pytest.mark.once
def test_info_shows_and_draws_predictions_by_horizon_beside_their_baselines(tmp_path):
    ids = np.argsort(np.random.default_rng(0).random((50, 3, 16)), axis=2)[..., :4]
    Trace.from_arrays(ids, n_experts=16, predicted={1: ids, 2: ids[..., ::-1]}).save(tmp_path / "t.parquet")
    told = slotwise("trace", "info", tmp_path / "t.parquet", "--plot", tmp_path / "p.png").stdout
    for words in (
        "predictions made 1 layer ahead, by width W",
        "W  recall@W  previous  frequency  precision@W  previous  frequency",
        "predictions made 2 layers ahead, by layer at W = 4",
        "layer  recall@4  previous  frequency  precision@4  previous  frequency",
    ):
        assert words in told
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    done = slotwise("trace", "info", tmp_path / "t.parquet", "--plot", tmp_path / "p.png", code=2)
    assert "p.png exists; choose another name" in done.stderr
    tiny().save(tmp_path / "bare.parquet")
    done = slotwise("trace", "info", tmp_path / "bare.parquet", "--plot", tmp_path / "q.png", code=2)
    assert done.stderr == "slotwise: trace bare has no recorded predictions, so there is nothing to plot\n"
    assert not (tmp_path / "q.png").exists()


@pytest.mark.once
def test_info_warns_once_about_what_is_wrong(tmp_path):
    tiny(position=[0, 1, 2, 1, 4]).save(tmp_path / "t.parquet")
    done = slotwise("trace", "info", tmp_path / "t.parquet", "--json")
    assert len(json.loads(done.stdout)["warnings"]) == 1
    done = slotwise("trace", "info", tmp_path / "t.parquet")
    assert done.stderr.startswith("slotwise: warning: token order lost: request 0 goes from position 2 to 1 at row 3")
    assert done.stderr.count("\n") == 1


def test_a_name_from_a_file_cannot_talk_to_the_terminal(tmp_path):
    tiny(model="\x1b[2J[bold]x[/bold]\n").save(tmp_path / "t.parquet")
    told = slotwise("trace", "info", tmp_path / "t.parquet").stdout
    assert "\x1b" not in told
    assert "?[2J[bold]x[/bold]?" in told


@pytest.mark.once
def test_synth_gives_the_same_bytes_for_the_same_seed(tmp_path):
    for name in "abc":
        words = "--tokens", "100", "--layers", "2", "--width", "3", "--seed", "1" if name == "c" else "0"
        slotwise("trace", "synth", "-o", tmp_path / f"{name}.parquet", *words)
    a, b, c = ((tmp_path / f"{name}.parquet").read_bytes() for name in "abc")
    assert a == b != c


def test_the_defaults_of_the_command_are_those_of_the_function():
    from slotwise.cli.trace import synth

    options = {option.name: option.default for option in synth.params if option.name not in ("output", "force", "help")}
    written = {name: p.default for name, p in inspect.signature(synthesise).parameters.items() if name != "name"}
    assert {name: None if value is None or not isinstance(value, int | float) else value
            for name, value in options.items()} == written  # fmt: skip


def test_profile_counts_decode_demands_into_a_file(tmp_path):
    slotwise("trace", "profile", "sample", "-o", tmp_path / "p.json")
    found = json.loads((tmp_path / "p.json").read_text())
    assert (found["format"], found["version"], found["phase"]) == ("slotwise.profile", 1, "decode")
    assert np.array(found["counts"]).sum(axis=1).tolist() == [7 * 640 * 8] * 24
    assert found["traces"] == [{"name": "sample", "sha256": open_trace("sample").sha256}]
    done = slotwise("trace", "profile", "sample", "-o", tmp_path / "p.json", code=2)
    assert done.stderr.startswith(f"slotwise: {tmp_path / 'p.json'} exists; choose another name, or replace it")
    slotwise("trace", "profile", "sample", "sample", "-o", tmp_path / "p.json", "--phase", "all", "--force")
    assert len(json.loads((tmp_path / "p.json").read_text())["traces"]) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["info", "sampel"], "slotwise: no trace file 'sampel'. Did you mean 'sample', the trace that is shipped?"),
        (["info", "gone.parquet"], "slotwise: gone.parquet: no such file or directory"),
        (["info", "."], "slotwise: .: is a directory"),
        (["info", "text"], "slotwise: text: in no known trace format"),
        (["info", "empty"], "slotwise: empty: empty file"),
        (
            ["import", "text", "-o", "t", "--format", "npzz"],
            "slotwise: no trace format named 'npzz'; known: slotwise, ",
        ),
        (["import", "text", "-o", "t", "--format", "npz"], "slotwise: text: damaged or truncated npz"),
        (["import", "text", "-o", "t", "--format", "bmoe"], "slotwise: text: no line '# model="),
        (["import", "text", "-o", "t", "--format", "esft"], "slotwise: text: a file of this format is named after its"),
        (["import", "text", "-o", "t", "--format", "slotwise"], "slotwise: text: damaged or truncated Parquet"),
        (["synth", "-o", "gone/t.parquet"], "slotwise: cannot write to 'gone/t.parquet': there is no folder 'gone'"),
        (["synth", "-o", "t.parquet", "--top-k", "999"], "slotwise: synth: top_k=999"),
        (["profile", "sample", "-o", "gone/p.json"], "slotwise: cannot write to 'gone/p.json': there is no"),
        (["profile", "sample", "-o", "p.json", "--phase", "x"], "slotwise: Invalid value for '--phase'"),
        (["synth"], "slotwise: Missing option '-o'"),
    ],
)
def test_bad_input_is_exit_2_with_one_line_on_stderr(tmp_path, words, line):
    (tmp_path / "text").write_text("Call me Ishmael.\n")
    (tmp_path / "empty").write_bytes(b"")
    done = slotwise("trace", *words, code=2, cwd=tmp_path)
    assert done.stdout == ""
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "text"]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, None])
def test_the_shuffled_control_has_a_seed_that_can_be_given_again(seed):
    with pytest.raises(BadTrace, match=r"describe: seed=.*, but it must be a whole number from 0"):
        open_trace("sample").describe(seed)


TERMINATED = """
import os, signal, sys
import pyarrow.parquet as pq
from slotwise.cli.main import main
class Terminated(pq.ParquetWriter):
    def write_batch(self, *values, **options):
        super().write_batch(*values, **options)
        print(len(os.listdir()), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
pq.ParquetWriter = Terminated
sys.exit(main(sys.argv[1:]))
"""


def test_a_polite_kill_removes_what_is_half_written(tmp_path):
    words = ["trace", "synth", "-o", "t.parquet", "--tokens", "3000"]
    done = run(sys.executable, "-c", TERMINATED, *words, cwd=tmp_path, code=128 + signal.SIGTERM)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("1\n", "", [])
