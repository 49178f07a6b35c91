"""`slotwise replay`: whole commands, by exit code, by stream, and by every name in the JSON."""

import json
import pickle
import re
import sys

import pytest
from conftest import run
from conftest import slotwise as command
from trace_cases import demanding, tiny

import slotwise
from slotwise.cli.main import main

IDENTITY = "trace trace_sha256 model n_layers n_experts top_k n_tokens n_steps n_requests n_tokens_counted".split()
OPTIONS = """
    policy files_sha256 slots slots_asked slots_by_layer capacity_bytes width predictor horizon contract scope
    lag_demand lag_prefetch max_loads overflow reset miss prefill batch_gate phase steps verify_tokens accept
    seed row_bytes
""".split()
NESTED = "counters by_layer by_phase by_request along rates token_cycle_bytes plan_sha256 seconds price".split()
COUNTERS = """
    demands hits hits_demand prefetch_hits misses compulsory loads_demand bypassed gated throttled late
    predictions invalid redundant dropped_guard dropped_no_victim dropped_throttle loads_speculative used_late
    wasted unresolved loads_initial streamed evictions evicted_by_demand evicted_by_prefetch fills residents
    in_flight discarded invalidated failed failed_demand failed_prediction pollution bytes_loaded bytes_moved routed
""".split()
RATES = """
    hit_rate prefetch_hit_rate compulsory_share yield used_share wasted_share redundant_share dropped_share
    loads_per_token misses_per_token bytes_per_token
""".split()


@pytest.fixture
def trace(tmp_path):
    """A B C A B: five tokens, one layer, top 1 of 4 experts, 1000 bytes each."""
    tiny(row_bytes=[1000], model="toy").save(tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def say(capsys, *words) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command run in this process."""
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


# ---- what it prints


def test_late_is_the_counter_and_what_waits_for_a_copy_is_awaited(tmp_path):
    file = slotwise.write_machine(slotwise.estimate_machine(["rtx-3060-x4", "ddr4"]), tmp_path / "m.json")
    words = "replay sample --slots 32 --width 4 --steps 60 --row-bytes 9437184 --machine".split()
    counts, priced = command(*words, file).stdout.split("Price (")
    assert re.search(r"^loads_speculative +[1-9]", counts, re.MULTILINE)
    assert re.search(r"^awaited copies: of [1-9][\d,]* hits", priced, re.MULTILINE)
    assert re.search(r"^time: .*awaited_copies [\d.]+ %", priced, re.MULTILINE)
    assert not re.search(r"\blate", priced.partition("start: ")[0])


def test_json_is_one_object_with_exactly_these_names_and_nothing_else(trace):
    done = command("replay", trace, "--slots", "2", "--json", "--plan-hash", "--pollution")
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)
    found = json.loads(done.stdout)
    assert sorted(found) == sorted(IDENTITY + OPTIONS + NESTED)
    assert sorted(found["counters"]) == sorted(COUNTERS)
    assert sorted(found["by_layer"]) == sorted(COUNTERS)
    assert sorted(found["by_phase"]) == ["decode", "prefill"]
    assert [sorted(found["by_phase"][phase]) for phase in ("decode", "prefill")] == [sorted([*COUNTERS, "tokens"])] * 2
    assert sorted(found["by_request"]) == sorted([*COUNTERS, "request", "tokens"])
    assert sorted(found["along"]) == sorted([*COUNTERS, "window_steps", "first_step", "tokens"])
    assert sorted(found["rates"]) == sorted(RATES)


def test_json_is_what_the_python_call_returns(capsys, trace):
    words = "--policy lfru(half_life=4)+guard --slots 50% --steps 4 --window 3 --phase decode --accept 1".split()
    code, out, err = say(capsys, "replay", trace, *words, "--json")
    called = slotwise.replay(trace, "lfru(half_life=4)+guard", "50%", steps=4, window=3, phase="decode")
    assert (code, err) == (0, "")
    assert json.loads(out) | {"seconds": 0} == json.loads(json.dumps(called.to_dict())) | {"seconds": 0}


def test_the_json_of_a_trace_spelled_out_is_known(capsys, trace):
    """Five demands, none hits; three loads evict; after the last tick B is still in flight and A is there."""
    found = json.loads(say(capsys, "replay", trace, "--slots", "2", "--json")[1])
    assert {name: n for name, n in found["counters"].items() if n} == {
        "demands": 5, "misses": 5, "compulsory": 3, "loads_demand": 5, "evictions": 3, "evicted_by_demand": 3,
        "fills": 5, "routed": 5, "residents": 1, "in_flight": 1, "bytes_loaded": 5000, "bytes_moved": 5000,
    }  # fmt: skip
    assert (found["counters"]["pollution"], found["plan_sha256"]) == (None, None)
    assert (found["token_cycle_bytes"], found["capacity_bytes"], found["model"]) == (1000, 2000, "toy")
    assert (found["rates"]["hit_rate"], found["rates"]["used_share"]) == (0.0, None)


def test_a_table_is_for_people(trace):
    done = command("replay", trace, "--slots", "3")
    assert done.stderr == ""
    cells = [line.split() for line in done.stdout.splitlines()]
    assert ["demands", "5", "0", "5"] in cells
    assert ["hits", "2", "0", "2"] in cells
    assert not any(words[:1] == ["wasted"] for words in cells), "what is zero in every phase is left out"
    for words in (
        "lru on t: 3 slots of 4 experts x 1 layers, layer scope, event contract, width 0",
        "  pools: 3 slots per layer; 2.93 KiB of VRAM\n",
        "hit rate 40.00 % (2 of 5 demands)",
        "SIMULATED",
        "used_share –",
        "token cycle T: 1000 B",
        "start: cold; policy=lru, slots=3,",
    ):
        assert words in done.stdout
    assert "sha256" not in done.stdout
    assert ["bytes_loaded", "2.93", "KiB", "0", "B", "2.93", "KiB"] in cells
    assert "bytes_per_token 600 B" in done.stdout


def test_every_option_is_printed_with_its_value(capsys, trace):
    out = say(capsys, "replay", trace, "--slots", "2", "--lag-demand", "3", "--max-loads", "1", "--plan-hash")[1]
    unset = {"slots_by_layer", "files_sha256", "steps", "row_bytes"}
    for name in set(OPTIONS) - unset:
        assert f"{name}=" in out, name
    assert "lag_demand=3" in out
    assert "max_loads=1" in out
    assert "plan sha256: " in out


def test_a_quarter_of_the_experts_is_the_size_where_none_is_named(capsys, trace):
    assert "lru on t: 1 slots of 4 experts" in say(capsys, "replay", trace)[1]
    assert "lru on t: 3 slots of 4 experts" in say(capsys, "replay", trace, "--vram", "3999")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--vram 3999", "pools (asked for: 3999): 3 slots per layer; 2.93 KiB of VRAM"),
        ("--slots 50%", "pools (asked for: 50%): 2 slots per layer; 1.95 KiB of VRAM"),
        ("--slots 3 --scope global", "pools: 3 slots in all; 2.93 KiB of VRAM"),
        ("--slots 0", "pools: 0 slots per layer; 0 bytes of VRAM"),
    ],
)
def test_a_size_is_shown_as_the_slots_and_the_vram_that_it_became(capsys, trace, words, said):
    assert f"  {said}\n" in say(capsys, "replay", trace, *words.split())[1]


def test_sizes_that_differ_by_layer_and_unknown_ones_are_said_in_words(capsys, tmp_path):
    demanding(0, 0, n_layers=2, row_bytes=[10, 20]).save(tmp_path / "t.parquet")
    replay = "replay", tmp_path / "t.parquet", "--vram", "41"
    assert "pools (asked for: 41): 1 to 2 slots, by layer; 40 bytes of VRAM" in say(capsys, *replay)[1]
    said = say(capsys, *replay, "--scope", "global")[1]
    assert "pools (asked for: 41): as many rows as fit, for they differ in size; 41 bytes of VRAM" in said
    demanding(0).save(tmp_path / "u.parquet")
    assert "; row size unknown\n" in say(capsys, "replay", tmp_path / "u.parquet")[1]


def test_the_sample_is_a_trace_like_any_other(capsys):
    found = json.loads(say(capsys, "replay", "sample", "--slots", "32", "--width", "4", "--json")[1])
    assert (found["trace"], found["n_layers"], found["n_experts"]) == ("sample", 24, 128)
    assert 0.5 < found["rates"]["hit_rate"] < 1
    assert found["counters"]["prefetch_hits"] > 0
    assert min(found["by_phase"][phase]["demands"] for phase in ("prefill", "decode")) > 0


# ---- what it warns of


@pytest.mark.parametrize(("slots", "short"), [(2, True), (3, False)])
def test_a_global_pool_below_one_token_cycle_is_warned_about(capsys, tmp_path, slots, short):
    """A in 3 layers, 4 steps: a token needs 3 rows. With 2 slots lru never hits, with 3 from the second step on."""
    demanding(0, 0, 0, 0, n_layers=3, row_bytes=[10, 10, 10]).save(tmp_path / "t.parquet")
    code, out, err = say(capsys, "replay", tmp_path / "t.parquet", "--scope", "global", "--slots", slots)
    assert code == 0
    assert "token cycle T: 30 B" in out
    assert f"({0 if short else 9} of 12 demands)" in out
    warned = f"slotwise: warning: the global pool ({slots}) is smaller than a token cycle, 3 x 1 rows"
    assert err.startswith(warned) if short else err == ""
    assert err.count("\n") == short


def test_without_row_sizes_the_token_cycle_is_said_to_be_unknown(capsys, tmp_path):
    demanding(0).save(tmp_path / "t.parquet")
    assert "token cycle T: row size unknown (--row-bytes N)" in say(capsys, "replay", tmp_path / "t.parquet")[1]
    assert "token cycle T: 7 B" in say(capsys, "replay", tmp_path / "t.parquet", "--row-bytes", "7")[1]


def test_slots_beyond_the_keys_are_one_line_of_warning(capsys, trace):
    code, out, err = say(capsys, "replay", trace, "--slots", "99")
    assert (code, err) == (0, "slotwise: warning: slots 99: a pool has only 4 keys, so 4 are used\n")
    assert "4 slots of 4 experts" in out


@pytest.mark.once
def test_a_profile_counted_on_the_same_trace_is_warned_about(capsys, trace, tmp_path):
    assert say(capsys, "trace", "profile", trace, "-o", tmp_path / "p.json")[0] == 0
    policy = f"static(profile={tmp_path / 'p.json'})"
    code, out, err = say(capsys, "replay", trace, "--slots", "2", "--policy", policy)
    assert (code, err.count("\n")) == (0, 1)
    assert "counted on this very trace" in err
    assert "(4 of 5 demands)" in out, "0 and 1, twice each, are there from the start"


# ---- what it refuses

WRONG = {
    "--polcy lru": "--policy",
    "--slots": "'--slots' requires an argument",
    "--slots many": "slots 'many': write a count (32) or a fraction",
    "--slots 2 --vram 1KB": "give either slots or vram",
    "--vram lots": "cannot read 'lots' as bytes",
    "--width -1": "'--width'",
    "--width 2": "no recorded predictions",
    "--width x": "'x' is not a valid integer",
    "--slots 0 --width 2 --predictor oracle": "width 2 with 0 slots",
    "--contract sequental": "'sequental' is not one of 'event', 'sequential'",
    "--scope pool": "'--scope'",
    "--accept 2": "'--accept'",
    "--threads 0": "'--threads'",
    "--steps -1": "'--steps'",
    "--horizon 0": "'--horizon'",
    "--width 1 --predictor orcale": "Did you mean 'oracle'?",
    "--policy lfuu": "Did you mean 'lfu'?",
    "--policy opt --width 1 --predictor oracle": "opt bounds runs without prefetch",
    "--policy opt --contract sequential": "it does not cover the sequential contract",
    "--policy static(profile=none.json)": "profile 'none.json'",
    "--policy static": "static needs either a profile or a warm-up",
    "--verify-tokens 0": "'--verify-tokens'",
    "surplus": "surplus",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_exit_code_2_and_one_line(capsys, trace, words):
    code, out, err = say(capsys, "replay", trace, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("slotwise: ")
    assert WRONG[words] in err


def test_no_trace_at_all_is_wrong_usage(capsys):
    code, out, err = say(capsys, "replay")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Missing argument 'T'" in err


def hostile(kind, path, trace):
    """Writes a file that is no trace."""
    good = trace.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "text": b"step,layer,expert\n0,0,1\n",
            "truncated": good[: len(good) // 2],
            "without its end": good[:-4],
            "noise": bytes(range(256)) * 40,
            "only a magic": b"PAR1",
            "two magics": b"PAR1" + b"\xff" * 8 + b"PAR1",
            "a pickle": pickle.dumps({"experts": [1, 2, 3]}),
            "an array of objects": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        }[kind]
    )
    return path


@pytest.mark.parametrize(
    "kind",
    ["empty", "text", "truncated", "without its end", "noise", "only a magic", "two magics", "a pickle",
     "an array of objects"],
)  # fmt: skip
def test_a_file_that_is_no_trace_is_exit_code_2_and_one_line(capsys, trace, tmp_path, kind):
    path = hostile(kind, tmp_path / "bad.parquet", trace)
    code, out, err = say(capsys, "replay", path, "--slots", "2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("slotwise: ")
    assert "bad.parquet" in err


def test_a_missing_file_a_folder_and_a_result_are_no_traces(capsys, trace, tmp_path):
    slotwise.sweep([trace], ["lru"], [2], out=tmp_path / "r.parquet")
    for name, words in (("none.parquet", "no such file"), ("", "directory"), ("r.parquet", "r.parquet")):
        code, out, err = say(capsys, "replay", tmp_path / name, "--slots", "2")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


INTERRUPTED = """
import signal, sys
from slotwise.cli.main import main
from slotwise.replay.run import _Replayer
advance = _Replayer.advance
def interrupted(self, piece, workers):
    advance(self, piece, workers)
    signal.raise_signal(signal.SIGINT)
_Replayer.advance = interrupted
sys.exit(main(["replay", "sample", "--json"]))
"""


def test_an_interrupt_in_the_midst_ends_with_130_and_without_a_traceback():
    done = run(sys.executable, "-c", INTERRUPTED, code=130)
    assert (done.stdout, done.stderr.strip()) == ("", "")
