"""moe-policylang's recordings, JSON lines and Parquet: prompts, phases seen or guessed, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from import_cases import assert_refused_or_valid, assert_replays_as, refusal
from trace_cases import whole

from slotwise.traces import TraceWarning, open_trace

STEPS = [  # prompt 0: two prompt tokens, one decoded; prompt 3: one and one; layers 1 and 2
    [[[0, 1], [1, 2]], [[3, 2], [0, 3]]],
    [[[0, 2]], [[2, 0]]],
    [[[3, 1]], [[1, 0]]],
    [[[2, 3]], [[3, 1]]],
]
PASSES = [(0, [0, 1]), (0, [2]), (3, [0]), (3, [1])]  # prompt and tokens of each step
NAMES = {"p": "prompt_id", "t": "token_idx", "l": "layer_idx", "e": "selected_experts", "s": "router_scores"}
NAMES |= {"ti": "token_id", "ph": "phase"}


def entries(*, phases=True, scores=(0.75, 0.25)):
    out = []
    for (prompt, tokens), step in zip(PASSES, STEPS, strict=True):
        for layer, chosen in enumerate(step, 1):
            for t, ids in zip(tokens, chosen, strict=True):
                entry = {"p": prompt, "t": t, "l": layer, "e": ids, "s": list(scores) if scores else None, "ti": 50 + t}
                phase = "prefill" if t < (2 if prompt == 0 else 1) else "decode"
                out.append(entry | ({"ph": phase} if phases else {}))
    return out


def header(found, **fields):
    said = {"model_name": "toy/moe", "num_layers": 3, "num_experts": 4, "top_k": 2, "num_entries": len(found)}
    return said | {"records_full_softmax": False} | fields


def lines(folder, found=None, **fields):
    found = entries() if found is None else found
    path = folder / "toy.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [header(found, **fields), *found]))
    return path


def parquet(folder, found=None, **replaced):
    found = entries() if found is None else found
    columns = {column: [entry.get(key) for entry in found] for key, column in NAMES.items()} | replaced
    types = {"selected_experts": pa.list_(pa.int32()), "router_scores": pa.list_(pa.float32()), "phase": pa.string()}
    path = folder / "toy.parquet"
    table = {
        name: pa.array(values, None if name in replaced else types.get(name, pa.int32()))
        for name, values in columns.items()
        if name in COLUMNS_ALWAYS or any(value is not None for value in values)
    }
    pq.write_table(pa.table(table), path, compression="zstd")
    return path


COLUMNS_ALWAYS = set(list(NAMES.values())[:4])


@pytest.mark.parametrize("write", [lines, parquet])
@pytest.mark.parametrize("phases", [True, False])
def test_a_prompt_is_a_request_whose_prefill_is_one_step_with_or_without_phases(tmp_path, write, phases):
    path = write(tmp_path, entries(phases=phases))
    trace = open_trace(path, n_experts=4, model="toy/moe")
    found = whole(trace, weights=True)
    assert found["starts"].tolist() == [0, 2, 3, 4, 5]
    assert found["phase"].tolist() == [0, 1, 0, 1]
    assert found["request"].tolist() == [0, 0, 1, 1]
    assert found["position"].tolist() == [0, 1, 2, 0, 1]
    assert found["token_id"].tolist() == [50, 51, 52, 50, 51]
    assert found["experts"].tolist() == [
        [[0, 1], [1, 2], [0, 2], [3, 1], [2, 3]],
        [[3, 2], [0, 3], [2, 0], [1, 0], [3, 1]],
    ]
    assert found["weights"].tolist() == [[[0.75, 0.25]] * 5] * 2
    assert (trace.meta.model_layers, trace.n_experts, trace.model) == ((1, 2), 4, "toy/moe")
    assert [request["label"] for request in trace.meta.requests] == ["prompt 0", "prompt 3"]
    assert [request["prompt_tokens"] for request in trace.meta.requests] == [2, 1]


@pytest.mark.parametrize("write", [lines, parquet])
def test_it_replays_to_the_counters_of_a_naive_count(tmp_path, write):
    assert_replays_as(open_trace(write(tmp_path), n_experts=4), STEPS, tmp_path)


def test_parquet_does_not_say_how_many_experts_there_are(tmp_path):
    with pytest.warns(TraceWarning, match="taken as the largest id \\+ 1 = 4"):
        assert open_trace(parquet(tmp_path)).model == ""


@pytest.mark.parametrize("write", [lines, parquet])
def test_an_unsorted_top_k_is_ranked_by_score_and_scores_may_be_missing(tmp_path, write):
    with pytest.warns(TraceWarning, match="ranked by weight"):
        trace = open_trace(write(tmp_path, entries(scores=(0.25, 0.75))), n_experts=4)
    assert whole(trace)["experts"][0].tolist() == [[1, 0], [2, 1], [2, 0], [1, 3], [3, 2]]
    assert not open_trace(write(tmp_path, entries(scores=None)), n_experts=4).has_weights


def test_one_layer_without_phases_shows_no_prompt(tmp_path):
    one = [entry for entry in entries(phases=False) if entry["l"] == 1]
    with pytest.warns(TraceWarning, match="nothing tells the prompt from what follows; all is decode"):
        assert open_trace(lines(tmp_path, one)).n_steps == 5
    assert open_trace(lines(tmp_path, [entry for entry in entries() if entry["l"] == 1])).n_steps == 4


def changed(at, **fields):
    found = entries()
    found[at] |= fields
    return found


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (entries()[:-1], "prompt 3 token 1 has no layer 2; every token passes every layer (truncated?)"),
        (entries() + entries(), "line 12: prompt 0 token 0 at layer 1 again; are these two captures"),
        (entries()[6:8] + entries()[:6] + [entries()[8] | {"t": 9}], "prompt 3 again, after prompt 0"),
        (changed(4, t=0, ti=50), "line 6: token 0 of prompt 0 is ti=50, ph=decode, but ti=50, ph=prefill"),
        (changed(5, ti=7), "line 7: token 2 of prompt 0 is ti=7, ph=decode, but ti=52, ph=decode at another layer"),
        (changed(0, e=[0, 4]), "line 2: expert 4, but n_experts=4"),
        (changed(0, e=[1, 1]), "line 2: an expert twice in one top-2 [1, 1]"),
        (changed(0, e=[1]), "line 2: 1 experts [1], but top_k=2"),
        (changed(0, e=None), "line 2: experts None; they must be a list"),
        (changed(0, s=[0.5]), "line 2: weights [0.5], but 2 experts"),
        (changed(0, s=[0.5, float("inf")]), "line 2: weights [0.5, inf]; they must be finite"),
        (changed(0, ph="train"), "line 2: phase 'train'; it is prefill or decode"),
        (changed(0, l=-1), "line 2: l=-1; it must be a whole number from 0 to"),
        (changed(0, t="0"), "line 2: t='0'; it must be a whole number"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, found, words):
    assert words in refusal(lines(tmp_path, found))


def test_a_file_cut_off_between_records_is_told_by_its_header(tmp_path):
    assert "8 records, but its header says 10; truncated?" in refusal(lines(tmp_path, entries()[:8], num_entries=10))
    assert "line 1: num_experts=0" in refusal(lines(tmp_path, num_experts=0))


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        ({"selected_experts": [1] * 10}, "column selected_experts is int64; it does not hold 'e'"),
        ({"token_idx": ["a"] * 10}, "column token_idx is string; it does not hold 't'"),
        ({"token_idx": pa.array([0, None, *range(8)])}, "row 1: t=None; it must be a whole number"),
        ({"selected_experts": pa.array([[0, None]] * 10, pa.list_(pa.int32()))}, "row 0: experts [0, None]"),
    ],
)
def test_parquet_that_breaks_a_rule_is_refused_in_one_line(tmp_path, replaced, words):
    assert words in refusal(parquet(tmp_path, **replaced), n_experts=4)


def test_parquet_of_distributions_without_chosen_experts_is_refused(tmp_path):
    path = tmp_path / "legacy.parquet"
    table = {"prompt_id": [0], "token_idx": [0], "layer_idx": [0], "router_softmax": [[0.5, 0.5]]}
    pq.write_table(pa.table(table), path)
    assert "column selected_experts is missing" in refusal(path)


def test_many_rows_in_few_bytes_are_not_believed(tmp_path):
    path, n = tmp_path / "bomb.parquet", 10_000_000
    same = pa.array(np.zeros(n, np.int32))
    ids = pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.array([], pa.int32()))
    table = {"prompt_id": same, "token_idx": same, "layer_idx": same, "selected_experts": ids}
    pq.write_table(pa.table(table), path, row_group_size=n)
    assert "promises 10000000 rows, which its" in refusal(path)


@pytest.mark.parametrize("write", [lines, parquet])
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_file_that_rots_is_refused_or_read_with_valid_ids(tmp_path, write):
    path = write(tmp_path)
    assert_refused_or_valid(path, path.read_bytes(), format="policylang", n_experts=4)
