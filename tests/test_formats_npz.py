"""NumPy archives: what each member means, what is guessed with a warning, and what is not believed."""

import io
import pickle
import random
import struct
import zipfile

import numpy as np
import pytest
from conftest import some
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

IDS = np.array([[[0, 1]], [[1, 2]], [[2, 3]]], np.uint8)  # 3 tokens, 1 layer, top 2 of 4
PAIRS = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]]
SIX = np.array([PAIRS, PAIRS[::-1]], np.uint8).transpose(1, 0, 2)  # 6 tokens, 2 layers


def saved(path, **members):
    np.savez(path, **{"n_experts": 4, **members})
    return path


def opened(path, *, warning=None, **hints):
    if warning is None:
        return open_trace(path, **hints)
    with pytest.warns(TraceWarning, match=warning):
        return open_trace(path, **hints)


def refusal(path, **options) -> str:
    with pytest.raises(BadTrace) as refused:
        open_trace(path, **options)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_without_prefill_rows_every_row_is_a_decode_step(tmp_path):
    trace = opened(saved(tmp_path / "t.npz", experts=IDS))
    assert (trace.n_tokens, trace.n_steps, trace.n_requests, trace.name) == (3, 3, 1, "t")
    assert whole(trace)["phase"].tolist() == [1, 1, 1]
    assert whole(trace)["experts"].tolist() == [IDS[:, 0].tolist()]


def test_the_prefill_rows_of_a_request_are_one_step_and_positions_start_after_what_was_not_recorded(tmp_path):
    path = saved(
        tmp_path / "t.npz", experts=SIX, offsets=[0, 4, 6], labels=["code", "prose"], prefill_rows=[3, 1],
        first_position=[0, 10], token_ids=[5, 6, 7, 8, 9, 10], layer_ids=[3, 5], row_bytes=[100, 200],
    )  # fmt: skip
    trace, found = opened(path), whole(opened(path))
    assert found["starts"].tolist() == [0, 3, 4, 5, 6]
    assert found["phase"].tolist() == [0, 1, 0, 1]
    assert found["request"].tolist() == [0, 0, 1, 1]
    assert found["position"].tolist() == [0, 1, 2, 3, 10, 11]
    assert found["token_id"].tolist() == [5, 6, 7, 8, 9, 10]
    assert (trace.meta.model_layers, trace.row_bytes) == ((3, 5), (100, 200))
    assert [dict(request) for request in trace.meta.requests] == [
        {"id": 0, "label": "code", "prompt_tokens": 3},
        {"id": 1, "label": "prose", "prompt_tokens": 11},
    ]


def test_weights_decide_the_order_of_an_unsorted_top_k(tmp_path):
    weights = np.array([[[0.2, 0.8]], [[0.9, 0.1]], [[0.5, 0.5]]], np.float16)
    trace = opened(saved(tmp_path / "t.npz", experts=IDS, weights=weights), warning="ranked by weight")
    found = whole(trace, weights=True)
    assert found["experts"].tolist() == [[[1, 0], [1, 2], [2, 3]]]
    assert found["weights"].astype(np.float64).round(1).tolist() == [[[0.8, 0.2], [0.9, 0.1], [0.5, 0.5]]]


def test_an_unsorted_top_k_without_weights_is_warned_about(tmp_path):
    rng = np.random.default_rng(0)
    ids = np.sort(np.argsort(rng.random((100, 1, 16)), axis=2)[..., :4], axis=2).astype(np.uint8)
    opened(saved(tmp_path / "t.npz", experts=ids, n_experts=16), warning="top-k looks unsorted: 100% of the rows")


def test_the_number_of_experts_is_the_largest_id_and_one_only_when_nothing_says_better(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, experts=IDS)
    assert opened(path, warning="taken as the largest id \\+ 1 = 4").n_experts == 4
    assert opened(path, n_experts=64).n_experts == 64
    assert opened(saved(path, experts=IDS, n_experts=8)).n_experts == 8


def test_an_array_that_is_not_read_is_named_with_the_one_that_was_meant(tmp_path):
    path = saved(tmp_path / "t.npz", experts=IDS, predictions=IDS, zebra=IDS)
    with pytest.warns(TraceWarning, match=r"'predictions', 'zebra' is not read .did you mean predicted.*exp"):
        open_trace(path)


def test_absent_rows_are_no_expert_255(tmp_path):
    np.savez(tmp_path / "t.npz", experts=np.array([[[255, 255]], [[1, 2]]], np.uint8))
    trace = opened(tmp_path / "t.npz", warning="taken as the largest id \\+ 1 = 3")
    assert trace.layer(0).tolist() == [[255, 255], [1, 2]]


def test_what_the_file_does_not_say_can_be_told(tmp_path):
    trace = opened(saved(tmp_path / "t.npz", experts=IDS), row_bytes=7, model="m", top_k=2)
    assert (trace.row_bytes, trace.model) == ((7,), "m")
    with pytest.raises(BadTrace, match="top_k=3 was asked for, but experts holds 2"):
        open_trace(tmp_path / "t.npz", top_k=3)
    with pytest.raises(TypeError, match="unknown hints"):
        open_trace(tmp_path / "t.npz", colour="red")


def test_a_dense_layer_of_zeros_is_left_out_of_vllm_files_and_the_rest_keep_their_numbers(tmp_path):
    layers = np.concatenate([SIX * 0, SIX], axis=1)
    np.savez(tmp_path / "request-7.npz", routed_experts=layers.astype(np.int32))
    trace = opened(tmp_path / "request-7.npz", warning=r"layers \[0, 1\] are all zero", n_experts=4)
    assert trace.meta.model_layers == (2, 3)
    assert np.array_equal(whole(trace)["experts"], SIX.transpose(1, 0, 2))


def test_files_of_one_capture_are_strung_together_as_requests(tmp_path):
    paths = [saved(tmp_path / f"{name}.npz", experts=ids) for name, ids in (("a", SIX[:4]), ("b", SIX[4:]))]
    trace = open_trace(paths)
    assert (trace.n_requests, trace.n_steps) == (2, 6)
    assert [request["label"] for request in trace.meta.requests] == ["a", "b"]
    assert whole(trace)["position"].tolist() == [0, 1, 2, 3, 0, 1]
    with pytest.raises(BadTrace, match=r"its layers and k are \(1, 2\), but \(2, 2\) in"):
        open_trace([*paths, saved(tmp_path / "c.npz", experts=IDS)])
    with pytest.raises(BadTrace, match="its members are"):
        open_trace([*paths, saved(tmp_path / "c.npz", experts=SIX, offsets=[0, 6])])


def test_a_fortran_ordered_array_is_read_in_its_own_order(tmp_path):
    trace = opened(saved(tmp_path / "t.npz", experts=np.asfortranarray(SIX)))
    assert np.array_equal(whole(trace)["experts"], SIX.transpose(1, 0, 2))


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_nothing_in_an_npz_is_unpickled(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, experts=np.array([Bomb()], object), allow_pickle=True)
    assert "member experts is a pickle (dtype object), and nothing is unpickled" in refusal(path)
    np.savez(path, experts=IDS, labels=np.array([Bomb()], object), allow_pickle=True)
    assert "member labels is a pickle" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("experts.npy", pickle.dumps(Bomb()))
    assert "member experts is not a NumPy array" in refusal(path)


@pytest.mark.parametrize("shape", [(10**6, 1000, 1000), (3, 1, 3), (2, 1, 2), (-3, -1, 2)])
def test_an_npz_header_is_held_against_the_archive(tmp_path, shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("experts.npy", header.getvalue() + IDS.tobytes())
    assert "member experts promises" in refusal(tmp_path / "t.npz")


def test_a_zip_that_claims_a_size_it_cannot_hold_is_not_believed(tmp_path):
    header = io.BytesIO()
    shape = (2**31 - 1024, 1, 1)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("experts.npy", header.getvalue() + IDS.tobytes())
    real = len(header.getvalue()) + IDS.nbytes
    claimed = shape[0] + len(header.getvalue())
    data = path.read_bytes()
    assert data.count(struct.pack("<I", real)) == 2
    path.write_bytes(data.replace(struct.pack("<I", real), struct.pack("<I", claimed)))
    assert "which no zip can hold" in refusal(path)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"weights": np.ones((3, 1, 2))}, "no member 'experts' [tokens, layers, k]; it holds ['n_experts', 'weights']"),
        ({"experts": IDS[0]}, "member experts is uint8 [1, 2]; it must be of kind i or u"),
        ({"experts": IDS * 1.0}, "member experts is float64 [3, 1, 2]"),
        ({"experts": IDS[:0]}, "no tokens"),
        ({"experts": IDS * 0}, "experts holds zeros only; nothing was captured"),
        ({"experts": IDS, "n_experts": 3}, "row 2, layer 0, rank 1: experts 3, but n_experts=3"),
        ({"experts": IDS, "offsets": [0, 2]}, "offsets must rise from 0 to the 3 rows of experts, not [0, 2]"),
        ({"experts": IDS, "offsets": [0, 2, 1, 3]}, "offsets must rise"),
        ({"experts": IDS, "offsets": [3]}, "offsets must rise"),
        ({"experts": IDS, "labels": ["a", "b"]}, "labels has 2 entries for the 1 requests of offsets"),
        ({"experts": IDS, "prefill_rows": [4]}, "prefill_rows[0]=4, but request 0 has 3 rows"),
        ({"experts": IDS, "prefill_rows": [-1]}, "prefill_rows[0]=-1"),
        ({"experts": IDS, "first_position": [-5]}, "row 0: position -5"),
        ({"experts": IDS, "weights": np.ones((2, 1, 2))}, "weights has 2 rows, but experts has 3"),
        ({"experts": IDS, "weights": np.ones((3, 1, 3))}, "weights [3, 1, 3], but experts [3, 1, 2]"),
        ({"experts": IDS, "weights": np.full((3, 1, 2), np.nan)}, "row 0, layer 0, rank 0: weight nan"),
        ({"experts": IDS, "layer_ids": [1, 2]}, "layer_ids has shape [2], but experts has 1 layers"),
        ({"experts": IDS, "row_bytes": [0]}, ""),
        ({"experts": IDS, "row_bytes": [-1]}, "row_bytes=-1"),
    ],
)
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_an_npz_that_breaks_a_rule_is_refused_in_one_line(tmp_path, members, words):
    path = saved(tmp_path / "t.npz", **members)
    if words:
        assert words in refusal(path)
    else:
        assert open_trace(path).row_bytes is None


def zipped(path, compression=zipfile.ZIP_DEFLATED, **members):
    """An archive of members given byte by byte."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for key, data in members.items():
            archive.writestr(f"{key}.npy", data)
    return path


def npy(array, header=None) -> bytes:
    """The bytes of an array, with another header if one is given."""
    out = io.BytesIO()
    np.save(out, array)
    if header is None:
        return out.getvalue()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + array.tobytes()


HEADER = "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1, 2), }"


@pytest.mark.parametrize(
    "header",
    [HEADER[:-3], HEADER.replace("'shape'", "3"), HEADER.replace("'shape'", "b'shape'"), HEADER.replace("(3,", "(3L"),
     HEADER.replace("3, 1", "True, 3"), HEADER.replace("3, 1", "3.0, 1"), HEADER.replace("|u1", "|O"), "(" * 9000,
     HEADER.replace("|u1", "<i4, <i4"), HEADER.replace("'|u1'", "[('a', '|u1')]"), HEADER.replace("|u1", "(2,)|u1"),
     HEADER.replace("3, 1, 2", f"0, {10**30}, 2"), HEADER.replace("3, 1", f"3, {10**30}"), "  1\n 2", "", "\x00"],
)  # fmt: skip
def test_a_header_that_numpy_cannot_read_is_refused_in_one_line(tmp_path, header):
    assert "member experts" in (said := refusal(zipped(tmp_path / "t.npz", experts=npy(IDS, header)))) or "npz" in said


def test_labels_that_are_no_text_are_refused_and_bytes_are_utf_8(tmp_path):
    bad = np.array([0xFFFFFF], "<u4").view("<U1"), np.array([b"\xff"]), np.array([], "<U0")
    for labels in bad[:2]:
        assert "labels are not text" in refusal(saved(tmp_path / "t.npz", experts=IDS, n_experts=4, labels=labels))
    header = HEADER.replace("|u1", "<U0").replace("3, 1, 2", "1,")
    assert "npz" in refusal(zipped(tmp_path / "t.npz", experts=npy(IDS), n_experts=npy(4), labels=npy(bad[2], header)))
    trace = opened(saved(tmp_path / "t.npz", experts=IDS, n_experts=4, labels=np.array(["\u00e9".encode()])))
    assert trace.meta.requests[0]["label"] == "\u00e9"


COMPRESSIONS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


@pytest.mark.parametrize("compression", some(COMPRESSIONS))
@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_an_npz_that_rots_is_read_with_valid_ids_or_refused(tmp_path, compression):
    """Half of the damage is under the checksum, in what NumPy sees; the other half is in the archive itself."""
    path, rng, outcomes = tmp_path / "t.npz", random.Random(0), []
    members = {
        "experts": npy(SIX),
        "n_experts": npy(4),
        "labels": npy(np.array(["a"])),
        "offsets": npy(np.array([0, 6])),
    }
    alphabet = b"([{'}]),0123456789<>|=fiuOVSUMmcb?:.- \n" + bytes(range(256))
    for _ in range(250):
        rotten = {key: bytearray(data) for key, data in members.items()}
        one = rotten[rng.choice(["experts", "labels", "offsets"])]
        one[rng.randrange(min(128, len(one)))] = rng.choice(alphabet)
        data = bytearray(zipped(path, compression, **rotten).read_bytes())
        if rng.random() < 0.5:
            data = bytearray(zipped(path, compression, **members).read_bytes())
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        try:
            ids = whole(open_trace(path))["experts"]
        except BadTrace as error:
            outcomes.append(str(error))
        else:
            assert ((ids < 4) | (ids == 255)).all()
            outcomes.append("read")
    assert 5 < outcomes.count("read") < 245
    assert not any("\n" in outcome for outcome in outcomes)


@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_file_that_declares_more_than_may_be_decoded_is_refused_before_it_is(tmp_path):
    np.savez_compressed(tmp_path / "t.npz", experts=np.tile(np.arange(8, dtype=np.uint8), (4096, 1, 1)))
    assert "declares 32896 bytes when decoded, above the 32000 allowed; if you" in refusal(
        tmp_path / "t.npz", n_experts=8, max_size=32_000
    )
    assert open_trace(tmp_path / "t.npz", n_experts=8, max_size=33_000).n_tokens == 4096
    open_trace(tmp_path / "t.npz", n_experts=8).save(tmp_path / "t.parquet")
    assert "declares " in refusal(tmp_path / "t.parquet", max_size=1000)
