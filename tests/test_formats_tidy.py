"""Tidy tables: what is exported comes back as it was, from Parquet and from text; what lacks something is refused."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_cases import outcomes, refusal, written
from trace_cases import arrays, tiny, whole

import slotwise
from slotwise.traces import BadTrace, Trace, TraceWarning, format_tidy, open_trace, pieces

HEAD = "token,request,step,position,phase,layer,rank,expert\n"
TEXT = HEAD + "".join(
    f"{t},0,{t // 2},{t},{'decode' if t > 1 else 'prefill'},{layer},{rank},{(t + 2 * layer + rank) % 4}\n"
    for t in range(4) for layer in range(2) for rank in range(2)
)  # fmt: skip
QUIET = pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")


def told(trace, kind):
    """What comes back: rows, and of Parquet the record too. Steps are numbered anew, token ids and predictions lost."""
    rows = whole(trace, weights=trace.has_weights)
    rows.pop("token_id", None)
    names = ("n_experts", "top_k", "model", "model_layers", "row_bytes", "source", "captured_by", "requests", "sha256")
    record = {name: trace.sha256 if name == "sha256" else trace.meta[name] for name in names}
    return rows | ({"meta": [record]} if kind == "tidy" else {})


@pytest.mark.parametrize("kind", ["tidy", "csv"])
@QUIET
@given(case=arrays(), group_rows=st.integers(1, 40), lines=st.sampled_from([1, 7, 10**6]), spill=st.booleans())
def test_an_export_is_imported_as_the_same_trace(tmp_path_factory, kind, case, group_rows, lines, spill):
    there = (case["experts"] >= 0).all(axis=2)
    case["experts"][~there.any(axis=1)] = np.arange(case["experts"].shape[2])  # a token that no layer saw has no lines
    case["experts"][:1, -1] = np.arange(case["experts"].shape[2])  # and of a last layer that saw none text says nothing
    trace = Trace.from_arrays(
        **case, group_rows=group_rows, model="m", source="s", captured_by="c", requests=[{"id": 1, "label": "x"}],
        model_layers=[3, 5, 6, 8][: case["experts"].shape[1]],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("tidy") / "t"
    slotwise.export(trace, path, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format_tidy, "LINES", lines)
        patch.setattr(pieces, "HELD", 0 if spill else 10**9)
        again = open_trace(path, **({"n_experts": trace.n_experts} if kind == "csv" else {}))
    expected, found = told(trace, kind), told(again, kind)
    assert expected.keys() == found.keys()
    for name in expected:
        assert np.array_equal(expected[name], found[name]), name


def test_the_sample_comes_back_from_tidy_lines(tmp_path):
    sample = open_trace("sample")
    for name, hints in (("t.parquet", {}), ("t.csv", {"n_experts": 128})):
        slotwise.export(sample, tmp_path / name)
        again = open_trace(tmp_path / name, **hints)
        assert (again.digest(), again.n_steps, again.n_requests) == (sample.digest(), sample.n_steps, 7)
    frame = sample.to_polars()
    frame.write_parquet(tmp_path / "own.parquet")  # the view as someone else wrote it
    assert open_trace(tmp_path / "own.parquet", n_experts=128).digest() == sample.digest()


def test_text_is_read_with_what_it_does_not_say(tmp_path):
    with pytest.warns(TraceWarning, match="n_experts is not recorded; taken as the largest id"):
        trace = open_trace(written(tmp_path, TEXT), row_bytes=5, model="m")
    assert (trace.n_experts, trace.row_bytes, trace.model, trace.meta.source) == (4, (5, 5), "m", "tidy: t.dat")
    found = whole(trace)
    assert found["starts"].tolist() == [0, 2, 4]
    assert found["phase"].tolist() == [0, 1]
    assert found["experts"].tolist() == [[[0, 1], [1, 2], [2, 3], [3, 0]], [[2, 3], [3, 0], [0, 1], [1, 2]]]


def test_a_layer_without_lines_is_absent_and_a_token_without_any_is_not_exported(tmp_path):
    gone = [line for line in TEXT.splitlines(keepends=True) if not line.startswith("2,0,1,2,decode,1,")]
    assert whole(open_trace(written(tmp_path, "".join(gone)), n_experts=4))["experts"][1, 2].tolist() == [255, 255]
    trace = Trace.from_arrays(np.array([[[0]], [[-1]], [[1]]]), n_experts=4)
    for name in ("u.csv", "u.parquet"):
        with pytest.raises(BadTrace, match=r"row 1 is absent at every layer, and .* has lines of experts only"):
            slotwise.export(trace, tmp_path / name)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1,0,0,1,prefill,0,1,2\n", "", "line 7: rank 0 of layer 1 of token 1; each layer of a token has the ranks 0"),
        ("1,0,0,1,prefill,0,1,2\n", "1,0,0,1,prefill,0,1,9\n", "line 7: expert 9; here it lies in 0 to 3"),
        ("1,0,0,1,prefill,0,1,2\n", "1,0,0,1,prefill,0,1,1\n", "row 1, layer 0: expert 1 twice in one top-2"),
        ("1,0,0,1,prefill,0,1,2\n", "1,0,0,1,prompt,0,1,2\n", "phase 'prompt'; it is prefill or decode"),
        ("1,0,0,1,prefill,0,1,2\n", "1,3,0,1,prefill,0,1,2\n", "line 7: request 3, but another one in the lines"),
        ("1,0,0,1,prefill,0,1,2\n", "1,0,0,1,prefill,0,x,2\n", "no table of numbers (\"In CSV column #6: Row #7"),
        ("1,0,0,1,prefill,0,1,2\n", "1,0,0,1,prefill,0,1\n", "no table of numbers ('CSV parse error: Row #7"),
        ("3,0,1,3,decode,1,1,2\n", "3,0,1,3,decode,1,1,2", "the last line has no end; truncated?"),
        ("3,0,1,3,decode,1,1,2\n", "", "line 16: rank 0 of layer 1 of token 3"),
        (TEXT, HEAD + TEXT.split("\n", 5)[5], "line 2: token 1 layer 0; tokens count from 0 by one"),
        (TEXT, TEXT + TEXT.split("\n", 1)[1], "line 18: token 0 layer 0; tokens count from 0 by one"),
        (TEXT, TEXT.replace("decode,1,", "decode,99999,"), "of so few a trace is not made"),
        (TEXT, TEXT.replace("decode,1,", "decode,100000,"), "layer 100000; layers count from 0 and below 100000"),
        ("expert\n", "expert,expert\n", "line 1: "),
        (TEXT, HEAD, "a head and no lines; a trace needs at least one token"),
        (",3,decode", ",-3,decode", "row 3: position -3"),
    ],
)  # fmt: skip
def test_a_table_that_breaks_a_rule_is_refused_in_one_line(tmp_path, old, new, words):
    assert old in TEXT
    assert words in refusal(written(tmp_path, TEXT.replace(old, new)), n_experts=4)


def test_a_parquet_table_of_other_types_or_with_nulls_is_refused(tmp_path):
    frame, path = pl.read_csv(TEXT.encode()), tmp_path / "t.parquet"
    for change, words in (
        (pl.col("expert").cast(pl.Float64), "column expert is double; it does not hold a expert"),
        (pl.col("phase").str.len_bytes(), "column phase is uint32; it does not hold a phase"),
        (pl.when(pl.col("token") > 0).then(pl.col("rank")).alias("rank"), "column rank has nulls"),
    ):
        frame.with_columns(change).write_parquet(path)
        assert words in refusal(path, n_experts=4)
    frame.drop("step").write_parquet(path)
    assert "column step is missing; it does not hold a step" in refusal(path, format="tidy", n_experts=4)


@QUIET
def test_damage_is_refused_in_one_line_or_read_with_valid_ids(tmp_path):
    found = outcomes(tmp_path, TEXT.encode(), "tidy", 4)
    assert 0 < found.count("read") < len(found)
    slotwise.export(tiny(), tmp_path / "good.parquet")
    found = outcomes(tmp_path, (tmp_path / "good.parquet").read_bytes(), "tidy", 4)
    assert found.count("read") < len(found)
