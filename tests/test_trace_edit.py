"""Traces in other shapes: small cases by hand, and what must come through whatever was done."""

import itertools
import json

import numpy as np
import pytest
from conftest import slotwise as command
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import arrays, demanding, tiny, whole

import slotwise
from slotwise.traces import BadTrace, Trace, open_trace

ROWS = "experts", "weights", "predicted", "position", "row_phase", "token_id"


def everything(trace):
    kinds = {"predicted": bool(trace.horizons), "weights": trace.has_weights}
    return whole(trace, **kinds)


def rows_of(trace, request):
    """All that is recorded of one request, in order."""
    table = everything(trace)
    mine = table["row_request"] == request
    return {name: table[name][..., mine, :] if table[name].ndim == 3 else table[name][mine]
            for name in ROWS if name in table}  # fmt: skip


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def steps(trace):
    """Steps as lists of (request, position)."""
    rows, starts = trace.rows("request", "position"), everything(trace)["starts"]
    pairs = list(zip(rows["request"].tolist(), rows["position"].tolist(), strict=True))
    return [pairs[a:b] for a, b in itertools.pairwise(starts)]


def three(**columns):
    """Requests 0, 1 and 2: two prompt tokens in one step, then 3, 1 and 2 tokens of decode."""
    lengths = [5, 3, 4]
    labels = [{"id": i, "label": "abc"[i], "prompt_tokens": 2} for i in range(3)]
    request = np.repeat([0, 1, 2], lengths)
    within = np.concatenate([np.arange(n) for n in lengths])
    step = np.cumsum(within != 1) - 1
    phase = (within >= 2).astype(int)
    return demanding(*(np.arange(12) % 8), n_layers=3, request=request, step=step, position=within, phase=phase,
                     requests=labels, **columns)  # fmt: skip


# -- split ------------------------------------------------------------------------------------------------------------


def test_a_split_keeps_requests_whole_and_says_which_are_held_out():
    train, held = slotwise.split(three(), labels=["b"])
    assert (set(train.rows("request")["request"].tolist()), set(held.rows("request")["request"].tolist())) == (
        {0, 2}, {1},
    )  # fmt: skip
    assert [r["label"] for r in train.meta.requests] == ["a", "c"]
    assert held.meta.requests == ({"id": 1, "label": "b", "prompt_tokens": 2},)
    assert held.meta.source == "held out (requests 1 held out) of arrays"
    assert train.n_steps + held.n_steps == three().n_steps


def test_a_share_is_of_the_requests_and_its_draw_depends_on_the_seed_alone():
    trace = demanding(*range(8), request=np.arange(8), n_experts=8)
    sizes = [slotwise.split(trace, share=share)[0].n_requests for share in (0.01, 0.5, 0.8, 0.99)]
    assert sizes == [1, 4, 6, 7]
    drawn = {seed: slotwise.split(trace, seed=seed)[1].rows("request")["request"].tolist() for seed in range(9)}
    assert drawn[0] == slotwise.split(trace, seed=0)[1].rows("request")["request"].tolist()
    assert len({tuple(held) for held in drawn.values()}) > 3


@given(case=arrays(), share=st.floats(0.1, 0.9), seed=st.integers(0, 99), group_rows=st.integers(1, 40))
def test_split_then_merged_every_request_is_what_it_was(case, share, seed, group_rows):
    trace = Trace.from_arrays(**case, group_rows=group_rows)
    known = np.unique(case["request"]).tolist()
    if len(known) < 2:
        with pytest.raises(BadTrace, match="has one request, and requests stay whole"):
            slotwise.split(trace, share=share)
        return
    parts = slotwise.split(trace, share=share, seed=seed)
    order = [r for part in parts for r in np.unique(part.rows("request")["request"]).tolist()]
    assert sorted(order) == known
    for how in ("sequence", "interleaved"):
        merged = slotwise.merge(parts, order=how)
        assert merged.n_steps == sum(part.n_steps for part in parts)
        for new, old in enumerate(order):
            assert same(rows_of(merged, new), rows_of(trace, old))


def test_a_trace_that_is_split_where_it_can_be_put_together_again_has_the_same_identity():
    trace = open_trace("sample")
    merged = slotwise.merge(slotwise.split(trace, labels=["man_ja", "book_zh"]))
    assert merged.sha256 == trace.sha256
    assert merged.content_sha256 == trace.content_sha256


# -- cut and merge ----------------------------------------------------------------------------------------------------


def test_a_cut_keeps_what_all_conditions_leave():
    assert steps(slotwise.cut(three(), steps=slice(1, 5))) == [[(0, 2)], [(0, 3)], [(0, 4)], [(1, 0), (1, 1)]]
    assert steps(slotwise.cut(three(), steps=slice(1, 5), phase="prefill")) == [[(1, 0), (1, 1)]]
    assert steps(slotwise.cut(three(), ids=[2], labels=["b"], phase="decode")) == [[(1, 2)], [(2, 2)], [(2, 3)]]
    with pytest.raises(BadTrace, match=r"cut \(steps 0:1, decode\): no row is left"):
        slotwise.cut(three(), steps=slice(0, 1), phase="decode")


def test_cut_layers_keep_their_numbers_and_sizes_and_lose_predictions_that_nothing_comes_before():
    rng = np.random.default_rng(1)
    predicted = {h: rng.integers(0, 9, (20, 4, 2)) for h in (1, 3)}
    trace = Trace.from_arrays(rng.random((20, 4, 9)).argsort(2)[..., :3], n_experts=9, predicted=predicted,
                              row_bytes=[1, 2, 3, 4], model_layers=[2, 3, 5, 7])  # fmt: skip
    part = slotwise.cut(trace, layers=slice(1, 3))
    assert (part.row_bytes, part.meta.model_layers, part.horizons) == ((2, 3), (3, 5), (1,))
    assert np.array_equal(part.layer(1), trace.layer(2))
    (before,), (after,) = (list(t.blocks(predicted=True)) for t in (trace, part))
    assert np.array_equal(after.predicted[1], before.predicted[2])
    assert (after.predicted[0] == 255).all()
    assert slotwise.cut(trace, layers=slice(3, None)).meta.predictor is None
    assert slotwise.cut(trace, without=["predictions"]).horizons == ()


@given(case=arrays(), at=st.integers(1, 39), group_rows=st.integers(1, 40))
def test_cut_in_two_and_merged_is_the_trace_again(case, at, group_rows):
    case["request"] = np.zeros_like(case["request"])
    trace = Trace.from_arrays(**case, group_rows=group_rows)
    at = min(at, trace.n_steps - 1)
    if not at:
        return
    parts = [slotwise.cut(trace, steps=slice(0, at)), slotwise.cut(trace, steps=slice(at, None))]
    merged, expected = everything(slotwise.merge(parts)), everything(trace)
    assert expected.keys() == merged.keys()
    for name in (*ROWS, "starts"):
        assert name not in expected or np.array_equal(merged[name], expected[name])


def test_interleaved_traces_take_turns_step_by_step():
    a, b = (slotwise.cut(three(), ids=[i]) for i in (0, 1))
    merged = slotwise.merge([b, a], order="interleaved")
    assert steps(merged) == [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(0, 2)], [(1, 2)], [(1, 3)], [(1, 4)]]
    assert merged.rows("step")["step"].tolist() == [0, 0, 1, 1, 2, 3, 4, 5]
    assert [(r["id"], r["label"]) for r in merged.meta.requests] == [(0, "b"), (1, "a")]


def test_token_ids_that_one_trace_lacks_are_unknown_in_the_merged_one():
    merged = slotwise.merge([tiny(token_id=[5, 6, 7, 8, 9]), tiny()])
    assert merged.rows("token_id")["token_id"].tolist() == [5, 6, 7, 8, 9] + [-1] * 5


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"model": "B"}, "model is B in arrays, but A in arrays; merged traces are of one model; if they are the same"),
        ({"model": "A", "row_bytes": [3]}, "row_bytes is (3,) in arrays, but (2,) in arrays"),
        ({"model": "A", "router": "sigmoid"}, "router is sigmoid in arrays, but softmax in arrays"),
        ({"weights": np.ones((5, 1, 1), np.float16)}, "weights recorded in arrays and arrays differ (True and none)"),
    ],
)
def test_traces_of_two_models_are_not_merged(other, words):
    with pytest.raises(BadTrace) as refused:
        slotwise.merge([tiny(model="A", row_bytes=[2], router="softmax"), tiny(**other)])
    assert words in str(refused.value)


def test_what_one_trace_does_not_say_the_other_may_and_a_name_given_settles_two_names():
    merged = slotwise.merge([tiny(licence="MIT"), tiny(model="A", row_bytes=[2], licence="CC0-1.0")])
    assert (merged.model, merged.row_bytes, merged.meta.licence) == ("A", (2,), "MIT; CC0-1.0")
    assert slotwise.merge([tiny(model="a"), tiny(model="A.gguf")], model="A").model == "A"


# -- regroup ----------------------------------------------------------------------------------------------------------


def test_tokens_of_a_request_share_a_step_that_crosses_no_request_and_no_phase():
    assert steps(slotwise.regroup(three(), tokens=2)) == [
        [(0, 0), (0, 1)], [(0, 2), (0, 3)], [(0, 4)],
        [(1, 0), (1, 1)], [(1, 2)],
        [(2, 0), (2, 1)], [(2, 2), (2, 3)],
    ]  # fmt: skip


def test_requests_share_a_step_until_they_end_and_the_next_takes_the_place():
    assert steps(slotwise.regroup(three(), requests=2)) == [
        [(0, 0), (0, 1)], [(1, 0), (1, 1)],  # both prompts, each alone
        [(0, 2), (1, 2)],
        [(2, 0), (2, 1)],  # request 1 is done: 2 begins
        [(0, 3), (2, 2)],
        [(0, 4), (2, 3)],
    ]  # fmt: skip
    assert steps(slotwise.regroup(three(), tokens=2, requests=3))[3:] == [
        [(0, 2), (0, 3), (1, 2), (2, 2), (2, 3)],
        [(0, 4)],
    ]


@given(case=arrays(), tokens=st.none() | st.integers(1, 5), requests=st.none() | st.integers(1, 4),
       group_rows=st.integers(1, 40))  # fmt: skip
def test_regrouped_rows_keep_their_order_and_steps_their_bounds(case, tokens, requests, group_rows):
    trace = Trace.from_arrays(**case, group_rows=group_rows)
    if tokens is None and requests is None:
        return
    other = slotwise.regroup(trace, tokens=tokens, requests=requests)
    for request in np.unique(case["request"]).tolist():
        assert same(rows_of(other, request), rows_of(trace, request))
    table = everything(other)
    for a, b in zip(table["starts"], table["starts"][1:], strict=False):
        _, counts = np.unique(table["row_request"][a:b], return_counts=True)
        assert len(set(table["row_phase"][a:b].tolist())) == 1
        assert len(counts) <= (requests or 1 if table["row_phase"][a] else 1)
        assert tokens is None or not table["row_phase"][a] or counts.max() <= tokens


def test_verify_steps_in_a_file_replay_as_those_that_a_replay_builds_when_all_is_accepted():
    trace = slotwise.cut(open_trace("sample"), phase="decode", steps=slice(0, 2000))
    built = slotwise.replay(trace, "lfru", 16, verify_tokens=4, accept=1.0, plan_hash=True)
    assert (
        slotwise.replay(slotwise.regroup(trace, tokens=4), "lfru", 16, plan_hash=True).plan_sha256 == built.plan_sha256
    )


# -- files and the command line ---------------------------------------------------------------------------------------


def test_rows_far_apart_come_out_of_a_file_as_out_of_memory(tmp_path):
    trace = Trace.synthesise(n_tokens=9000, n_layers=2, n_experts=300, top_k=2, requests=9, prompt_tokens=5, width=2)
    trace.save(tmp_path / "t.parquet", group_rows=2000)
    trace.save(tmp_path / "one.parquet")
    expected = everything(slotwise.regroup(trace, requests=4))
    for name in ("t.parquet", "one.parquet"):
        slotwise.regroup(open_trace(tmp_path / name), requests=4).save(tmp_path / "r.parquet", group_rows=700)
        assert same(everything(open_trace(tmp_path / "r.parquet")), expected)


def test_the_commands_write_what_the_functions_make(tmp_path):
    say = lambda *words, code=0: command("trace", *words, code=code, cwd=tmp_path)  # noqa: E731
    told = json.loads(say("split", "sample", "--train", "a.parquet", "--held-out", "b.parquet", "--json").stdout)
    train, held = slotwise.split(open_trace("sample"))
    assert (told["train"]["sha256"], told["held_out"]["sha256"]) == (train.sha256, held.sha256)
    assert (told["train"]["n_requests"], told["held_out"]["n_requests"]) == (6, 1)
    say("merge", "b.parquet", "a.parquet", "-o", "m.parquet", "--order", "interleaved")
    merged = open_trace(tmp_path / "m.parquet")
    assert merged.digest() == merged.sha256 == slotwise.merge([held, train], order="interleaved").sha256
    assert merged.meta.source.startswith("merge (interleaved by step) of b (ids ")
    done = say(
        "cut", "m.parquet", "-o", "c.parquet", "--steps", "10:", "--layers", ":4", "--phase", "decode", "--label", "c"
    )
    assert done.stdout.startswith("c.parquet: <Trace m-cut: qwen3moe-24x128-930m, 640 tokens x 4 layers, top 8 of 128")
    told = json.loads(say("regroup", "c.parquet", "-o", "r.parquet", "--tokens", "5", "--json").stdout)
    assert (told["n_tokens"], told["n_steps"], told["n_layers"]) == (640, 128, 4)
    info = json.loads(say("info", "r.parquet", "--json").stdout)
    assert info["source"].startswith("regroup (5 tokens of a request to a step) of c (ids ")
    assert (info["licence"], info["requests"][0]["label"]) == ("Apache-2.0", "c")
    assert say("cut", "sample", "-o", "c.parquet", "--steps", "0:9", code=2).stderr.startswith(
        "slotwise: c.parquet exists"
    )
    say("cut", "c.parquet", "-o", "c.parquet", "--steps", "0:9", "--force")  # onto itself
    assert open_trace(tmp_path / "c.parquet").n_steps == 9


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["split", "sample", "--train", "a", "--held-out", "a"], "--train and --held-out are both a; name two files"),
        (["split", "sample", "--train", "a", "--held-out", "b", "--share", "1"], "split: share=1.0; it is the part of"),
        (["split", "sample", "--train", "a", "--held-out", "b", "--label", "phyton"],
         "sample has no request labelled 'phyton'; it has novel, python, c, man_en, man_de, man_ja, book_zh. Did you"),
        (["split", "sample", "--train", "a", "--held-out", "b", "--id", "9"], "sample has no request 9; it has 0, 1"),
        (["split", "sample", "--train", "a", "--held-out", "b", "--id", "1", "--share", "0.5"], "split: share=0.5 and"),
        (["cut", "sample", "-o", "a", "--steps", "7"], "--steps '7': write START:STOP in whole numbers"),
        (["cut", "sample", "-o", "a", "--steps", "7:5"], "cut: steps 7:5 of sample, which has 0:4487; give START:STOP"),
        (["cut", "sample", "-o", "a", "--layers", "0:25"], "cut: layers 0:25 of sample, which has 0:24"),
        (["cut", "sample", "-o", "a"], "cut: nothing to cut by"),
        (["merge", "sample", "-o", "a"], "merge: 1 trace; it takes two or more"),
        (["regroup", "sample", "-o", "a"], "regroup: give tokens"),
        (["regroup", "sample", "-o", "gone/a", "--tokens", "2"], "cannot write to 'gone/a': there is no folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(tmp_path, words, line):
    done = command("trace", *words, code=2, cwd=tmp_path)
    assert done.stderr.startswith(f"slotwise: {line}")
    assert (done.stdout, done.stderr.count("\n"), list(tmp_path.iterdir())) == ("", 1, [])


@pytest.mark.parametrize("name", ["split", "merge", "cut", "regroup"])
def test_help_of_each_has_an_example(name):
    assert f"Example: slotwise trace {name} " in command("trace", name, "--help").stdout
