"""moe-cache-eval's event traces: sets of experts with counts, dealt out to rows; tensors that are not believed."""

import hashlib
import json
import struct

import numpy as np
import pytest
from import_cases import assert_refused_or_valid, refusal
from trace_cases import whole

import slotwise
from slotwise.traces import TraceWarning, open_trace

# A prefill of three tokens (request 7), then a token of its own; layers 1 and 4, top 2 of 5.
TOKENS = [[[[0, 1], [1, 2], [1, 4]], [[3, 2], [3, 0], [2, 3]]], [[[4, 2]], [[1, 0]]]]
TYPES = {"phases": np.uint8, "layer_ids": np.int16, "expert_ids": np.int16, "offsets": np.int64}
CODES = {"uint8": "U8", "int16": "I16", "int32": "I32", "int64": "I64", "float32": "F32"}


def flat(tokens):
    return [expert for ids in tokens for expert in ids]


def events(steps=TOKENS, phases=(0, 1), request=7):
    out = {
        key: []
        for key in "request_indices scheduler_steps forward_cycles phases layer_ids token_counts expert_ids "
        "assignment_counts gate_mass".split()
    }
    out["offsets"] = [0]
    for s, step in enumerate(steps):
        for layer, tokens in zip((1, 4), step, strict=True):
            chosen = flat(tokens)
            mass = [0.75 if rank == 0 else 0.25 for ids in tokens for rank in range(len(ids))]
            out["request_indices"].append(request)
            out["scheduler_steps"].append(s)
            out["forward_cycles"].append(s)
            out["phases"].append(phases[s])
            out["layer_ids"].append(layer)
            out["token_counts"].append(len(tokens))
            for expert in sorted(set(chosen)):
                out["expert_ids"].append(expert)
                out["assignment_counts"].append(chosen.count(expert))
                out["gate_mass"].append(sum(m for e, m in zip(chosen, mass, strict=True) if e == expert))
            out["offsets"].append(len(out["expert_ids"]))
    return out


def packed(tensors, **header_fields) -> bytes:
    header, body = {"__metadata__": {"schema": "moe-controller-events", "schema_version": "1"}}, b""
    for key, values in tensors.items():
        array = np.array(values, np.float32 if key == "gate_mass" else TYPES.get(key, np.int32))
        span = [len(body), len(body) + array.nbytes]
        header[key] = {"dtype": CODES[array.dtype.name], "shape": [len(array)], "data_offsets": span}
        body += array.tobytes()
    head = json.dumps(header | header_fields).encode()
    return struct.pack("<Q", len(head)) + head + body


def written(folder, tensors=None, manifest=None, **header_fields):
    path = folder / "events.safetensors"
    path.write_bytes(packed(events() if tensors is None else tensors, **header_fields))
    said = {
        "schema_version": 1,
        "model": {"id": "toy/moe", "commit": "c0", "num_layers": 5, "num_experts": 5, "top_k": 2},
        "artifacts": {"events": {"path": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}},
    }
    (folder / "manifest.json").write_text(json.dumps(said if manifest is None else manifest))
    return path


def opened(path, **hints):
    with pytest.warns(TraceWarning, match="which token chose which expert is not recorded"):
        return open_trace(path, **hints)


def test_the_sets_and_counts_of_every_event_come_back_from_the_rows(tmp_path):
    trace = opened(written(tmp_path))
    found = whole(trace)
    assert found["starts"].tolist() == [0, 3, 4]
    assert found["phase"].tolist() == [0, 1]
    assert found["position"].tolist() == [0, 1, 2, 3]
    for s, (a, b) in enumerate([(0, 3), (3, 4)]):
        for layer in range(2):
            rows = found["experts"][layer, a:b].tolist()
            assert sorted(flat(rows)) == sorted(flat(TOKENS[s][layer]))
            assert all(len(set(row)) == 2 for row in rows)
    assert (trace.model, trace.meta.revision, trace.n_experts, trace.top_k) == ("toy/moe", "c0", 5, 2)
    assert trace.meta.model_layers == (1, 4)
    assert [request["label"] for request in trace.meta.requests] == ["request 7"]


def test_the_experts_of_a_single_token_are_ranked_by_gate_mass(tmp_path):
    trace = opened(written(tmp_path))
    assert [trace.layer(layer)[3].tolist() for layer in (0, 1)] == [[4, 2], [1, 0]]


def test_demands_and_misses_of_a_policy_without_ties_are_those_of_the_tokens(tmp_path):
    """With a slot for every expert, and with none to spare, the order of touches does not matter."""
    opened(written(tmp_path)).save(tmp_path / "ours.parquet")
    counters = slotwise.replay(open_trace(tmp_path / "ours.parquet"), policy="lru", slots=5).counters
    demand = [[set(flat(tokens)) for tokens in step] for step in TOKENS]
    assert counters["demands"] == sum(len(d) for step in demand for d in step)
    assert counters["misses"] == sum(len(set.union(*(step[layer] for step in demand))) for layer in range(2))
    assert counters["routed"] == sum(len(ids) for step in TOKENS for tokens in step for ids in tokens)


@pytest.mark.filterwarnings("ignore:.*which token chose")
def test_steps_of_several_requests_are_one_request_and_that_is_said(tmp_path):
    path = written(tmp_path, events(request=-1))
    with pytest.warns(TraceWarning, match="do not say which: their rows are one request"):
        assert open_trace(path).n_requests == 1


@pytest.mark.filterwarnings("ignore:.*a warm-up run")
def test_any_counts_are_dealt_into_rows_of_different_experts(tmp_path):
    rng = np.random.default_rng(0)
    steps = [
        [[rng.permutation(5)[:2].tolist() for _ in range(n)] for _ in range(2)]
        for n in rng.integers(1, 30, 40).tolist()
    ]
    trace = opened(written(tmp_path, events(steps, [0] * 40)))
    found = whole(trace)
    for s, (a, b) in enumerate(zip(found["starts"], found["starts"][1:], strict=False)):
        for layer in range(2):
            chosen = sorted(flat(steps[s][layer]))
            assert sorted(found["experts"][layer, a:b].ravel().tolist()) == chosen


def test_without_a_manifest_the_numbers_are_told(tmp_path):
    path = written(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert "no manifest.json beside it says num_experts" in refusal(path)
    assert "says top_k" in refusal(path, n_experts=5)
    assert opened(path, n_experts=5, top_k=2, model="m", row_bytes=3).row_bytes == (3, 3)


def changed(key, at, value):
    out = events()
    out[key][at] = value
    return out


def without_last_event():
    out = {key: values[:-1] if len(values) == 4 else values for key, values in events().items()}
    out["offsets"] = out["offsets"][:-1]
    return out | {key: out[key][: out["offsets"][-1]] for key in ("expert_ids", "assignment_counts", "gate_mass")}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (changed("expert_ids", 0, 5), "expert_ids[0]=5; it must lie in 0 to 4"),
        (changed("expert_ids", 0, -1), "expert_ids[0]=-1; it must lie in 0 to 4"),
        (changed("expert_ids", 0, 1), "event 0 has expert 1 twice"),
        (changed("assignment_counts", 0, 0), "assignment_counts[0]=0; it must lie in 1 to"),
        (changed("assignment_counts", 0, 2), "event 0 has 7 assignments by 3 tokens; each token makes top_k=2"),
        (changed("assignment_counts", 0, 2**31 - 1), "assignments in"),
        (changed("token_counts", 1, 2), "token_counts[1]=2, but 3 at the first layer of its step"),
        (changed("token_counts", 0, 0), "token_counts[0]=0; it must lie in 1 to"),
        (changed("gate_mass", 0, float("nan")), "gate_mass[0]=nan; it must lie in"),
        (changed("phases", 0, 2), "phases[0]=2; it must lie in 0 to 1"),
        (changed("offsets", 1, 99), "offsets must rise from 0 to the"),
        (changed("offsets", -1, 99), "offsets must rise from 0 to the"),
        (changed("layer_ids", 1, 1), "layer 1) after step 0, cycle 0, layer 1; events go by step"),
        (
            changed("forward_cycles", 2, 0) | {"scheduler_steps": [0, 0, 0, 0]},
            "cycle 0, layer 1) after step 0, cycle 0",
        ),
        (without_last_event(), "the step of event 2 has 1 of 2 layers; truncated?"),
        (events() | {"phases": [0, 0, 1]}, "phases has 3 entries, not 4"),
        ({key: [] for key in events()} | {"offsets": [0]}, "no events"),
        ({key: values for key, values in events().items() if key != "phases"}, "no tensor 'phases'"),
    ],
)
def test_events_that_break_a_rule_are_refused_in_one_line(tmp_path, tensors, words):
    assert words in refusal(written(tmp_path, tensors))


def test_an_expert_chosen_more_often_than_there_are_tokens_is_refused(tmp_path):
    tensors = events([[[[0, 1]], [[2, 3]]]], [1])
    tensors |= {"expert_ids": [0, 2, 3], "assignment_counts": [2, 1, 1], "gate_mass": [1, 1, 1], "offsets": [0, 1, 3]}
    assert "expert 0 was chosen 2 times by 1 tokens" in refusal(written(tmp_path, tensors))


@pytest.mark.parametrize(
    "said",
    [
        {"dtype": "I64", "shape": [10**12], "data_offsets": [0, 8 * 10**12]},
        {"dtype": "I64", "shape": [10**12], "data_offsets": [0, 8]},
        {"dtype": "I64", "shape": [-1], "data_offsets": [8, 0]},
        {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "I64", "shape": [True], "data_offsets": [0, 8]},
        [],
    ],
)
def test_a_header_is_held_against_the_file(tmp_path, said):
    path = written(tmp_path, offsets=said, manifest={"model": {"num_experts": 5, "top_k": 2}})
    assert "tensor offsets" in (told := refusal(path)) or "no tensor 'offsets'" in told


@pytest.mark.parametrize("manifest", [[], {"model": 1}, {"model": {"num_experts": 0, "top_k": 1}}])
def test_a_manifest_that_says_nothing_is_refused(tmp_path, manifest):
    path = written(tmp_path, manifest=manifest)
    with pytest.raises(slotwise.BadTrace, match=r"manifest.json: (no 'model'|num_experts=0)"):
        open_trace(path)


@pytest.mark.filterwarnings("ignore:.*which token chose")
def test_a_file_cut_off_or_changed_is_not_the_one_that_the_manifest_means(tmp_path):
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "its SHA-256 is" in refusal(path)
    for cut in range(len(data) - 1, 8, -37):
        path.write_bytes(data[:cut])
        assert "truncated" in refusal(path, format="moe-cache-eval")


@pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
def test_a_file_that_rots_is_refused_or_read_with_valid_ids(tmp_path):
    path = written(tmp_path, manifest={"model": {"num_experts": 5, "top_k": 2}})
    assert_refused_or_valid(path, path.read_bytes(), tries=400, format="moe-cache-eval")
