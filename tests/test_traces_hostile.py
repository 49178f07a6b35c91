"""Files of ours that lie or are cut short: one line of BadTrace each, and no allocation that a header asks for."""

import json
import math
import random
import resource
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_cases import tiny, whole

from slotwise.traces import BadTrace, Trace, open_trace

RECORD = b"slotwise.trace"
RECORD_TEXT = '{"format": "slotwise.trace", "version": 1, "n_layers": 2, "n_experts": 4, "top_k": 2, "requests": []}'


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "t.parquet"
    Trace.from_arrays(
        np.array([[[0, 1], [2, 3]], [[1, 2], [3, 0]], [[2, 3], [0, 1]]]),
        n_experts=4,
        weights=np.full((3, 2, 2), 0.5),
        predicted=np.zeros((3, 2, 1), int),
        row_bytes=[7, 7],
    ).save(path)
    return path


def refusal(path, **options) -> str:
    """What is said about a file that cannot be used, whether at opening or at reading."""
    with pytest.raises(BadTrace) as refused:
        whole(open_trace(path, **options))
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


def rewritten(path, record=None, **columns):
    """The file with some columns replaced (None: left out) and some entries of its record changed."""
    table, meta = pq.read_table(path), json.loads(pq.read_metadata(path).metadata[RECORD])
    for name, column in columns.items():
        name = name.replace("_at_", ".")
        if column is None:
            table = table.drop_columns(name)
        else:
            table = table.set_column(table.schema.names.index(name), name, pa.chunked_array([column]))
    text = json.dumps(meta | record) if isinstance(record, dict) else record or json.dumps(meta)
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({RECORD: text})
    return path


def rows(*values):
    width = len(values[0])
    return pa.array([bytes(v) for v in values], pa.binary(width))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"experts_at_001": rows([2, 3], [3, 4], [0, 1])}, "row 1, layer 1, rank 1: expert 4, but n_experts=4"),
        ({"experts_at_001": rows([2, 3], [3, 0], [1, 1])}, "row 2, layer 1: expert 1 twice in one top-2 [1, 1]"),
        ({"experts_at_000": rows([255, 1], [1, 2], [2, 3])}, "row 0, layer 0, rank 0: absent, but other ranks are not"),
        ({"experts_at_000": rows([0], [1], [2])}, "column experts.000 must be fixed_size_binary[2]"),
        ({"experts_at_001": None}, "column experts.001 must be fixed_size_binary[2]"),
        ({"experts_at_001": pa.array(["a", "b", "c"])}, "not string"),
        ({"experts_at_001": pa.array([b"ab", None, b"cd"], pa.binary(2))}, "column experts.001 has nulls"),
        ({"weights_at_001": rows(*[[0, 0x7E, 0, 0]] * 3)}, "row 0, layer 1, rank 0: weight nan"),
        ({"weights_at_000": rows(*[[0, 0, 0, 0x7C]] * 3)}, "row 0, layer 0, rank 1: weight inf"),
        ({"weights_at_000": None}, "column weights.000 must be fixed_size_binary[4]"),
        ({"step": pa.array([-5, 0, 1])}, "row 0: step -5; it must not be negative"),
        ({"step": pa.array([0, 2, 1])}, "row 2: step 1 after step 2; steps never fall"),
        ({"step": pa.array([0, None, 1])}, "column step has nulls"),
        ({"step": pa.array([0, 1, 2], pa.int32())}, "column step must be int64, not int32"),
        ({"step": None}, "column step must be int64, not missing"),
        ({"request": pa.array([0, -1, 0], pa.int32())}, "row 1: request -1"),
        ({"phase": pa.array([0, 1, 2], pa.uint8())}, "row 2: phase 2; it is 0 (prefill) or 1 (decode)"),
        ({"record": {"n_layers": 3, "model_layers": [], "row_bytes": None}}, "column experts.002 must be"),
        ({"record": {"n_layers": 10**9}}, "n_layers=1000000000, but it must be a whole number from 1"),
        ({"record": {"n_layers": 99, "model_layers": [], "row_bytes": None}}, "n_layers=99, but the file has 9"),
        ({"record": {"top_k": "2"}}, "top_k='2', but it must be a whole number from 1 to 4"),
        ({"record": {"top_k": 10**12}}, "top_k=1000000000000"),
        ({"record": {"n_experts": 10**12}}, "n_experts=1000000000000, but it must be a whole number from 1 to 65535"),
        ({"record": {"n_experts": True}}, "n_experts=True"),
        ({"record": {"n_experts": None}}, "lacks n_experts"),
        ({"record": {"row_bytes": [7]}}, "row_bytes lists 1 sizes for n_layers=2"),
        ({"record": {"row_bytes": "7"}}, "row_bytes must be a list"),
        ({"record": {"row_bytes": [7, -7]}}, "row_bytes=-7"),
        ({"record": {"model_layers": [5, 4]}}, "model_layers must be 2 rising layer numbers"),
        ({"record": {"model": ["x"]}}, "model must be text"),
        ({"record": {"requests": [1]}}, "requests must be objects"),
        ({"record": {"requests": 7}}, "requests must be a list"),
        ({"record": {"predictor": "x"}}, "predictor must be an object"),
        ({"record": {"version": 2}}, "version 2 of slotwise.trace; this reader knows version 1"),
        ({"record": {"format": "other"}}, "does not say format='slotwise.trace'"),
        ({"record": "{"}, "the metadata record is not JSON"),
        ({"record": {"predictor": {"recall": math.nan}}}, "the metadata record is not JSON (NaN is no JSON number)"),
        ({"record": {"requests": [{"id": 0, "x": -math.inf}]}}, "not JSON (-Infinity is no JSON number)"),
        ({"record": RECORD_TEXT.replace("[]", '[{"id": 0, "x": 1e999}]')}, "must be JSON, without NaN and Infinity"),
        ({"record": "[" * 100_000}, "the metadata record is not JSON"),
        ({"record": "[]"}, "does not say format"),
        ({"predicted_at_001": pa.array([1, 2, 3])}, "column predicted.001 must be fixed_size_binary[1]"),
    ],
)  # fmt: skip
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(good, columns, words):
    record = {} if columns.get("record") is None else columns
    if record.get("record") == {"n_experts": None}:
        record = {"record": json.dumps({"format": "slotwise.trace", "version": 1, "n_layers": 2, "top_k": 2})}
    assert words in refusal(rewritten(good, **(record or columns)))


def test_rules_hold_across_row_groups(tmp_path):
    """Steps 0 1 | 0 1 are two captures, not one; the fall lies between the groups."""
    tiny(step=[0, 1, 2, 3, 4]).save(tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    with pq.ParquetWriter(tmp_path / "u.parquet", table.schema) as writer:
        for _ in range(2):
            writer.write_table(table)
        writer.add_key_value_metadata(pq.read_metadata(tmp_path / "t.parquet").metadata)
    assert "row 5: step 0 after step 4; steps never fall" in refusal(tmp_path / "u.parquet")


def test_ids_are_checked_in_every_row_group_and_named_by_their_row_in_the_file(tmp_path):
    path = tmp_path / "t.parquet"
    Trace.synthesise(n_tokens=100, n_layers=2, n_experts=16, top_k=1).save(path, group_rows=30)
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    ids = [row.as_py() for row in table["experts.001"]]
    ids[77] = b"\x10"
    at = table.schema.names.index("experts.001")
    table = table.set_column(at, "experts.001", pa.chunked_array([pa.array(ids, pa.binary(1))]))
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table, row_group_size=30)
        writer.add_key_value_metadata(metadata)
    assert "row 77, layer 1, rank 0: expert 16, but n_experts=16" in refusal(path)
    with pytest.raises(BadTrace, match="row 77"):
        open_trace(path).layer(1)
    assert len(open_trace(path).layer(0)) == 100


@pytest.mark.parametrize("rows_promised", [301, 10**6, 10**9, 10**12, 2**60])
def test_a_header_that_promises_more_rows_than_there_are_is_not_believed(tmp_path, rows_promised):
    path = tmp_path / "t.parquet"
    Trace.synthesise(n_tokens=300, n_layers=3, n_experts=16, top_k=4).save(path)
    data = path.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - size : -8]
    assert footer.count(varint(300)) >= 9  # in the file, the group and every column
    footer = footer.replace(varint(300), varint(rows_promised))
    path.write_bytes(data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "row group 0" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def varint(number: int) -> bytes:
    """A number as Parquet's footer writes it: zigzag, seven bits a byte."""
    number, out = number << 1, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


@pytest.mark.parametrize("keep", [1, 3, 4, 50, -9, -8, -4, -1])
def test_a_truncated_file_is_refused(good, keep):
    good.write_bytes(good.read_bytes()[:keep])
    assert any(word in refusal(good) for word in ("truncated", "in no known trace format"))


def test_an_empty_file_a_text_and_a_foreign_parquet_are_refused(tmp_path):
    (tmp_path / "t").write_bytes(b"")
    assert "empty file" in refusal(tmp_path / "t")
    (tmp_path / "t").write_text("Call me Ishmael.\n")
    assert "in no known trace format (slotwise, bmoe, " in refusal(tmp_path / "t")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t")
    assert "a Parquet file, but not a trace" in refusal(tmp_path / "t")


def test_a_file_with_no_rows_is_refused(good):
    table, metadata = pq.read_table(good), pq.read_metadata(good).metadata
    with pq.ParquetWriter(good, table.schema) as writer:
        writer.add_key_value_metadata(metadata)
    assert "no tokens" in refusal(good)


def test_an_altered_file_is_found_out_by_its_digest(good):
    path = rewritten(good, experts_at_000=rows([0, 1], [1, 2], [3, 2]))
    with pytest.raises(BadTrace, match="do not have the recorded SHA-256"):
        open_trace(path).describe()


def test_bytes_that_rot_never_reach_a_kernel(tmp_path):
    """Whatever is done to a file: it is read with valid ids, or refused in one line."""
    path = tmp_path / "t.parquet"
    Trace.synthesise(n_tokens=60, n_layers=2, n_experts=16, top_k=2, width=2).save(path, group_rows=20)
    data, rng = path.read_bytes(), random.Random(0)
    outcomes = []
    for _ in range(400):
        rotten = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            rotten[rng.randrange(len(rotten))] ^= 1 << rng.randrange(8)
        path.write_bytes(rotten)
        try:
            ids = whole(open_trace(path))["experts"]
        except BadTrace as error:
            outcomes.append(str(error))
        else:
            assert ((ids < 16) | (ids == 255)).all()
            outcomes.append("read")
    assert 20 < outcomes.count("read") < 380
    assert not any("\n" in outcome for outcome in outcomes)
