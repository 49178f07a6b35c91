"""Captures that others published, and ours: what comes out of the importers is what their makers counted."""

import numpy as np
import pytest
from trace_cases import whole

from slotwise.traces import TraceWarning, open_trace

pytestmark = [
    pytest.mark.once,
    pytest.mark.shared,
    pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning"),
]


@pytest.mark.parametrize(
    ("model", "prefill", "decode", "ticks", "cycle"),
    [("qwen", 2662, 36864, 6192, 822_804_480), ("gemma", 1538, 23040, 3870, 709_226_496)],
)
def test_the_demands_of_a_bigmoeonedge_capture_have_the_published_check_sums(
    shared, tmp_path, model, prefill, decode, ticks, cycle
):
    open_trace(shared / "traces" / "bigmoeonedge" / f"{model}.route.csv").save(tmp_path / "t.parquet")
    trace = open_trace(tmp_path / "t.parquet")
    (block,) = trace.blocks()
    demands = [0, 0]
    for layer in range(trace.n_layers):
        for phase, a, b in zip(block.phase, block.starts, block.starts[1:], strict=False):
            ids = block.experts[layer, a:b]
            demands[phase] += len(set(ids[ids != 255].tolist()))
    assert demands == [prefill, decode]
    assert trace.n_steps * trace.n_layers == ticks
    assert trace.token_cycle_bytes == cycle


def test_the_text_form_of_a_deepseek_layer_agrees_with_the_archive(shared):
    folder = shared / "traces" / "deepseek-v2-lite"
    text = open_trace(folder / "raw" / "law_expert_weights_1.txt", n_experts=64)
    archive = open_trace(folder / "law.npz", n_experts=64)
    assert (text.meta.model_layers, archive.meta.model_layers[0]) == ((1,), 1)
    assert np.array_equal(text.layer(0), archive.layer(0))
    for name in ("row_request", "position", "starts"):
        assert np.array_equal(whole(text)[name], whole(archive)[name])
    first = whole(text, weights=True)["weights"]
    assert (np.diff(first.astype(float), axis=2) <= 0).all()


SHAPES = {
    "lab24x128/decode": (14_322, 24, 128, 8, 14, 12),
    "lab24x128/text": (28_672, 24, 128, 8, 7, 12),
    "deepseek-v2-lite/intent": (8_222, 26, 64, 6, 127, 0),
    "deepseek-v2-lite/law": (8_327, 26, 64, 6, 33, 0),
    "deepseek-v2-lite/summary": (8_479, 26, 64, 6, 13, 0),
    "gpt-oss-20b/decode": (41_401, 24, 32, 4, 120, 0),
    "gpt-oss-20b/decode_weights": (6_353, 24, 32, 4, 20, 0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_archive_is_read_whole_and_comes_back_from_our_file(shared, tmp_path, name):
    trace = open_trace(shared / "traces" / f"{name}.npz")
    shape = trace.n_tokens, trace.n_layers, trace.n_experts, trace.top_k, trace.n_requests, trace.predicted_width
    assert shape == SHAPES[name]
    with np.load(shared / "traces" / f"{name}.npz") as archive:
        stored = archive["experts"]
        if "weights" not in archive:
            assert np.array_equal(whole(trace)["experts"].transpose(1, 0, 2), stored)
        if "predicted" in archive:
            assert np.array_equal(whole(trace, predicted=True)["predicted"].transpose(1, 0, 2), archive["predicted"])
        if "first_position" in archive:
            firsts = whole(trace)["position"][archive["offsets"][:-1]]
            assert np.array_equal(firsts, archive["first_position"])
    trace.save(tmp_path / "t.parquet")
    again = open_trace(tmp_path / "t.parquet")
    assert again.digest() == trace.sha256
    expected, found = whole(trace), whole(again)
    assert all(np.array_equal(expected[key], found[key]) for key in expected)


def test_the_prompts_of_our_capture_are_one_step_of_256_rows_each(shared):
    trace = open_trace(shared / "traces" / "lab24x128" / "decode.npz")
    found = whole(trace)
    sizes = np.diff(found["starts"])
    assert sizes[found["phase"] == 0].tolist() == [256] * 14
    assert sizes[found["phase"] == 1].tolist() == [1] * 14 * 767


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("bigmoeonedge/qwen.route.csv", r"the last layer \(47\) is absent in 27 of 28 prefill rows"),
        ("deepseek-v2-lite/law.npz", "ranked by weight"),
        ("deepseek-v2-lite/summary.npz", "top-k looks unsorted: 17% of the rows"),
    ],
)
def test_what_is_known_to_be_odd_about_a_capture_is_said(shared, file, words):
    with pytest.warns(TraceWarning, match=words):
        open_trace(shared / "traces" / file)
