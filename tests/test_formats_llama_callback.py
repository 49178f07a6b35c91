"""llama.cpp's debug callback: tensors among other text, cut values, a last layer of one token, and damage."""

import pytest
from import_cases import assert_replayed, outcomes, refusal, written
from trace_cases import whole

from slotwise.traces import TraceWarning, open_trace

PROMPT = {3: [[0, 1], [1, 2], [3, 0]], 5: [[2, 3]]}  # of the last layer only the final token
TOKENS = [{3: [[2, 0]], 5: [[3, 1]]}, {3: [[1, 0]], 5: [[0, 2]]}]
PRUNED = pytest.mark.filterwarnings("ignore:.*pruned to the tokens whose logits")
TICKS = [(layer, [e for row in rows for e in row]) for step in (PROMPT, *TOKENS) for layer, rows in step.items()]


def tensor(layer: int, rows: list[list[int]], who: str = "common_debug_cb_eval", name: str = "ffn_moe_topk") -> str:
    """As common_debug_cb_eval prints it: `%24s` of the name, `%12.4f` of a value."""
    shape = f"{len(rows[0])}, {len(rows)}, 1, 1"
    head = f"{who}: {f'{name}-{layer}':>24} = (i32)       VIEW(ffn_moe_argsort-{layer}{{8, {len(rows)}, 1, 1}}, }}) = "
    lines = "".join("            [" + ", ".join(f"{e:12.4f}" for e in row) + "  ],\n" for row in rows)
    total = sum(map(sum, rows))
    return f"{head}{{{shape}}}\n    [\n        [\n{lines}        ],\n    ]\n    sum = {total:f}\n"


def log(*steps: dict[int, list[list[int]]], **how: str) -> str:
    text = "llama_context: n_ctx = 512\n"
    for step in steps:
        for layer, rows in step.items():
            text += tensor(layer, rows, **how) + "slot update_slots: id  0 | task 0 | [1.0000],\n"
    return text


@PRUNED
def test_a_row_is_a_token_and_other_lines_are_left_out(tmp_path):
    trace = open_trace(written(tmp_path, log(PROMPT, *TOKENS)), n_experts=4, model="m", row_bytes=7)
    found = whole(trace)
    assert found["starts"].tolist() == [0, 3, 4, 5]
    assert found["phase"].tolist() == [0, 1, 1]
    assert found["experts"][0].tolist() == [[0, 1], [1, 2], [3, 0], [2, 0], [1, 0]]
    assert found["experts"][1].tolist() == [[255, 255], [255, 255], [2, 3], [3, 1], [0, 2]]
    assert (trace.model, trace.row_bytes, trace.meta.model_layers) == ("m", (7, 7), (3, 5))
    assert_replayed(trace, tmp_path, TICKS)


@PRUNED
def test_the_older_name_is_read_and_a_prompt_after_decode_is_another_request(tmp_path):
    trace = open_trace(written(tmp_path, log(PROMPT, *TOKENS, PROMPT, who="ggml_debug")), n_experts=4)
    assert whole(trace)["row_request"].tolist() == [0] * 5 + [1] * 3


@PRUNED
def test_the_number_of_experts_is_guessed_with_a_warning(tmp_path):
    with pytest.warns(TraceWarning, match="n_experts is not recorded; taken as the largest id"):
        assert open_trace(written(tmp_path, log(PROMPT, *TOKENS))).n_experts == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[      0.0000,       1.0000  ]", "[      0.0000,    ...,       1.0000  ]", "line 5: '[      0.0000,    ...,"),
        ("            [      1.0000,       2.0000  ],\n", "            ..., \n", "leaves values out; the callback"),
        ("            [      1.0000,       2.0000  ],\n", "", "line 9: ffn_moe_topk-3 ends after 2 of its 3 tokens"),
        ("[      1.0000,       2.0000  ]", "[      1.0000  ]", "line 6: 1 experts, but the tensor's head says 2"),
        ("[      1.0000,       2.0000  ]", "[      1.5000,       2.0000  ]", "ends after 1 of its 3 tokens"),
        ("[      1.0000,       2.0000  ]", "[      1.0000,       1.0000  ]", "line 6: expert 1 twice in one top-2"),
        ("[      1.0000,       2.0000  ]", "[      1.0000,       9.0000  ]", "line 6: expert 9, but n_experts=4"),
    ],
)  # fmt: skip
def test_what_is_cut_or_wrong_is_refused_with_its_line(tmp_path, old, new, words):
    text = log(PROMPT, *TOKENS)
    assert old in text
    assert words in refusal(written(tmp_path, text.replace(old, new, 1)), n_experts=4)


def test_a_log_that_ends_within_a_tensor_is_refused(tmp_path):
    text = log(PROMPT)
    cut = text[: text.index("3.0000")]
    assert "ends after 2 of its 3 tokens; truncated?" in refusal(written(tmp_path, cut), n_experts=4)


@PRUNED
def test_damage_is_refused_in_one_line_or_read_with_valid_ids(tmp_path):
    found = outcomes(tmp_path, log(PROMPT, *TOKENS).encode(), "llama-callback", 4)
    assert 0 < found.count("read") < len(found)
