"""ESFT's text logs: a file per layer, a line per sequence, top-k in no order."""

import numpy as np
import pytest
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

# Two sequences of 2 and 1 tokens, top 3, in two layers.
SEVEN = "0\t1\t2\t3\t4\t0\t\t0.2\t0.5\t0.3\t0.1\t0.1\t0.8\n5\t1\t0\t\t0.6\t0.3\t0.1\n"
EIGHT = "4\t3\t2\t1\t0\t5\t\t0.9\t0.1\t0\t0.5\t0.3\t0.2\n2\t3\t4\t\t0.5\t0.3\t0.2\n"


def written(folder, **texts):
    paths = [folder / f"expert_weights_{number[1:]}.txt" for number in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths


def test_each_file_is_a_layer_and_each_top_k_is_ranked_by_weight(tmp_path):
    paths = written(tmp_path, _8=EIGHT, _7=SEVEN)
    with pytest.warns(TraceWarning, match="ranked by weight"):
        trace = open_trace(paths, n_experts=6, top_k=3, row_bytes=10)
    found = whole(trace, weights=True)
    assert (trace.meta.model_layers, trace.row_bytes, trace.n_requests) == ((7, 8), (10, 10), 2)
    assert found["experts"].tolist() == [[[1, 2, 0], [0, 3, 4], [5, 1, 0]], [[4, 3, 2], [1, 0, 5], [2, 3, 4]]]
    assert found["weights"][0, 0].astype(float).round(1).tolist() == [0.5, 0.3, 0.2]
    assert found["row_request"].tolist() == [0, 0, 1]
    assert found["phase"].tolist() == [1, 1, 1]


def test_top_k_and_the_number_of_experts_are_guessed_with_a_warning(tmp_path):
    with pytest.warns(TraceWarning) as warned:
        trace = open_trace(written(tmp_path, _7=SEVEN)[0])
    assert (trace.top_k, trace.n_experts) == (3, 6)
    text = " ".join(str(w.message) for w in warned)
    assert "top_k is not recorded; taken as 3" in text
    assert "n_experts is not recorded; taken as the largest id + 1 = 6" in text


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"_7": SEVEN[:-9]}, "line 2: 3 ids and 1 weights; every id has one (truncated?)"),
        ({"_7": SEVEN[:-12]}, "line 2: 3 ids and 0 weights; every id has one (truncated?)"),
        ({"_7": SEVEN[:-16]}, "line 2: 2 ids and 0 weights"),
        ({"_7": SEVEN.replace("\t3\t4", "\t3e\t4")}, "line 1: \"invalid literal for int()"),
        ({"_7": SEVEN.replace("0.5", "0..5")}, "line 1: \"could not convert"),
        ({"_7": SEVEN.replace("0.5", "nan")}, "row 0, layer 0, rank 1: weight nan"),
        ({"_7": SEVEN.replace("5\t1\t0", "-5\t1\t0")}, "line 2: expert -5"),
        ({"_7": SEVEN.replace("5\t1\t0", "64\t1\t0")}, "expert"),
        ({"_7": SEVEN.replace("5\t1\t0", "99999999999999999999\t1\t0")}, "line 2"),
        ({"_7": SEVEN, "_8": EIGHT.splitlines()[0] + "\n"}, "expert_weights_8.txt: 1 sequences of [6] ids, but"),
        ({"_7": SEVEN, "_x": SEVEN}, "a file of this format is named after its layer"),
        ({"_7": SEVEN, "_07": SEVEN}, "layer 7 again, after"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, texts, words):
    with pytest.raises(BadTrace) as refused:
        open_trace(written(tmp_path, **texts), n_experts=6)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_top_k_that_does_not_divide_the_lines_is_refused(tmp_path):
    (path,) = written(tmp_path, _7=SEVEN)
    with pytest.raises(BadTrace, match=r"top_k=2 does not divide the lines, which hold \[6, 3\] ids"):
        open_trace(path, top_k=2)


def test_ids_of_a_long_first_line_are_sniffed_before_its_weights_are_seen(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((2000, 16)), axis=1)[:, :3]
    line = "\t".join(map(str, ids.ravel())) + "\t\t" + "\t".join(["0.5"] * ids.size) + "\n"
    assert len(line.partition("\t\t")[0]) > 4096
    trace = open_trace(written(tmp_path, _1=line)[0], n_experts=16, top_k=3)
    assert np.array_equal(trace.layer(0), ids)
