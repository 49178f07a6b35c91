"""Counts of experts: told from traces, refused as such, and made into profiles."""

import io
import json

import numpy as np
import pytest
from conftest import slotwise
from import_cases import refusal, written
from trace_cases import tiny

from slotwise import replay
from slotwise.traces import BadTrace, Trace, TraceWarning
from slotwise.traces.format_counts import read_counts, sniff
from slotwise.traces.profile import open_counted, profile


@pytest.mark.parametrize("head", ["", "-1 2 8\n"])
def test_counts_are_known_and_are_no_trace(tmp_path, head):
    path = tmp_path / ".coli_usage"
    path.write_text(head + "".join(f"{layer} {expert} {expert * 7}\n" for layer in range(200) for expert in range(8)))
    assert "counts only (layer, expert, count): they have no order and cannot be replayed" in refusal(path)


@pytest.mark.parametrize(
    "text", ["0 1 2\n", "0 1 2 3\n0 1 2 3\n", "0 0 1 3:0.5\n0 0 2 3:0.5\n", "0,1,2\n0,1,2\n", "\n\n"]
)
def test_what_looks_like_counts_is_not_taken_for_them(tmp_path, text):
    assert not sniff(tmp_path, text.encode())


COUNTS = np.array([[3, 0, 2, 9], [1, 5, 0, 0]])


def usage(counts=COUNTS, head="-1 2 4\n"):
    lines = "".join(f"{layer} {e} {n}\n" for layer, row in enumerate(counts.tolist()) for e, n in enumerate(row) if n)
    return (head + lines).encode()


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (usage(), []),
        (npy(np.stack([COUNTS, COUNTS * 0]).astype(np.float32)), []),
        (npy(np.stack([COUNTS * 0, COUNTS])), ["--format", "counts"]),
        (npy(np.asfortranarray(COUNTS)), ["--format", "counts"]),
    ],
)
def test_a_profile_is_made_of_counts_and_replayed(tmp_path, data, words):
    written(tmp_path, data, "c")
    done = slotwise("trace", "profile", "c", "-o", "p.json", *words, cwd=tmp_path)
    assert done.stdout == "p.json: counts of 1 file\n"
    found = json.loads((tmp_path / "p.json").read_text())
    assert (found["counts"], found["phase"], found["traces"][0]["name"]) == (COUNTS.tolist(), "unknown", "c")
    ids = np.array([[[3], [1]], [[0], [1]], [[3], [0]]])
    kept = replay(Trace.from_arrays(ids, n_experts=4), f"static(profile={tmp_path / 'p.json'})", 1).counters
    assert (kept["hits"], kept["misses"]) == (4, 2)  # 3 and 1 are resident


def test_counts_of_the_recorder_of_sglang_are_summed_and_dense_layers_left_out(tmp_path):
    torch = pytest.importorskip("torch", reason="SGLang's files are read with torch, which is optional")
    steps = torch.tensor(np.stack([[COUNTS[0] * 0, *COUNTS]] * 2))
    torch.save({"rank": 0, "logical_count": steps}, tmp_path / "c.pt")
    with pytest.warns(TraceWarning, match=r"layers \[0\] count nothing, as dense layers do; left out"):
        counts = read_counts(tmp_path / "c.pt")
    assert counts.counts.tolist() == (2 * COUNTS).tolist()


def test_counts_and_traces_of_one_model_are_merged(tmp_path):
    Trace.from_arrays(np.array([[[3], [1]], [[0], [1]]]), n_experts=4).save(tmp_path / "t.parquet")
    both = [open_counted(written(tmp_path, usage())), open_counted(tmp_path / "t.parquet")]
    assert profile(both)["counts"] == [[4, 0, 2, 10], [1, 7, 0, 0]]
    with pytest.raises(BadTrace, match=r"has 1 layers of 4 experts, but t\.dat has 2 of 4"):
        profile([both[0], tiny()])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (usage() + b"0 x 1\n", "line 7: '0 x 1' is no 'layer expert count'"),
        (usage() + b"0 0 1\n", "line 7: expert 0 of layer 0; each comes once"),
        (usage() + b"0 70000 1\n", "line 7: expert 70000 of layer 0"),
        (usage(head="-1 2 3\n"), "3 experts in its head, but expert 3 is counted"),
        (usage()[:-1], "line 6: '1 1 5' has no end of line; truncated?"),
        (usage(COUNTS * 0) + b"0 0 0\n1 0 0\n", "every count is 0; nothing was counted"),
        (npy(COUNTS[None] + 0.5), "3.5 at [0, 0, 0]; a count is a whole number"),
        (npy(COUNTS[None] * np.nan), "nan at [0, 0, 0]"),
        (npy(-COUNTS[None]), "-3 at [0, 0, 0]; a count is a whole number from 0"),
        (npy(COUNTS.astype(float))[:-1], "promises 64 bytes (float64 [2, 4]), but 63 follow; truncated?"),
        (npy(COUNTS[0]), "is [4]; counts are [sequences, layers, experts]"),
        (b"PK\x03\x04\n", "is no 'layer expert count'"),
    ],
)
def test_counts_that_break_a_rule_are_refused_in_one_line(tmp_path, data, words):
    path = written(tmp_path, data)
    with pytest.raises(BadTrace) as refused:
        open_counted(path, "counts")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
