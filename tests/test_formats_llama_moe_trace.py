"""llama-moe-trace's CSV: three dialects, prefill by its sign, files strung together, and damage."""

import pytest
from import_cases import assert_replayed, outcomes, refusal, written
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

# A prompt of 3 tokens, layer by layer, the last one for the final token alone; then two tokens.
PLACED = """-1,1,5,6
-1,1,6,7
-1,1,7,1
-1,2,1,2
3,1,7,3
3,2,2,0
4,1,7,5
4,2,2,1
"""
LINES = [tuple(map(int, line.split(","))) for line in PLACED.splitlines()]
HEAD = "phase,token,layer,rank,expert\n"
RANKED = HEAD + "".join(
    f"{'decode' if pos > 0 else 'prefill'},{pos if pos > 0 else token},{layer},{rank},{expert}\n"
    for token, (pos, layer, *ids) in zip([0, 1, 2, 2, 3, 3, 4, 4], LINES, strict=True)
    for rank, expert in enumerate(ids)
)
TICKS = [(1, [5, 6, 6, 7, 7, 1]), *((layer, ids) for _, layer, *ids in LINES[3:])]
pytestmark = pytest.mark.filterwarnings("ignore:.*(the last layer|repeated by rows)")


@pytest.mark.parametrize("text", [PLACED, RANKED])
def test_a_prompt_is_a_step_and_the_final_token_alone_has_the_last_layer(tmp_path, text):
    trace = open_trace(written(tmp_path, text), n_experts=8, row_bytes=9, model="m")
    found = whole(trace)
    assert (trace.meta.model_layers, trace.n_requests, trace.row_bytes, trace.model) == ((1, 2), 1, (9, 9), "m")
    assert found["starts"].tolist() == [0, 3, 4, 5]
    assert found["phase"].tolist() == [0, 1, 1]
    assert found["experts"].tolist() == [
        [[5, 6], [6, 7], [7, 1], [7, 3], [7, 5]],
        [[255, 255], [255, 255], [1, 2], [2, 0], [2, 1]],
    ]
    assert_replayed(trace, tmp_path, TICKS)


@pytest.mark.parametrize(
    "text",
    [PLACED * 2, RANKED * 2, RANKED + RANKED.removeprefix(HEAD), "".join(PLACED.splitlines(True)[4:]) * 2],
)
def test_files_strung_together_are_requests(tmp_path, text):
    trace = open_trace(written(tmp_path, text), n_experts=8)
    n = trace.n_tokens // 2
    assert trace.n_requests == 2
    assert whole(trace)["row_request"].tolist() == [0] * n + [1] * n
    assert whole(trace)["position"].tolist() == [*range(n)] * 2


def test_two_prompts_of_prefill_alone_are_told_apart_by_the_head(tmp_path):
    prompt = "".join(line + "\n" for line in RANKED.splitlines() if not line.startswith("decode"))
    trace = open_trace(written(tmp_path, prompt + prompt), n_experts=8)
    assert (trace.n_requests, trace.n_steps) == (2, 2)


def test_a_prompt_in_pieces_and_a_speculative_batch_are_steps_of_their_own(tmp_path):
    text = "-1,0,1\n-1,0,2\n-1,1,1\n-1,1,2\n-1,0,3\n-1,0,0\n-1,1,3\n-1,1,0\n4,0,1\n5,0,2\n4,1,1\n5,1,2\n5,0,3\n5,1,3\n"
    trace = open_trace(written(tmp_path, text), n_experts=4)
    assert whole(trace)["starts"].tolist() == [0, 2, 4, 6, 7]
    assert whole(trace)["phase"].tolist() == [0, 0, 1, 1]
    assert trace.n_requests == 1
    assert whole(trace)["experts"][..., 0].tolist() == [[1, 2, 3, 0, 1, 2, 3]] * 2


def test_of_one_layer_alone_every_decoded_token_is_a_step(tmp_path):
    trace = open_trace(written(tmp_path, "-2,3,1\n-1,3,2\n0,3,1\n1,3,2\n2,3,0\n"), n_experts=4)
    assert whole(trace)["starts"].tolist() == [0, 2, 3, 4, 5]
    assert open_trace(written(tmp_path, "0,3,1\n1,3,2\n0,3,0\n1,3,3\n"), n_experts=4).n_requests == 2


def test_without_tokens_there_are_counts_and_no_replay(tmp_path):
    said = refusal(written(tmp_path, "0,5\n0,6\n1,2\n0,5\n"))
    assert "the order of tokens is lost" in said
    assert "4 choices of 3 experts in 2 layers, most often expert 5 of layer 0 (2 times)" in said
    assert "line 2: '0,6,1' is no layer,expert" in refusal(written(tmp_path, "0,5\n0,6,1\n"))


def test_the_number_of_experts_is_guessed_with_a_warning(tmp_path):
    with pytest.warns(TraceWarning, match="taken as the largest id \\+ 1 = 8"):
        open_trace(written(tmp_path, PLACED))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLACED[:-1], "line 8: '4,2,2,1' has no end of line; truncated?"),
        (PLACED[:-3] + "\n", "line 8: 1 experts after 2 in the lines before"),
        (PLACED[:-8], "line 7: the forward pass of this token has no layer 2"),
        (PLACED.replace("3,1,7,3", "3,1,7,x"), "line 5: '3,1,7,x' is no pos,layer,e1,...,ek"),
        (PLACED.replace("3,1,7,3", "3,1,7,-1"), "line 5: '3,1,7,-1' is no pos"),
        (PLACED.replace("3,1,7,3", "3,1,7,8"), "line 5: expert 8, but n_experts=8"),
        (PLACED.replace("3,1,7,3", "3,1,7,7"), "line 5: expert 7 twice in one top-2 [7, 7]"),
        (PLACED.replace("3,1,7,3", "3,999999,7,3"), "line 5: layer 999999, but layers are counted from 0 and below"),
        (PLACED.replace("3,1,7,3", "3,1,7,12345678901"), "line 5: '3,1,7,12345678901' is no pos"),
        (PLACED.replace("-1,1,6,7\n", "-1,1,6,7\n" + "-1,1,0,1\n" * 2).replace("-1,2,1,2\n", "-1,2,1,2\n" * 2),
         "line 7: the last layer has 2 of the 5 tokens"),
        (RANKED[:-1], "has no end of line"),
        (RANKED[: RANKED.rindex("decode")], "line 16: 1 experts after 2"),
        (RANKED.replace("decode,3,1,0,7\n", ""), "line 10: rank 1 of token 3 at layer 1, but rank 2 was next"),
        (RANKED.replace("decode,3,1,1,3\n", ""), "line 10: 1 experts after 2"),
        (RANKED.replace("decode,3,1,0", "verify,3,1,0"), "line 10: 'verify,3,1,0,7' is no line of phase,token"),
        (HEAD, "no routing in it"),
    ],
)  # fmt: skip
def test_a_csv_that_breaks_a_rule_is_refused_in_one_line(tmp_path, text, words):
    assert words in refusal(written(tmp_path, text), n_experts=8)


def test_a_top_k_that_is_not_in_the_file_is_refused(tmp_path):
    path = written(tmp_path, PLACED)
    assert "line 1: 2 experts, but top_k=3" in refusal(path, top_k=3, n_experts=8)
    with pytest.raises(BadTrace, match="is one file; import"):
        open_trace([path, path])


@pytest.mark.parametrize("text", [PLACED, RANKED])
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_csv_that_rots_is_read_with_valid_ids_or_refused(tmp_path, text):
    found = outcomes(tmp_path, text.encode() * 2, "llama-moe-trace", 8)
    assert 0 < found.count("read") < len(found) / 2
