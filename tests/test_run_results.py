"""What a run leaves and says: a result file that agrees with --json, ceilings beside what was achieved, telemetry."""

import json
import os
import re
import sys
import time

import pyarrow.parquet as pq
import pytest
from conftest import run
from conftest import slotwise as cli
from executor_cases import Model, carry_out
from hypothesis import given
from hypothesis import strategies as st

import slotwise
from slotwise.executor.backend import make_backend
from slotwise.executor.ceilings import better, measure
from slotwise.executor.cold import ColdChain
from slotwise.executor.errors import BadExecutor
from slotwise.executor.store import HostStore
from slotwise.executor.timing import PARTS, TickTimes, stretch
from slotwise.replay import run_rows
from slotwise.reports import runs

WORDS = ("run", "sample", "--shape", "tiny", "--headroom", "0", "--alias-layers", "2")
AHEAD = ("--policy", "lfru+guard", "--slots", "32", "--width", "8")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run of both sides: its file, and what --json printed."""
    path = tmp_path_factory.mktemp("run") / "R.parquet"
    words = (*WORDS, *AHEAD, "--steps", "40", "--overlap", "both", "--repeats", "2", "--check")
    return path, json.loads(cli(*words, "-o", path, "--json").stdout)["runs"]


def test_the_file_holds_what_json_prints_and_says_measured(both):
    path, printed = both
    table = pq.read_table(path)
    assert table.schema.metadata[b"format"] == b"slotwise.run"
    rows = table.to_pylist()
    assert [row["overlap"] for row in rows] == ["on", "off"]
    for row, one in zip(rows, printed, strict=True):
        assert row == one["counters"] | {name: value for name, value in one.items() if name != "counters"}
        assert row["measured"] is True


def test_a_run_has_the_flat_columns_of_a_replay_with_the_same_counts(both, tmp_path):
    path, _ = both
    words = (*AHEAD, "--steps", "40", "--row-bytes", 4 * 3 * 128 * 64)
    cli("sweep", "sample", *words, "--plan-hash", "-o", tmp_path / "S.parquet")
    (law,) = pq.read_table(tmp_path / "S.parquet").to_pylist()
    flat = {
        name: value for name, value in law.items() if not isinstance(value, dict) and name not in ("seconds", "price")
    }
    for row in pq.read_table(path).to_pylist():
        assert {name: (value, row[name]) for name, value in flat.items() if row[name] != value} == {}


def test_writer_and_reader_of_the_file_know_the_same_settings():
    assert run_rows.SETTINGS == runs.SETTINGS


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("there.parquet", "exists: a run adds to no file and replaces none; name another"),
        ("R.csv", "a result is a Parquet file, not .csv; name it R.parquet"),
        ("nowhere/R.parquet", "no such folder"),
        (".", "name a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path, name, told):
    (tmp_path / "there.parquet").write_bytes(b"PAR1")
    done = cli(*WORDS, "--steps", "100000", "--repeats", "1000", "-o", tmp_path / name, code=2, timeout=60)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there.parquet"]
    assert (tmp_path / "there.parquet").read_bytes() == b"PAR1"


def test_a_sweep_does_not_add_to_a_file_of_runs(both):
    path, _ = both
    before = path.read_bytes()
    assert (
        "is not a sweep's result"
        in cli("sweep", "sample", "--policy", "lru", "--slots", "8", "-o", path, code=2).stderr
    )
    assert path.read_bytes() == before


def test_result_and_timeline_are_two_files(tmp_path):
    path = tmp_path / "R.parquet"
    assert "name two" in cli(*WORDS, "-o", path, "--timeline", path, code=2).stderr


def test_seconds_add_up_and_bandwidths_are_bytes_over_seconds(both):
    for row in both[1]:
        timing, achieved = row["timing"], row["achieved"]
        assert sum(timing["parts"].values()) == pytest.approx(timing["timed_s"], rel=1e-3)
        assert list(timing["parts"]) == list(PARTS)
        assert achieved["hot_per_s"] == timing["bytes_hot"] / timing["hot_s"]
        assert achieved["cold_per_s"] == timing["bytes_cold"] / timing["cold_s"]
        assert timing["bytes_hot"] == row["row_bytes"] * row["counters"]["hits"]
        assert timing["bytes_cold"] == row["row_bytes"] * row["counters"]["misses"]
        assert 0 < achieved["copies_per_s"] * timing["copies_s"] <= timing["bytes_copied"] * 1.001
        low, high = timing["tokens_per_s_range"]
        assert [low, high] == sorted(timing["tokens_per_s_runs"])
        assert low <= timing["tokens_per_s"] <= high


def test_the_stretch_is_whole_steps_of_the_middle_and_the_same_for_both_sides(both):
    on, off = (row["stretch"]["ticks"] for row in both[1])
    assert [(tick["step"], tick["layer"]) for tick in on] == [(tick["step"], tick["layer"]) for tick in off]
    assert [(tick["step"], tick["layer"]) for tick in on] == [(s, layer) for s in (20, 21, 22) for layer in range(24)]
    for tick in on:
        assert all(span["at_s"] >= tick["at_s"] for span in (*tick["hot"], *tick["cold"], *tick["late"]))
        assert bool(tick["hot"]) == bool(tick["hits"])
        assert bool(tick["cold"]) == bool(tick["misses"])


# ---- what a person reads


@pytest.mark.once
def test_people_read_drops_by_reason_ceilings_and_why_there_is_no_efficiency():
    said = cli(*WORDS, *AHEAD, "--steps", "40").stdout
    counters = slotwise.replay("sample", "lfru+guard", 32, width=8, steps=40).counters
    assert counters["dropped_guard"] > 0
    assert f"dropped: guard {counters['dropped_guard']:,}, no victim 0, throttle 0; late 0, diverted 0" in said
    assert "overlap efficiency: not known from one side; --overlap both measures it" in said
    assert "pinned rows of 128 x 64 in f32, 98,304 bytes; merge on gpu; 0 us a layer stand for attention" in said
    assert "one run, no interval: --repeats 5 gives it" in said
    assert re.search(
        r"GB/s, and the ceiling of the same run: copies [\d.]+ of [\d.]+, cold chain [\d.]+ of [\d.]+", said
    )
    shares = re.search(r"where the time went, .*?: (.*)", said)
    assert shares
    assert sum(map(float, re.findall(r"([\d.]+) %", shares[1]))) == pytest.approx(100, abs=0.5)


@pytest.mark.once
def test_ticks_without_work_for_both_chains_have_no_efficiency_and_width_0_no_drops():
    said = cli(*WORDS, "--policy", "lru", "--slots", "0", "--steps", "3", "--overlap", "both").stdout
    assert "overlap efficiency: none: no tick had work for both chains" in said
    assert "no predictions, so none dropped" in said
    assert "hot chain – (nothing measured)" in said


@pytest.mark.once
def test_width_8_at_84_of_128_slots_on_a_captured_trace_tells_its_drops(shared):
    trace = shared / "traces/lab24x128/decode.npz"
    words = ("--policy", "lfru+guard", "--slots", "84", "--width", "8", "--steps", "250")
    said = cli("run", trace, *WORDS[2:], *words).stdout
    law = slotwise.replay(trace, "lfru+guard", 84, width=8, steps=250).counters
    assert law["dropped_guard"] > 0
    assert f"dropped: guard {law['dropped_guard']:,}, no victim {law['dropped_no_victim']:,}, throttle 0;" in said


def test_a_device_that_moves_nothing_has_no_ceilings_and_says_so():
    said = cli(*WORDS, "--backend", "null", "--slots", "8", "--steps", "3").stdout
    assert "device: none, nothing is moved or computed there" in said
    assert re.search(r"copies – \(nothing measured\), cold chain [\d.]+ of –, hot chain – \(nothing measured\)", said)


@pytest.mark.once
def test_throttled_predictions_are_told_apart_from_guarded_ones():
    said = cli(*WORDS, "--policy", "lru", "--slots", "16", "--width", "8", "--max-loads", "1", "--steps", "20").stdout
    law = slotwise.replay("sample", "lru", 16, width=8, max_loads=1, steps=20).counters
    assert law["dropped_throttle"] > 0
    assert f"dropped: guard 0, no victim {law['dropped_no_victim']:,}, throttle {law['dropped_throttle']:,}" in said


# ---- while it works


def test_without_a_terminal_nothing_is_printed_while_it_works():
    assert cli(*WORDS, "--steps", "10").stderr == ""


def test_a_terminal_shows_step_speed_hits_loads_drops_and_what_came_late():
    command = [sys.executable, "-m", "slotwise", *WORDS, *AHEAD, "--steps", "60"]
    script = f"import pty, os, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({command!r})))"
    done = run(sys.executable, "-c", script, env={**os.environ, "TERM": "xterm", "COLUMNS": "400"})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    law = slotwise.replay("sample", "lfru+guard", 32, width=8, steps=60).counters
    last = re.findall(r"run 1 of 2, overlap on, step 60: [^\n]*", text)
    assert last
    loads = law["loads_demand"] + law["loads_speculative"]
    told = rf"[\d,.]+ tokens/s, hit {100 * law['hits'] / law['demands']:.1f} %, {loads:,} loads, "
    told += rf"dropped: guard {law['dropped_guard']:,}, no victim 0, throttle 0; late 0, diverted 0"
    assert re.search(told, last[-1]), last[-1]
    assert "run 2 of 2, overlap on, timed, step 60: " in text


@pytest.mark.once
def test_telemetry_goes_by_the_clock_and_not_by_the_step():
    calls: list = []
    began = time.monotonic()
    slotwise.run(
        "sample", "lru", 32, shape="tiny", headroom=0, alias_layers=2, steps=150, progress=lambda *of: calls.append(of)
    )
    taken = time.monotonic() - began
    assert 2 <= len(calls) <= 2 * 2 + taken / 0.5
    assert [done for done, total, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][:2] == (300, 300)


# ---- parts and ceilings


def covered(spans, first, last):
    """Slow twin: which whole seconds of [first, last) the spans cover."""
    return {at for at in range(first, last) if any(began <= at < ended for began, ended in spans)}


span = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda of: (of[0], of[0] + of[1]))


@given(*[st.lists(span, max_size=3)] * 3, *[st.integers(0, 5)] * 2)
def test_parts_count_each_moment_once(hot, cold, late, policy, merge):
    tick = TickTimes(0, 0, 1, 1, 0, 3, policy, 0, merge, 30, hot, cold, late)
    first, last = 3 + policy, 33 - merge
    h, c, waits = (covered(spans, first, last) for spans in (hot, cold, late))
    assert {name: round(value, 9) for name, value in tick.parts.items()} == {
        "both_s": len(h & c), "hot_alone_s": len(h - c), "cold_alone_s": len(c - h), "late_s": len(waits - h - c),
        "policy_s": policy, "merge_s": merge, "rest_s": last - first - len(h | c | waits),
    }  # fmt: skip
    assert sum(tick.parts.values()) == pytest.approx(30)


def test_spans_of_work_waiting_and_copies_lie_in_the_run():
    model = Model()
    trace = model.trace((1, 1, 3, 1, 12, 2, 1, 1))
    outcome = carry_out(model, trace, "lru", 3, width=3, miss="fetch", timing=True)
    ticks = outcome.executor.ticks
    assert ticks is not None
    copied = 0
    for tick in ticks:
        ended = tick.began + tick.total_s
        for spans in (tick.hot, tick.cold, tick.late):
            assert all(tick.began <= began <= end <= ended for began, end in spans)
        assert all(ticks[0].began <= began <= end for began, end, _ in tick.copies)
        copied += sum(n_bytes for _, _, n_bytes in tick.copies)
    assert any(tick.late for tick in ticks)
    assert copied == pytest.approx(outcome.executor.transfers.bytes_copied, rel=0.2)  # but for what landed at the end
    assert stretch([]) == {"ticks": [], "copies": []}


def test_without_timing_no_spans_pile_up():
    model = Model()
    backend = make_backend("numpy")
    carry_out(model, model.trace((1, 1, 1)), "lru", 3, backend=backend)
    assert backend.copy_spans() == []


def test_ceilings_are_measured_in_bounded_time_and_null_has_none():
    layouts = [Model().layout] * 2
    with ColdChain(1) as chain:
        kept = make_backend("numpy")
        store = HostStore(layouts, 8, kept).fill(0, chain)
        for name in ("numpy", "null"):
            backend = make_backend(name)
            found = measure(backend, chain, store)
            backend.close()
            rates = {key: value for key, value in found.items() if key.endswith("_per_s")}
            if name == "null":
                assert set(rates.values()) == {None}
                continue
            assert all(1e8 < value < 1e13 for value in rates.values()), rates
            assert found["read_bytes"] >= min(4 * found["l3_bytes"], 512 << 20)
        kept.close()
    assert better({"a_per_s": 1.0, "n": 5, "b_per_s": None}, {"a_per_s": 2.0, "n": 6, "b_per_s": None}) == {
        "a_per_s": 2.0, "n": 5, "b_per_s": None,
    }  # fmt: skip


def test_ceilings_fit_a_small_device():
    done = slotwise.run("sample", "lru", 1, shape="tiny", headroom=0, alias_layers=1, steps=2, device_bytes="4MiB")
    assert done["runs"][0]["ceilings"]["device_read_per_s"] > 0


def test_a_split_run_says_split_and_what_it_copied():
    (one,) = slotwise.run(
        "sample", "lru", 16, shape="tiny", headroom=0, alias_layers=2, steps=5, miss="split", split_share=0.5
    )["runs"]
    assert (one["miss"], one["split_share"]) == ("split", 0.5)
    assert one["counters"]["bytes_moved"] == one["timing"]["bytes_copied"] > 0


def test_out_is_checked_in_python_too(tmp_path):
    (tmp_path / "R.parquet").write_text("")
    with pytest.raises(BadExecutor, match="exists"):
        slotwise.run("sample", shape="tiny", slots=2, out=tmp_path / "R.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["R.parquet"]
