"""`slotwise run` as a user meets it: plans are the replay's, figures are measured, wrong wishes are one line."""

import json
import warnings

import numpy as np
import pytest
from conftest import slotwise as cli
from conftest import some

import slotwise
from slotwise.executor import ceilings
from slotwise.executor.errors import BadExecutor
from slotwise.replay.errors import BadOption, ReplayWarning
from slotwise.replay.failures import Failure

WORDS = ("run", "sample", "--shape", "tiny", "--headroom", "0", "--steps", "40", "--alias-layers", "2")
ASKED = {"policy": "lfru+guard", "slots": 32, "width": 4, "steps": 40}


def test_a_run_prints_the_hash_and_the_counters_of_the_replay_with_the_same_options():
    words = ("--policy", "lfru+guard", "--slots", "32", "--width", "4", "--plan-hash", "--check", "--overlap", "both")
    done = json.loads(cli(*WORDS, *words, "--json").stdout)
    law = slotwise.replay("sample", plan_hash=True, row_bytes=4 * 3 * 128 * 64, **ASKED)
    assert [run["overlap"] for run in done["runs"]] == ["on", "off"]
    for run in done["runs"]:
        assert run["plan_sha256"] == law.plan_sha256
        assert {name: count for name, count in run["counters"].items() if law.counters[name] != count} == {}
        timing = run["timing"]
        assert timing["tokens"] == law.identity["n_tokens"]
        assert timing["bytes_copied"] == law.counters["bytes_loaded"]
        assert timing["tokens_per_s"] > 0
        assert timing["reader_waits"] >= 0
        assert 0 < run["largest_error"] < 1e-5
        assert min(timing["hot_s"], timing["cold_s"]) > 0
        assert timing["tick_s"] > 0


OPTIONS = [  # that plans depend on; the second request of the sample begins at step 641
    {"miss": "fetch", "prefill": "stream"},
    {"miss": "cpu", "prefill": "stream"},
    {"verify_tokens": 3, "accept": 0.6, "late": "cold"},
    {"reset": "request", "scope": "global", "slots": "25%"},
    {"reset": "request", "max_queued": 1, "spec_chunk": 1, "steps": 700, "slots": 8},
    {"lag_demand": 3, "lag_prefetch": 5, "max_loads": 2, "contract": "sequential"},
    {"miss": "split", "overlap": "off", "repeats": 2},
]


@pytest.mark.parametrize("options", some(OPTIONS))
def test_every_option_that_plans_depend_on_is_held_against_a_replay(options):
    asked = {**ASKED, "shape": "tiny", "headroom": 0, "alias_layers": 2, "cpu_threads": 1, **options}
    (run,) = slotwise.run("sample", check=True, **asked)["runs"]
    assert run["checked"]
    copied, moved = run["timing"]["bytes_copied"], run["counters"]["bytes_moved"]
    assert 0 < copied <= moved
    assert copied == moved or "max_queued" in options  # what waits for the link when a request ends is never copied
    assert (run["counters"]["streamed"] > 0) == (options.get("prefill") == "stream")
    assert run["timing"]["repeats"] == options.get("repeats", 1)


def test_people_read_speed_and_where_the_time_went():
    said = cli(*WORDS, "--policy", "lru").stdout
    assert "tokens/s (MEASURED;" in said
    for words in ("step:", "seconds:", "hot", "cold", "copies:", "counters:"):
        assert words in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "sample"), "no shape known for the model 'qwen3moe-24x128-930m'; give --hidden and --intermediate"),
        ((*WORDS, "--policy", "opt"), "needs to know the future"),
        ((*WORDS, "--backend", "cuda"), "no backend 'cuda'; there are"),
        ((*WORDS, "--shape", "big"), "no shape 'big'; presets: Qwen3-30B-A3B"),
        ((*WORDS, "--dtype", "f8"), "no stored dtype 'f8'"),
        ((*WORDS, "--dtype", "Q4_K"), "blocks of 256"),
        ((*WORDS, "--device-bytes", "1MiB"), "slots a pool fit"),
        ((*WORDS, "--width", "4", "--slots", "0"), "width 4 with 0 slots"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_code_2(words, told):
    done = cli(*words, code=2)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.once
def test_failures_of_a_run_are_repeated_by_replay(tmp_path):
    path = tmp_path / "failures.json"
    path.write_text('[{"step": 3, "layer": 1, "phase": "demand", "load": 0, "kind": "refused"}]')
    done = json.loads(cli("replay", "sample", "--steps", "9", "--failures", path, "--json").stdout)
    assert done["counters"]["failed_demand"] > 0
    for text, told in (
        ("[{}]", "a failure is"),
        ("{", "not JSON"),
        ("3", "no list of failures"),
        ("[[1]]", "a failure is"),
    ):
        path.write_text(text)
        assert told in cli("replay", "sample", "--steps", "9", "--failures", path, code=2).stderr


def test_backends_say_what_they_are_and_what_they_lack():
    rows = {row["name"]: row for row in json.loads(cli("backends", "--json").stdout)}
    assert {"numpy", "null"} <= set(rows)
    assert rows["numpy"]["missing"] is None


def test_a_timeline_is_a_trace_that_perfetto_reads(tmp_path):
    path = tmp_path / "t.json"
    cli(*WORDS, "--policy", "lru", "--timeline", path)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    kinds = {event["name"].rstrip(" 0123456789") for event in spans}
    assert {"tick", "policy", "merge", "hot chain", "cold chain", "copies"} <= kinds <= set(rows)
    assert all(event["tid"] == rows[event["name"].rstrip(" 0123456789")] for event in spans)
    assert len([event for event in spans if event["name"].startswith("tick")]) == 40 * 24
    assert min(event["dur"] for event in spans) > 0
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_an_option_of_another_backend_is_refused():
    assert "backend numpy has no sms" in cli(*WORDS, "--sms", "8", code=2).stderr


def test_a_prompt_of_any_length_is_one_step(tmp_path):
    trace = slotwise.Trace.synthesise(n_tokens=2100, n_layers=1, n_experts=4, top_k=1)
    whole = slotwise.Trace.from_arrays(trace.layer(0)[:, None], n_experts=4, step=[0] * 2100, phase=[0] * 2100)
    (run,) = slotwise.run(whole, "lru", 2, shape="tiny", headroom=0, check=True)["runs"]
    assert (run["timing"]["tokens"], run["checked"]) == (2100, True)


@pytest.mark.once
def test_rounded_activations_are_recorded_and_held_to_their_own_bound():
    options = {"shape": "tiny", "dtype": "Q8_0", "headroom": 0, "steps": 20, "check": True}
    exact, rounded = (
        slotwise.run("sample", "lru", 8, activations=each, **options)["runs"][0] for each in ("float32", "int8")
    )
    assert (exact["activations"], rounded["activations"]) == ("float32", "int8")
    assert exact["largest_error"] < 1e-5 < rounded["largest_error"] < 0.03


def test_the_timeline_never_replaces_what_the_run_reads(tmp_path):
    slotwise.synthesise(n_tokens=5, n_layers=1, n_experts=4, top_k=1).save(tmp_path / "t.parquet")
    before = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(BadExecutor, match="would replace what the run reads"):
        slotwise.run(tmp_path / "t.parquet", shape="tiny", slots=2, timeline=tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == before


@pytest.mark.parametrize("dense_us", [float("nan"), float("inf"), -1.0])
def test_time_for_attention_is_a_number_of_microseconds(dense_us):
    with pytest.raises(BadExecutor, match="microseconds from 0"):
        slotwise.run("sample", shape="tiny", slots=2, dense_us=dense_us)


def test_a_step_that_mixes_requests_cannot_be_reset_by_request_here_either():
    trace = slotwise.Trace.from_arrays([[[0]], [[1]]], n_experts=2, request=[0, 1], step=[0, 0])
    with pytest.raises(BadOption, match="step 0 mixes requests"):
        slotwise.run(trace, shape="tiny", slots=2, reset="request")


@pytest.mark.once
def test_a_tick_of_any_number_of_waves_runs():
    draw = np.random.default_rng(0)
    ids = draw.random((400, 1, 300)).argsort(2)[:, :, :2]
    trace = slotwise.Trace.from_arrays(ids, n_experts=300, step=[0] * 400, phase=[0] * 400)
    (run,) = slotwise.run(trace, slots=2, shape="tiny", headroom=0, prefill="stream", miss="fetch", check=True)["runs"]
    assert run["checked"]


@pytest.mark.once
def test_a_result_that_came_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "r.parquet"

    def somebody_else(*_):
        path.write_text("theirs")

    with pytest.raises(FileExistsError):
        slotwise.run("sample", slots=2, shape="tiny", headroom=0, steps=3, out=path, progress=somebody_else)
    assert (path.read_text(), len(list(tmp_path.iterdir()))) == ("theirs", 1)


@pytest.mark.once
def test_the_share_of_a_split_is_that_of_the_link_unless_it_is_given(monkeypatch):
    """A link of 1 GB/s beside a CPU of 3 is to carry a quarter of the misses; as measured, it is some part of them."""
    options = {"shape": "tiny", "headroom": 0, "alias_layers": 2, "steps": 5, "miss": "split"}
    (one,) = slotwise.run("sample", "lru", 16, **options)["runs"]
    assert 0 < one["split_share"] < 1
    measure = ceilings.measure
    told = {"copy_rows_per_s": 1e9, "host_read_per_s": 3e9}
    monkeypatch.setattr(ceilings, "measure", lambda *machine: measure(*machine) | told)
    assert slotwise.run("sample", "lru", 16, **options)["runs"][0]["split_share"] == 0.25
    (given,) = slotwise.run("sample", "lru", 16, **options, split_share=0.5)["runs"]
    assert given["split_share"] == 0.5


def test_failures_that_met_no_load_are_said_to_be_of_another_run():
    failure = Failure(step=9, layer=0, phase="demand", load=0, kind="refused")
    trace = slotwise.Trace.from_arrays([[[0]], [[1]]], n_experts=2)
    with pytest.warns(ReplayWarning, match="none of the 1 failures met a load"):
        slotwise.replay(trace, slots=1, failures=(failure,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slotwise.replay(trace, slots=1, failures=(failure._replace(step=1),))
