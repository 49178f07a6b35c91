"""SGLang's recorder: physical ids, padding, sequences without names, and torch files that are not believed."""

import pytest
from import_cases import assert_refused_or_valid, assert_replays_as, refusal
from trace_cases import whole

from slotwise.traces import BadTrace, TraceWarning, open_trace

# Layer 0 is dense. Six physical experts hold four: the map differs by layer. Logical ids, top 2 of columns for 3.
MAP = [[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2], [0, 1, 2, 3, 0, 1]]
PHYSICAL = {1: {0: 3, 1: 2, 2: 5, 3: 4}, 2: {0: 4, 1: 1, 2: 2, 3: 3}}
STEPS = [  # two prompts, of 2 and 1 tokens; both go on; the first one alone
    [[[0, 1], [1, 2], [3, 0]], [[3, 2], [0, 3], [1, 2]]],
    [[[0, 2], [2, 3]], [[2, 0], [3, 1]]],
    [[[3, 1]], [[1, 0]]],
]
POSITIONS, MODES, LENGTHS = [[0, 1, 0], [2, 1], [3]], [1, 2, 2], [[2, 1], None, None]
torch = pytest.importorskip("torch", reason="SGLang's files are read with torch, which is optional")


def records(**changes):
    out = []
    for step, positions, mode, lengths in zip(STEPS, POSITIONS, MODES, LENGTHS, strict=True):
        ids = torch.full((3, len(positions), 3), -1, dtype=torch.int32)
        for layer in (1, 2):
            for i, chosen in enumerate(step[layer - 1]):
                ids[layer, i, :2] = torch.tensor([PHYSICAL[layer][expert] for expert in chosen])
        out.append(
            {
                "forward_pass_id": len(out),
                "rank": 0,
                "gatherer_key": "primary",
                "input_ids": [50 + p for p in positions],
                "positions": positions,
                "extend_seq_lens": lengths,
                "forward_mode": mode,
                "topk_ids_of_layer": ids,
                "misc_objects": [],
            }
        )
    for at, fields in changes.items():
        out[int(at[1:])] |= fields
    return out


def written(folder, found=None, **fields):
    path = folder / "recorder.pt"
    said = {"records": records() if found is None else found, "last_physical_to_logical_map": torch.tensor(MAP)}
    torch.save(said | fields, path)
    return path


@pytest.mark.filterwarnings("ignore:.*(as dense layers are|physical experts hold)")
def opened(path, **hints):
    with pytest.warns(TraceWarning, match="request ids are not recorded; sequences are told apart by"):
        return open_trace(path, **hints)


QUIET = pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")


@QUIET
def test_physical_ids_become_logical_ones_and_passes_become_steps(tmp_path):
    trace = opened(written(tmp_path))
    found = whole(trace)
    assert found["starts"].tolist() == [0, 3, 5, 6]
    assert found["phase"].tolist() == [0, 1, 1]
    assert found["position"].tolist() == [0, 1, 0, 2, 1, 3]
    assert found["token_id"].tolist() == [50, 51, 50, 52, 51, 53]
    for layer in range(2):
        assert found["experts"][layer].tolist() == [ids for step in STEPS for ids in step[layer]]
    assert (trace.n_experts, trace.top_k, trace.meta.model_layers) == (4, 2, (1, 2))
    assert_replays_as(trace, STEPS, tmp_path)


@QUIET
def test_a_sequence_that_goes_on_is_the_same_request(tmp_path):
    assert whole(opened(written(tmp_path)))["row_request"].tolist() == [0, 0, 1, 0, 1, 0]
    chunk = {"forward_mode": 1, "extend_seq_lens": [1, 1]}  # the second pass: 0 goes on with its prompt, a new one
    trace = opened(written(tmp_path, records(r1=chunk | {"positions": [2, 0]}, r2={"positions": [1]})))
    assert whole(trace)["row_request"].tolist() == [0, 0, 1, 0, 2, 1]
    mixed = {"forward_mode": 3, "extend_seq_lens": [2, 1]}
    assert whole(opened(written(tmp_path, records(r0=mixed))))["row_phase"].tolist() == [0, 0, 1, 1, 1, 1]


def test_dense_layers_replicas_and_padding_are_said(tmp_path):
    found = records()
    found[1]["topk_ids_of_layer"][:, 1] = -1
    with pytest.warns(TraceWarning) as warned:
        trace = open_trace(written(tmp_path, found))
    said = " ".join(str(w.message) for w in warned)
    assert "layers [0] are empty, as dense layers are; left out" in said
    assert "6 physical experts hold 4; mapped as at the end, wrong before a rebalancing" in said
    assert "1 of 6 rows are -1 at every layer, as padding is; left out" in said
    assert whole(trace)["position"].tolist() == [0, 1, 0, 2, 3]


@QUIET
def test_idle_passes_have_no_tokens(tmp_path):
    idle = {"forward_mode": 4, "topk_ids_of_layer": torch.zeros((3, 0, 3), dtype=torch.int32)}
    assert open_trace(written(tmp_path, [idle, *records()])).n_steps == 3


def changed(at, where, value):
    found = records()
    found[at]["topk_ids_of_layer"][where] = value
    return found


CASES = [
    (lambda: changed(0, (1, 0, 0), 6), "row 0, layer 1, rank 0: physical expert 6, but the map has 6"),
    (lambda: changed(0, (1, 0, 0), -7), "layer 1, rank 0: physical expert -7, but the map has 6, and none is -1"),
    (lambda: changed(0, (1, 0, 0), -1), "row 0, layer 0, rank 0: absent, but other ranks are not"),
    (lambda: changed(0, (1, 0, 0), 5), "row 0, layer 0: "),
    (lambda: changed(0, (1, 0, slice(0, 2)), torch.tensor([0, 4])), "row 0, layer 0: expert 3 twice in one top-2"),
    (lambda: records(r1={"forward_mode": 5}), "record 1: forward_mode=5; read are 1 extend, 2 decode"),
    (lambda: records(r1={"positions": [1]}), "record 1: positions has 1 entries for 2 tokens"),
    (lambda: records(r1={"positions": [1, -1]}), "record 1: positions[1]=-1; it must be a whole number"),
    (lambda: records(r1={"positions": None}), "record 1: positions is None; it must be whole numbers"),
    (lambda: records(r0={"extend_seq_lens": [1, 1]}), "record 0: extend_seq_lens [1, 1] are no parts of its 3 tokens"),
    (lambda: records(r1={"topk_ids_of_layer": torch.zeros(2, 2, 3)}), "topk_ids_of_layer is torch.float32; it must be"),
    (lambda: records(r1={"positions": torch.zeros(2).bfloat16()}), "positions is torch.bfloat16; it must be"),
    (lambda: records(r1={"positions": torch.zeros(1, 2).int()}), "positions is [1, 2]; it must have 1 dimensions"),
    (
        lambda: records(r1={"topk_ids_of_layer": torch.zeros(2, 2, 3).int()}),
        "record 1: ids [2, 2, 3], but [3, 3] layers",
    ),
    (lambda: records(r1={"topk_ids_of_layer": torch.zeros(1).int().expand(3, 10**9, 3)}), "a view with strides"),
    (lambda: [records()[0]] * 500, "more than the file has; is one stored twice?"),
    (lambda: [1], "record 0: 1; a record is a dict"),
    (list, "none of its 0 records has a token"),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@QUIET
def test_a_recording_that_breaks_a_rule_is_refused_in_one_line(tmp_path, case):
    found, words = CASES[case]
    if words == "row 0, layer 0: ":
        assert open_trace(written(tmp_path, found())).layer(0)[0].tolist() == [2, 1], "5 is a replica of 2"
    else:
        assert words in refusal(written(tmp_path, found()))


@QUIET
def test_a_map_that_is_not_one_is_refused(tmp_path):
    for mapping, words in (
        (torch.tensor(MAP[:2]), "last_physical_to_logical_map is [2, 6] for 3 layers"),
        (torch.tensor(MAP) - 1, "last_physical_to_logical_map[0][0]=-1 is no expert"),
        (None, "last_physical_to_logical_map is None"),
    ):
        assert words in refusal(written(tmp_path, last_physical_to_logical_map=mapping))
    assert "top_k=3 was asked for, but 2 columns hold ids" in refusal(written(tmp_path), top_k=3)


def test_counts_have_no_order_and_are_no_trace(tmp_path):
    torch.save({"rank": 0, "logical_count": torch.ones((5, 3, 4), dtype=torch.int32)}, tmp_path / "stat.pt")
    assert "counts only (logical_count" in (said := refusal(tmp_path / "stat.pt"))
    assert "cannot be replayed" in said


def test_a_torch_file_cut_off_is_refused(tmp_path):
    path = written(tmp_path)
    data = path.read_bytes()
    for cut in range(len(data) - 1, 600, -211):
        path.write_bytes(data[:cut])
        with pytest.raises(BadTrace, match="damaged or truncated torch file"):
            open_trace(path)


@QUIET
def test_a_file_that_rots_is_refused_or_read_with_valid_ids(tmp_path):
    path = written(tmp_path)
    assert_refused_or_valid(path, path.read_bytes(), tries=150, format="sglang")
