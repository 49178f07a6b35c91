"""Traces for other tools: what is written is read back, by us, by polars, or by an independent simulator."""

import json
import struct

import numpy as np
import polars as pl
import pytest
from conftest import slotwise as command
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import arrays, demanding, tiny, whole

import slotwise
from slotwise.traces import BadTrace, Trace, open_trace

ROW = struct.Struct("<IQIq")


def requests(case, prompts):
    """The case with requests one after the other, each a step of prefill (or none) and then a step a token."""
    request = np.sort(case["request"])
    within = np.concatenate([np.arange(n) for n in np.unique(request, return_counts=True)[1]])
    phase = within >= prompts
    step = np.cumsum(phase | (within == 0))
    return case | {"request": request, "step": step, "phase": phase.astype(int), "position": within}


@pytest.mark.filterwarnings("ignore::slotwise.TraceWarning")
@given(case=arrays(), prompts=st.integers(0, 4), group_rows=st.integers(1, 40))
def test_an_exported_npz_is_imported_as_the_same_trace(tmp_path_factory, case, prompts, group_rows):
    case = requests(case, prompts)
    if "weights" in case:
        case["weights"] = -np.sort(-case["weights"], axis=2)
    trace = Trace.from_arrays(**case, group_rows=group_rows, model_layers=[3, 5, 6, 8][: case["experts"].shape[1]])
    path = tmp_path_factory.mktemp("npz") / "t.npz"
    slotwise.export(trace, path)
    again = open_trace(path)
    what = {"predicted": bool(trace.horizons), "weights": trace.has_weights}
    expected, found = whole(trace, **what), whole(again, **what)
    numbers = np.unique(expected["row_request"], return_inverse=True)[1]
    assert np.array_equal(found.pop("row_request"), numbers)
    del expected["row_request"], expected["request"], found["request"]
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    for name in ("n_experts", "top_k", "row_bytes", "sha256"):
        assert getattr(again, name) == getattr(trace, name)
    assert again.meta.model_layers == trace.meta.model_layers


def test_the_sample_comes_back_from_an_npz_with_its_labels(tmp_path):
    done = command("trace", "export", "sample", "-o", "sample.npz", cwd=tmp_path)
    assert done.stdout.splitlines()[0].startswith("sample.npz: npz of <Trace sample: ")
    assert done.stdout.splitlines()[1].startswith("not in it: the model's name, provenance")
    command("trace", "import", "sample.npz", "-o", "again.parquet", cwd=tmp_path)
    sample, again = open_trace("sample"), open_trace(tmp_path / "again.parquet")
    assert (again.content_sha256, again.n_steps) == (sample.content_sha256, sample.n_steps)
    assert [(r["label"], r["prompt_tokens"]) for r in again.meta.requests] == [
        (r["label"], r["prompt_tokens"]) for r in sample.meta.requests
    ]
    first = (tmp_path / "sample.npz").read_bytes()
    command("trace", "export", "sample", "-o", "sample.npz", "--force", cwd=tmp_path)
    assert (tmp_path / "sample.npz").read_bytes() == first


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"step": [0, 1, 1, 2, 3]}, "positions counted; row 2 is not so. Export it as tidy, which holds any steps"),
        ({"position": [0, 1, 3, 4, 5]}, "positions counted; row 2 is not so"),
        ({"phase": [1, 0, 0, 1, 1]}, "row 0 is not so"),
        ({"request": [0, 1, 0, 0, 1], "position": [0, 0, 0, 1, 0]}, "a request goes on after another"),
        ({"weights": np.array([[[1, 2]]] * 5), "experts": [[[0, 1]]] * 5}, "row 0: weights rise along the ranks"),
    ],
)  # fmt: skip
def test_what_an_npz_cannot_hold_is_refused_and_no_file_is_left(tmp_path, columns, words):
    experts = columns.pop("experts", np.array([0, 1, 2, 0, 1]).reshape(5, 1, 1))
    trace = Trace.from_arrays(np.array(experts), n_experts=4, **columns)
    with pytest.raises(BadTrace) as refused:
        slotwise.export(trace, tmp_path / "t.npz")
    assert words in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_tidy_files_hold_the_tidy_view(tmp_path):
    trace = Trace.from_arrays(np.array([[[0, 1], [-1, -1]], [[2, 1], [3, 0]]]), n_experts=4, step=[7, 9], phase=[0, 1],
                              weights=np.array([[[0.75, 0.25]] * 2] * 2))  # fmt: skip
    for name, read in (("t.parquet", pl.read_parquet), ("t.csv", pl.read_csv)):
        slotwise.export(trace, tmp_path / name)
        assert read(tmp_path / name).rows() == [
            (0, 0, 0, 0, "prefill", 0, 0, 0, 0.75), (0, 0, 0, 0, "prefill", 0, 1, 1, 0.25),
            (1, 0, 1, 1, "decode", 0, 0, 2, 0.75), (1, 0, 1, 1, "decode", 0, 1, 1, 0.25),
            (1, 0, 1, 1, "decode", 1, 0, 3, 0.75), (1, 0, 1, 1, "decode", 1, 1, 0, 0.25),
        ]  # fmt: skip
    command("trace", "export", "sample", "-o", "s.parquet", "--format", "tidy", cwd=tmp_path)
    written, view = pl.read_parquet(tmp_path / "s.parquet"), open_trace("sample").to_polars()
    assert written.equals(view.with_columns(pl.col("phase").cast(pl.String)))


def lookups(trace):
    """Every demand with its step, object and size, and the number of the next one of its object: slow and plain."""
    rows = []
    (block,) = trace.blocks()
    for s in range(block.n_steps):
        for layer in range(trace.n_layers):
            ids = block.experts[layer, block.starts[s] : block.starts[s + 1]].ravel().tolist()
            rows += [(s, 1 + layer * trace.n_experts + e, (trace.row_bytes or [1] * 99)[layer])
                     for e in dict.fromkeys(ids) if e < trace.n_experts]  # fmt: skip
    objects = [row[1] for row in rows]
    after = [objects.index(o, i + 1) + 1 if o in objects[i + 1 :] else -1 for i, o in enumerate(objects)]
    return [(*row, n) for row, n in zip(rows, after, strict=True)]


@given(case=arrays(), group_rows=st.integers(1, 40))
def test_lookups_for_libcachesim_are_the_demands_in_order_with_their_next(tmp_path_factory, case, group_rows):
    path = tmp_path_factory.mktemp("oracle") / "t.oracleGeneral"
    slotwise.export(Trace.from_arrays(**case, group_rows=group_rows), path)
    assert list(ROW.iter_unpack(path.read_bytes())) == lookups(Trace.from_arrays(**case))


def test_libcachesim_misses_as_often_as_a_replay_of_the_exported_trace(tmp_path):
    lcs = pytest.importorskip("libcachesim", reason="the peer is absent: pip install '.[bench]' (GPL)")
    command("trace", "export", "sample", "-o", "s.oracleGeneral", cwd=tmp_path)
    reader = lcs.TraceReader(str(tmp_path / "s.oracleGeneral"), lcs.TraceType.ORACLE_GENERAL_TRACE,
                             lcs.ReaderInitParam(ignore_obj_size=True))  # fmt: skip
    for policy, peer in (("lru", lcs.LRU), ("belady", lcs.Belady)):
        ours = slotwise.replay("sample", policy, 700, scope="global", contract="sequential").counters
        assert ours["demands"] == reader.get_num_of_req()
        assert round(peer(700, hashpower=12).process_trace(reader)[0] * reader.get_num_of_req()) == ours["misses"]
        reader.reset()


def test_a_request_for_moe_cache_lab_is_a_prompt_layer_by_layer_and_then_tokens(tmp_path):
    trace = Trace.from_arrays(
        np.array([[[0, 1], [-1, -1]], [[2, 1], [3, 0]], [[3, 2], [1, 2]]]), n_experts=4, step=[0, 0, 1],
        phase=[0, 0, 1], position=[4, 5, 6], token_id=[9, -1, 8], model="m", model_layers=[1, 3],
        weights=np.array([[[0.75, 0.25]] * 2] * 3), captured_by="us", captured_at="2026-11-30",
    )  # fmt: skip
    slotwise.export(trace, tmp_path / "t.jsonl")
    meta, *events = map(json.loads, (tmp_path / "t.jsonl").read_text().splitlines())
    assert meta == {
        "record_type": "metadata", "format": "moe-cache-lab.routing-jsonl", "format_version": 1, "model_id": "m",
        "model_revision": None, "num_experts": 4, "experts_per_token": 2, "capture_method": "us",
        "created_at": "2026-11-30",
    }  # fmt: skip
    names = "phase", "layer", "token_position", "selected_experts", "token_id"
    assert [tuple(event.get(name) for name in names) for event in events] == [
        ("prompt", 1, 4, [0, 1], 9), ("prompt", 1, 5, [2, 1], None), ("prompt", 3, 5, [3, 0], None),
        ("generated", 1, 6, [3, 2], 8), ("generated", 3, 6, [1, 2], 8),
    ]  # fmt: skip
    assert all(e["selected_probabilities"] == [0.75, 0.25] for e in events)


@pytest.mark.filterwarnings("ignore::slotwise.TraceWarning")
@given(case=arrays(), prompts=st.integers(0, 4), group_rows=st.integers(1, 40))
def test_a_request_exported_to_moe_cache_lab_is_imported_as_the_same_trace(tmp_path_factory, case, prompts, group_rows):
    case = requests(case | {"request": case["request"] * 0}, prompts)
    case["experts"][(case["experts"] < 0).any(axis=(1, 2))] = np.arange(case["experts"].shape[2])  # each has all layers
    if "weights" in case:
        case["weights"] = -np.sort(-case["weights"], axis=2)
    trace = Trace.from_arrays(**case, group_rows=group_rows, model="m", revision="r", captured_by="us",
                              captured_at="now", model_layers=[3, 5, 6, 8][: case["experts"].shape[1]])  # fmt: skip
    path = tmp_path_factory.mktemp("lab") / "t.jsonl"
    slotwise.export(trace, path)
    again = open_trace(path)
    expected, found = whole(trace, weights=trace.has_weights), whole(again, weights=again.has_weights)
    if trace.store.has_token_id and (expected["token_id"] < 0).all():
        del expected["token_id"]  # none is known
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    for name in ("n_experts", "top_k", "model", "revision", "captured_by", "captured_at", "model_layers"):
        assert again.meta[name] == trace.meta[name]
    assert [r["prompt_tokens"] for r in again.meta.requests] == [int((expected["row_phase"] == 0).sum())]


def test_what_moe_cache_lab_cannot_hold_is_refused(tmp_path):
    for trace, words in (
        (demanding(0, 1, request=[0, 1]), "holds one request a file, and here are 2; take one out with"),
        (tiny(position=[0, 1, 1, 2, 3]), "row 2: position 1 after 1; there they rise"),
        (tiny(weights=np.full((5, 1, 1), 2.5)), "weights outside 0 to 1, and moe-cache-lab holds probabilities"),
    ):
        with pytest.raises(BadTrace, match=words):
            slotwise.export(trace, tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["-o", "t.txt"], "t.txt: its suffix names no format; known: .csv, .jsonl, .npz, .oracleGeneral, .parquet; or"),
        (["-o", "t.txt", "--format", "tydi"], "no format named 'tydi' to export to; known: csv, moe-cache-lab, npz, "),
        (["-o", "gone/t.npz"], "cannot write to 'gone/t.npz': there is no folder 'gone'"),
        (["-o", "t.jsonl"], "sample: moe-cache-lab holds one request a file, and here are 7"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line(tmp_path, words, line):
    done = command("trace", "export", "sample", *words, code=2, cwd=tmp_path)
    assert done.stderr.startswith(f"slotwise: {line}")
    assert (done.stdout, done.stderr.count("\n"), list(tmp_path.iterdir())) == ("", 1, [])


def test_the_help_names_every_format_and_its_suffix():
    told = " ".join(command("trace", "export", "--help").stdout.split())
    for row in slotwise.list_exports():
        assert f"{row['name']} ({row['suffix']}" in told
        assert row["description"]
        assert row["loses"]
    said = {row["name"]: row["export_loses"] for row in slotwise.list_formats()}
    assert said["tidy"].startswith("csv: predictions, token ids, the number of experts")
    assert "| tidy: predictions and token ids" in said["tidy"]
    assert {name for name, lost in said.items() if lost} == {"moe-cache-lab", "npz", "tidy"}
    assert "\nNot in an export as npz: the model's name" in command("formats", "npz").stdout
