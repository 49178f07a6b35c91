"""Captures that are read piece by piece: however small the pieces, the trace is that of one piece, in memory or not."""

import json

import numpy as np
import pytest
import test_formats_llama_callback as callback
import test_formats_llama_moe_bin as streams
import test_formats_logs as logs
import test_formats_records as records
from conftest import python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_cases import refusal, written
from trace_cases import whole

from slotwise.traces import cells, open_trace, passes, pieces, reading

QUIET = pytest.mark.filterwarnings("ignore::slotwise.traces.errors.TraceWarning")
SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def workload(draw):
    """(requests, each a list of forward passes, each `[token][layer][k]`; layers; whether weighed; n_experts)."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_layers, k, e = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([4, 300]))

    def tokens(n):
        return np.argsort(rng.random((n, n_layers, e)), axis=2)[..., :k].tolist()

    requests = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = [tokens(int(rng.integers(2, 6)))]
        requests.append(prompt + [tokens(1) for _ in range(int(rng.integers(1, 8)))])
    return requests, sorted(rng.choice(20, n_layers, replace=False).tolist()), draw(st.booleans()), e


def lattice(requests, layers, weighed):
    for passes_ in requests:
        first = 0
        for rows in passes_:
            for i, layer in enumerate(layers):
                for t, row in enumerate(rows):
                    gates = {"gate_weights": [1 / (2 + j) for j in range(len(row[i]))]} if weighed else {}
                    yield {"layer_idx": layer, "token_idx": first + t, "selected_ids": row[i], **gates}
            first += len(rows)


def vllm_logger(requests, layers, weighed):
    for r, passes_ in enumerate(requests):
        for rows in passes_:
            for i, layer in enumerate(layers):
                for t, row in enumerate(rows):
                    gates = {"topk_weights": [1 / (2 + j) for j in range(len(row[i]))]} if weighed else {}
                    yield {
                        "type": "route",
                        "req_id": f"r{r}",
                        "token_idx": t,
                        "layer": layer,
                        "topk_ids": row[i],
                        **gates,
                    }


def policylang(requests, layers, weighed):
    lines = []
    for p, passes_ in enumerate(requests):
        first = 0
        for rows in passes_:
            for i, layer in enumerate(layers):
                for t, row in enumerate(rows):
                    gates = {"s": [1 / (2 + j) for j in range(len(row[i]))]} if weighed else {}
                    lines.append({"p": p, "t": first + t, "l": layer, "e": row[i], "ti": 7 * p + first + t, **gates})
            first += len(rows)
    k = len(requests[0][0][0][0])
    head = {"model_name": "m", "num_layers": len(layers), "num_experts": 300, "top_k": k, "num_entries": len(lines)}
    return [head, *lines]


def moe_cache_lab(requests, layers, weighed):
    yield {"record_type": "metadata", "format": "moe-cache-lab.routing-jsonl", "format_version": 1, "model_id": "m",
           "num_experts": 300, "experts_per_token": len(requests[0][0][0][0])}  # fmt: skip
    first = 0
    for s, rows in enumerate(requests[0]):
        for i, layer in enumerate(layers):
            for t, row in enumerate(rows):
                gates = {"selected_probabilities": [1 / (2 + j) for j in range(len(row[i]))]} if weighed else {}
                phase = "generated" if s else "prompt"
                yield {"record_type": "routing_selection", "phase": phase, "token_position": first + t, "layer": layer,
                       "selected_experts": row[i], "token_id": first + t, **gates}  # fmt: skip
        first += len(rows)


def everything(trace):
    return whole(trace, weights=trace.has_weights) | {
        "meta": [dict(trace.meta) | {"requests": [dict(r) for r in trace.meta.requests]}],
        "step": trace.rows("step")["step"],
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.parametrize("how", [lattice, vllm_logger, policylang, moe_cache_lab])
@QUIET
@SETTINGS
@given(case=workload(), few=st.integers(1, 12), held=st.sampled_from([0, 40, 10**9]))
def test_pieces_of_any_size_give_the_trace_of_one_piece(tmp_path_factory, how, case, few, held):
    requests, layers, weighed, e = case
    text = "".join(json.dumps(line) + "\n" for line in how(requests, layers, weighed))
    path = written(tmp_path_factory.mktemp("pieces"), text, "t.jsonl")
    expected = open_trace(path, n_experts=e)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "CELLS", few)
        patch.setattr(cells, "CELLS", few)
        patch.setattr(pieces, "HELD", held)
        patch.setattr(pieces, "GROUP_ROWS", 3)
        found = open_trace(path, n_experts=e)
    assert_same(everything(found), everything(expected))
    ids = [row for request in (requests[:1] if how is moe_cache_lab else requests) for step in request for row in step]
    assert np.array_equal(whole(found)["experts"], np.array(ids).transpose(1, 0, 2))
    for layer in range(found.n_layers):
        assert np.array_equal(found.layer(layer), expected.layer(layer))
    found.save(path.with_suffix(".parquet"))
    assert_same(whole(open_trace(path.with_suffix(".parquet"))), whole(expected))


@pytest.mark.parametrize(
    ("data", "hints"),
    [
        (streams.bare(), {}), (streams.mblt(), {}), (logs.COLIBRI, {}), (logs.ROUTE, {}), (logs.UNION, {}),
        (records.LOGGER, {}), (records.LATTICE, {}), (records.rtrace(), {"top_k": 2}),
        (json.dumps(records.fingerprint()), {}), (callback.log(callback.PROMPT, *callback.TOKENS), {}),
    ],
)  # fmt: skip
@QUIET
def test_each_format_gives_the_same_trace_in_pieces_of_one_pass(tmp_path, monkeypatch, data, hints):
    path = written(tmp_path, data)
    expected = everything(open_trace(path, **hints))
    monkeypatch.setattr(passes, "CELLS", 1)
    monkeypatch.setattr(pieces, "HELD", 0)
    assert_same(everything(open_trace(path, **hints)), expected)


def line(layer, token, ids):
    return json.dumps({"layer_idx": layer, "token_idx": token, "selected_ids": ids}) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line(0, 0, [1]) + line(1, 0, [1]) + line(0, 1, [2]), "layer 1; every token passes every layer"),
        (line(1, 0, [1]) + line(0, 1, [1]), "layer 0 is in some tokens only"),
        (line(0, 0, [1]) * 2 + line(0, 1, [2, 3]), "line 3: 2 experts after 1 in the lines before"),
        (line(0, 0, [1]) * 2 + line(0, 1, [9]), "line 3: expert 9, but n_experts=4"),
    ],
)
def test_what_goes_wrong_between_pieces_is_one_line(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(passes, "CELLS", 1)
    assert words in refusal(written(tmp_path, text), n_experts=4)


@pytest.mark.once
def test_the_memory_of_an_import_does_not_grow_with_the_file(tmp_path):
    """Two files, one ten times as long, with limits as much below the file as 64 MiB are below gigabytes."""
    script = """
from pathlib import Path
from slotwise.traces import open_trace, passes, pieces
passes.CELLS, pieces.HELD = 1 << 12, 1 << 20
assert open_trace({path!r}, n_experts=64).n_tokens == {n}
print(next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM")).split()[1])
"""
    rng, peaks = np.random.default_rng(0), []
    ids = [rng.permutation(64)[:32].tolist() for _ in range(1000)]
    for n in (4_000, 40_000):
        path = tmp_path / f"{n}.jsonl"
        path.write_text("".join(line(layer, t, ids[(t + 7 * layer) % 1000]) for t in range(n) for layer in range(2)))
        peaks.append(int(python(script.format(path=str(path), n=n))))
    assert peaks[1] - peaks[0] < 15_000  # kilobytes; all cells at once take 44,000 more


@QUIET
def test_a_reader_tells_how_many_bytes_of_text_it_has_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "EVERY", 100)
    path, told = written(tmp_path, "".join(line(0, t, [1]) for t in range(50))), []
    assert open_trace(path, n_experts=4, advance=told.append).n_tokens == 50
    assert all(100 <= n < 200 for n in told)
    assert path.stat().st_size - 100 < sum(told) <= path.stat().st_size
    open_trace(path, n_experts=4)  # nobody listens any more
    assert sum(told) <= path.stat().st_size
