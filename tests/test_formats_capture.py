"""What a capture leaves when it is broken off, written by the writer itself: complete steps are read, torn ones not."""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_cases import written

import slotwise
from slotwise.traces import capture_save, parquet_write
from slotwise.traces.capture_rows import RowWriter
from slotwise.traces.errors import BadTrace
from slotwise.traces.format_capture import MAGIC, rows_of
from slotwise.traces.meta import Meta

LAYERS, EXPERTS, K, WIDTH = 3, 9, 2, 4


def table(n_tokens: int, seed: int, n_experts: int = EXPERTS) -> np.ndarray:
    """Ids, weights as float16 and predictions one layer ahead, int16 `[layers, tokens, ...]`."""
    draw = np.random.default_rng(seed)
    ids = np.stack([[draw.permutation(n_experts)[:WIDTH] for _ in range(n_tokens)] for _ in range(2 * LAYERS)])
    weights = np.sort(draw.random((LAYERS, n_tokens, K)), -1)[..., ::-1].astype(np.float16)
    ahead = ids[LAYERS:].astype(np.int16)
    ahead[0] = -1
    return np.concatenate([ids[:LAYERS, :, :K].astype(np.int16), weights.view(np.int16), ahead], -1)


def laid_out(given: np.ndarray, n_experts: int = EXPERTS) -> np.ndarray:
    """The same as a device hands it over: the bytes of the file."""
    kind = np.uint8 if n_experts <= 255 else np.uint16
    ids, weights, ahead = np.split(given.transpose(1, 0, 2), [K, 2 * K], -1)
    parts = (ids.astype(kind), weights, ahead.astype(kind))
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1) for part in parts], 1)


def writer(path, *, ends=(), labels=("a",), n_experts=EXPERTS) -> RowWriter:
    meta = Meta(n_layers=LAYERS, n_experts=n_experts, top_k=K, model="m", row_bytes=(5,) * LAYERS, router="softmax")
    made = RowWriter(path, meta, {1: WIDTH}, labels, ends, force=False)
    made.open()
    return made


def part(folder):
    """A prompt of 4 tokens and 3 decode steps; then 2 prompts of 2 tokens (one padded) and a decode step of both."""
    made = writer(folder / "t.parquet")
    made.write(1, (1, 1, 4), np.array([0]), laid_out(table(4, 0)), None, None, None)
    made.write(2, (3, 1, 1), np.array([4, 5, 6]), laid_out(table(3, 1)), np.arange(3).reshape(3, 1, 1), None, None)
    mask = np.array([[[0, 1], [1, 1]]])
    made.write(
        3, (1, 2, 2), np.array([0]), laid_out(table(4, 2)), np.array([[[7, 8], [9, 10]]]), mask.cumsum(-1) - 1, mask
    )
    made.write(
        4, (1, 2, 1), np.array([2]), laid_out(table(2, 3)), np.array([[[11], [12]]]), np.array([[[1], [2]]]), None
    )
    return made


def test_rows_are_those_that_were_written(tmp_path):
    part(tmp_path)
    trace = slotwise.open_trace(tmp_path / "t.parquet.part")
    rows = {
        name: column.tolist() for name, column in trace.rows(*"request step position phase token_id".split()).items()
    }
    assert rows == {
        "request": [0] * 7 + [1, 2, 2, 1, 2],
        "step": [0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 5, 5],
        "position": [0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 1, 2],
        "phase": [0] * 4 + [1] * 3 + [0] * 3 + [1] * 2,
        "token_id": [-1] * 4 + [0, 1, 2, 8, 9, 10, 11, 12],
    }
    given = np.concatenate([table(4, 0), table(3, 1), table(4, 2)[:, 1:], table(2, 3)], 1)
    assert trace.read("experts", 0, 12).tolist() == given[..., :K].tolist()
    assert trace.read("weights", 0, 12).tobytes() == given[..., K : 2 * K].tobytes()
    assert trace.read("predicted.h1", 0, 12)[1:].tolist() == given[1:, :, 2 * K :].tolist()
    assert (trace.read("predicted.h1", 0, 12)[0] == 255).all()
    assert [(r["label"], r["prompt_tokens"]) for r in trace.meta.requests] == [("a", 4), (None, 1), (None, 2)]
    assert (trace.model, trace.row_bytes, trace.meta.router) == ("m", (5, 5, 5), "softmax")


def test_closing_makes_the_same_trace_and_removes_the_rows(tmp_path):
    made = part(tmp_path)
    before = slotwise.open_trace(tmp_path / "t.parquet.part")
    content = before.content_sha256
    made.close(complete=True)
    after = slotwise.open_trace(tmp_path / "t.parquet")
    assert after.content_sha256 == content
    assert {**after.meta, "sha256": None} == dict(before.meta)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_ids_of_two_bytes_and_more_rows_than_a_row_group(tmp_path):
    made = writer(tmp_path / "t.parquet", n_experts=300)
    for seed in range(3):
        many = laid_out(table(1, seed, 300).repeat(12_000, 1), 300)
        made.write(seed, (1, 1, 12_000), np.array([0]), many, None, None, None)
    made.close(complete=True)
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    assert (trace.n_tokens, trace.n_requests, trace.dtype.itemsize) == (36_000, 3, 2)
    assert len(trace.store.groups) == 3
    assert trace.layer(2)[24_000].tolist() == table(1, 2, 300)[2, 0, :K].tolist()


@given(st.lists(st.integers(1, 25), min_size=1, max_size=30), st.data())
def test_row_groups_that_are_saved_while_rows_come_are_those_of_one_save_at_the_end(tmp_path_factory, sizes, data):
    """Also of steps that are longer than a row group. Without a thread, or with one that is early or late."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture_save, "GROUP_ROWS", 10)
        made = writer(folder / "t.parquet")
        for number, n in enumerate(sizes):
            made.write(number, (1, 1, n), np.array([0]), laid_out(table(n, number)), None, None, None)
            if data.draw(st.booleans()):
                time.sleep(0.001)
        assert bool(made._saver._thread) == (sum(sizes) > 10)
        slotwise.open_trace(made.part).save(folder / "once.parquet", group_rows=10)
        made.close(complete=True)
    assert (folder / "t.parquet").read_bytes() == (folder / "once.parquet").read_bytes()


def test_what_goes_wrong_while_row_groups_are_saved_is_told_at_the_end_and_the_rows_are_kept(tmp_path, monkeypatch):
    made = writer(tmp_path / "t.parquet")
    for number in range(3):
        made.write(number, (1, 1, 9_000), np.array([0]), laid_out(table(1, 1).repeat(9_000, 1)), None, None, None)
        monkeypatch.setattr(parquet_write, "_binary", _full)
    with pytest.raises(OSError, match=r"No room; the 3 steps captured are kept: `slotwise trace import"):
        made.close(complete=True)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet.part"]
    assert rows_of(made.part).n_tokens == 27_000


def _full(*_):
    raise OSError(28, "No room")


@given(st.lists(st.tuples(st.booleans(), st.integers(4, 6), st.integers(4, 6), st.booleans()), min_size=1, max_size=9))
def test_passes_written_at_once_or_one_by_one_are_the_same_rows(tmp_path_factory, passes):
    """Of two sequences and a token each: new ones or not, tokens of which 5 is an end, the second padding or not."""
    n, folder = len(passes), tmp_path_factory.mktemp("once")
    past = np.array([0 if opens else 3 for opens, *_ in passes])
    tokens = np.array([each[1:3] for each in passes])[..., None]
    mask = np.array([[True, each[3]] for each in passes])[..., None]
    rows, ends = laid_out(table(2 * n, 9)), (5,)
    once, apart = (writer(folder / name, ends=ends) for name in ("once", "apart"))
    count = once.write(n, (n, 2, 1), past, rows, tokens, None, mask)
    for i in range(n):
        here = slice(i, i + 1)
        count -= apart.write(i + 1, (1, 2, 1), past[here], rows[2 * i : 2 * i + 2], tokens[here], None, mask[here])
    assert count == 0
    assert once.part.read_bytes() == apart.part.read_bytes()
    assert (once.n_steps, once.n_rows) == (apart.n_steps, apart.n_rows)


@given(st.integers(0, 12 * 200))
def test_a_file_cut_anywhere_is_its_complete_steps_or_an_error(tmp_path_factory, lost):
    folder = tmp_path_factory.mktemp("cut")
    made = part(folder)
    path = folder / "t.parquet.part"
    data = path.read_bytes()
    size = made._dtype.itemsize
    path.write_bytes(data[: max(len(data) - lost, 0)])
    begins = len(data) - 12 * size
    rows = (len(data) - lost - begins) // size
    whole = max((n for n in (0, 4, 5, 6, 7, 10, 12) if n <= rows), default=0)
    if whole:
        trace = slotwise.open_trace(path)
        assert trace.n_tokens == whole
        assert trace.read("experts", 0, whole).shape == (LAYERS, whole, K)
    else:
        with pytest.raises(BadTrace):
            slotwise.open_trace(path)


def test_a_write_that_was_interrupted_is_done_again_and_one_that_is_done_is_not(tmp_path):
    made = part(tmp_path)
    append = made._append

    def interrupted(rows, at):
        append(rows[:1], at)
        raise KeyboardInterrupt

    made._append = interrupted
    more = (np.array([3]), laid_out(table(2, 4)), None, None, None)
    with pytest.raises(KeyboardInterrupt):
        made.write(9, (1, 2, 1), *more)
    made._append = append
    assert slotwise.open_trace(tmp_path / "t.parquet.part").n_tokens == 12
    assert [made.write(9, (1, 2, 1), *more) for _ in range(2)] == [2, 0]
    made.close(complete=False)
    assert slotwise.open_trace(tmp_path / "t.parquet").rows("step")["step"].tolist()[-4:] == [5, 5, 6, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": {"1": 0}}, r"widths\[1\]=0"),
        ({"widths": ["1"]}, "widths must be an object"),
        ({"labels": [1]}, "labels must be a list of texts"),
        ({"n_layers": 10**5, "model_layers": [], "row_bytes": None}, "no complete step"),
        ({"n_experts": 3}, "expert ., but n_experts=3"),
        ({"top_k": 0}, "top_k=0"),
    ],
)
def test_a_damaged_header_is_one_line_with_the_rule(tmp_path, change, message):
    part(tmp_path)
    magic, line, rows = (tmp_path / "t.parquet.part").read_bytes().split(b"\n", 2)
    text = json.dumps({**json.loads(line), **change}).encode()
    path = written(tmp_path, b"\n".join([magic, text, rows]))
    with pytest.raises(BadTrace, match=message):
        slotwise.open_trace(path).read("experts", 0, 12)


@pytest.mark.parametrize("data", [MAGIC, MAGIC + b"{}", MAGIC + b"{}\n", MAGIC + b"[1]\n", MAGIC + b"\xff\n"])
def test_a_file_that_only_begins_like_a_capture_is_an_error(tmp_path, data):
    with pytest.raises(BadTrace):
        slotwise.open_trace(written(tmp_path, data))


def test_it_can_be_imported_by_the_command_and_says_itself_what_hints_would(tmp_path):
    from conftest import slotwise as command

    part(tmp_path)
    told = command(
        "trace", "import", tmp_path / "t.parquet.part", "-o", tmp_path / "t.parquet", "--model", "mine"
    ).stdout
    assert "mine, 12 tokens x 3 layers" in told
    told = command("trace", "import", tmp_path / "t.parquet.part", "-o", tmp_path / "u", "--top-k", "2", code=2).stderr
    assert "a capture says n_experts, top_k and row_bytes itself" in told


def test_writing_takes_numpy_and_pyarrow_alone(tmp_path):
    """A machine that captures may lack the rest. (Of pandas pyarrow wants to know itself whether it is there.)"""
    from conftest import ROOT, python

    absent = "polars numba matplotlib rich click jinja2"
    python(
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        f"for name in {absent!r}.split(): sys.modules[name] = None\n"
        "sys.modules['pytest'] = sys.modules['format_cases'] = None\n"
        "import numpy as np\n"
        "from slotwise.traces.capture_rows import RowWriter\n"
        "from slotwise.traces.meta import Meta\n"
        f"made = RowWriter(__import__('pathlib').Path({str(tmp_path / 't.parquet')!r}), "
        "Meta(n_layers=1, n_experts=4, top_k=1), {}, (), (), False)\n"
        "made.open()\n"
        "made.write(8, (1, 1, 2), np.array([0]), np.array([[1, 0, 60], [2, 0, 60]], np.uint8), None, None, None)\n"
        "made.close(complete=True)\n"
        "import slotwise; assert slotwise.open_trace(made.path).n_tokens == 2\n"
    )


def test_a_request_below_zero_is_refused_and_not_looked_up_among_the_labels(tmp_path):
    part(tmp_path)
    path = tmp_path / "t.parquet.part"
    data = path.read_bytes()
    rows = data.index(b"\n", len(MAGIC)) + 1
    path.write_bytes(data[:rows] + b"\xf0\xff\xff\xff" + data[rows + 4 :])
    with pytest.raises(BadTrace, match="row 0: request -16; it must not be negative"):
        list(slotwise.open_trace(path).blocks())
