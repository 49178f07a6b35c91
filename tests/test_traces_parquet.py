"""Our own file: what is written is what is read, however it is cut into row groups; and the shipped sample."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import arrays, tiny, whole

from slotwise.traces import BadTrace, Trace, open_trace
from slotwise.traces.opening import SAMPLE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


@given(case=arrays(), group_rows=st.integers(1, 50), cut=st.integers(1, 60))
def test_what_is_saved_is_what_is_opened(folder, case, group_rows, cut):
    before = Trace.from_arrays(**case)
    before.save(folder / "t.parquet", group_rows=group_rows)
    after = open_trace(folder / "t.parquet")
    what = {"predicted": "predicted" in case, "weights": "weights" in case}
    expected, found = whole(before, **what), whole(after, **what)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert array.dtype == found[name].dtype
        assert np.array_equal(array, found[name]), name
    for layer in range(before.n_layers):
        assert np.array_equal(before.layer(layer), after.layer(layer))
    first = whole(after, n_steps=cut)
    rows = int(expected["starts"][min(cut, before.n_steps)])
    assert np.array_equal(first["experts"], expected["experts"][:, :rows])
    assert (after.n_steps, after.n_requests) == (before.n_steps, before.n_requests)
    assert after.sha256 == before.sha256 == after.digest()
    assert dict(after.meta) == {**dict(before.meta), "sha256": before.sha256}


@given(case=arrays(), group_rows=st.integers(1, 50))
def test_no_step_crosses_two_blocks_and_a_group_holds_whole_steps(folder, case, group_rows):
    Trace.from_arrays(**case).save(folder / "b.parquet", group_rows=group_rows)
    trace = open_trace(folder / "b.parquet")
    blocks = list(trace.blocks())
    assert [len(block.experts[0]) for block in blocks] == np.diff(trace.store.groups).tolist()
    ends = np.flatnonzero(np.diff(case["step"])) + 1
    for block in blocks:
        assert block.first_row in {0, *ends.tolist()}
        assert block.n_rows <= group_rows or block.n_steps == 1
        assert block.experts.flags.c_contiguous
    assert [block.first_step for block in blocks] == np.cumsum([0, *(b.n_steps for b in blocks)])[:-1].tolist()


@given(case=arrays(), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_a_file_that_cuts_steps_between_its_groups_is_read_as_whole_steps(folder, case, sizes):
    trace = Trace.from_arrays(**case)
    trace.save(folder / "whole.parquet")
    table = pq.read_table(folder / "whole.parquet")
    with pq.ParquetWriter(folder / "cut.parquet", table.schema) as writer:
        at = 0
        while at < table.num_rows:
            size = sizes.pop() if sizes else 100
            writer.write_table(table.slice(at, size))
            at += size
        writer.add_key_value_metadata(pq.read_metadata(folder / "whole.parquet").metadata)
    expected, found = whole(trace), whole(open_trace(folder / "cut.parquet"))
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name


def test_the_same_trace_is_written_as_the_same_bytes(tmp_path):
    for name in "ab":
        Trace.synthesise(n_tokens=500, n_layers=3, width=2, seed=5).save(tmp_path / f"{name}.parquet", group_rows=100)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_the_columns_are_those_of_version_1(tmp_path):
    trace = Trace.from_arrays(
        np.array([[[0, 1], [300, 2]]]), n_experts=400, predicted=np.array([[[-1] * 3, [7, 8, -1]]]), token_id=[-1],
        weights=np.array([[[0.75, 0.25], [0.5, 0.5]]]), row_bytes=[4, 6], model="m",
        requests=[{"id": 0, "label": "a", "prompt_tokens": 1}],
    )  # fmt: skip
    trace.save(tmp_path / "t.parquet")
    file = pq.ParquetFile(tmp_path / "t.parquet")
    table = file.read()
    assert {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)} == {
        "request": "int32", "step": "int64", "position": "int32", "phase": "uint8", "token_id": "int32",
        "experts.000": "fixed_size_binary[4]", "experts.001": "fixed_size_binary[4]",
        "weights.000": "fixed_size_binary[4]", "weights.001": "fixed_size_binary[4]",
        "predicted.001": "fixed_size_binary[6]",
    }  # fmt: skip
    assert table["experts.001"][0].as_py() == np.array([300, 2], "<u2").tobytes()
    assert table["predicted.001"][0].as_py() == np.array([7, 8, 65535], "<u2").tobytes()
    assert table["weights.000"][0].as_py() == np.array([0.75, 0.25], "<f2").tobytes()
    assert table["token_id"][0].as_py() is None
    assert file.metadata.row_group(0).column(5).compression == "ZSTD"
    record = json.loads(file.metadata.metadata[b"slotwise.trace"])
    assert record == {
        "format": "slotwise.trace", "version": 1, "model": "m", "revision": None, "n_layers": 2,
        "model_layers": [0, 1], "n_experts": 400, "top_k": 2, "row_bytes": [4, 6], "router": None,
        "predictor": {"kind": None, "width": 3, "horizon": 1}, "captured_by": None, "captured_at": None,
        "source": None, "licence": None, "requests": [{"id": 0, "label": "a", "prompt_tokens": 1}],
        "sha256": trace.sha256,
    }  # fmt: skip


def test_an_interrupted_save_leaves_what_was_there(tmp_path):
    target = tmp_path / "t.parquet"
    tiny().save(target)
    before = target.read_bytes()

    def stop(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trace.synthesise(n_tokens=50, n_layers=2).save(target, group_rows=10, advance=stop)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_progress_is_told_in_rows(tmp_path):
    told = []
    Trace.synthesise(n_tokens=50, n_layers=2).save(tmp_path / "t.parquet", group_rows=20, advance=told.append)
    assert told == [20, 20, 10]


def test_saving_into_a_folder_that_is_not_there_names_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        tiny().save(tmp_path / "gone" / "t.parquet")


def test_reading_one_layer_reads_no_other_column(tmp_path):
    Trace.synthesise(n_tokens=100, n_layers=3, n_experts=16, top_k=2).save(tmp_path / "t.parquet")
    good = open_trace(tmp_path / "t.parquet").layer(2)
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    names = [metadata.row_group(0).column(i).path_in_schema for i in range(metadata.num_columns)]
    column = metadata.row_group(0).column(names.index("experts.001"))
    data = bytearray((tmp_path / "t.parquet").read_bytes())
    start = column.data_page_offset
    data[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    (tmp_path / "t.parquet").write_bytes(data)
    broken = open_trace(tmp_path / "t.parquet")
    assert np.array_equal(broken.layer(2), good)
    with pytest.raises(BadTrace, match="damaged"):
        broken.layer(1)


def test_memory_stays_near_one_block(tmp_path):
    Trace.synthesise(n_tokens=20_000, n_layers=96, n_experts=64).save(tmp_path / "t.parquet", group_rows=5_000)
    trace = open_trace(tmp_path / "t.parquet")
    decoded = 96 * 5_000 * 8
    arrow, before = pa.default_memory_pool(), pa.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    try:
        for block in trace.blocks():
            assert block.experts.nbytes == decoded
            assert arrow.bytes_allocated() - before < 0.2 * decoded
            del block
        assert tracemalloc.get_traced_memory()[1] < 1.3 * decoded
    finally:
        tracemalloc.stop()


def test_the_sample_is_small_and_has_everything_that_a_first_run_needs():
    trace = open_trace("sample")
    assert trace.name == "sample"
    assert SAMPLE.stat().st_size <= 2_000_000
    assert (trace.n_layers, trace.n_experts, trace.top_k, trace.predicted_width) == (24, 128, 8, 8)
    assert (trace.n_tokens, trace.n_steps, trace.n_requests) == (7 * 896, 7 * (1 + 640), 7)
    (block,) = trace.blocks()
    assert np.diff(block.starts)[block.phase == 0].tolist() == [256] * 7
    assert trace.digest() == trace.sha256


@pytest.mark.shared
def test_the_sample_is_cut_from_the_capture_as_the_script_says(shared, tmp_path):
    from slotwise.traces.sample import cut

    again = cut(shared / "traces" / "lab24x128" / "decode.npz")
    assert again.sha256 == open_trace("sample").sha256
    expected, found = whole(again, predicted=True), whole(open_trace("sample"), predicted=True)
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), name
