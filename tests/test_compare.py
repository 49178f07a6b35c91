"""`compare`: the grid it runs, what it leaves behind, going on when interrupted; and both commands by exit code."""

import json
import sys

import pyarrow.parquet as pq
import pytest
from conftest import run as python_run

import slotwise
from slotwise import BadOption
from slotwise.cli.main import main
from slotwise.compare import POLICIES, compare

QUICK = {"policies": ("lru", "lfru", "lfru+guard", "opt"), "slots": (4, "50%")}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """3 layers of 16 experts, 300 tokens with a prefill and three predictions each, as a file."""
    path = tmp_path_factory.mktemp("trace") / "toy.parquet"
    slotwise.Trace.synthesise(
        n_tokens=300, n_layers=3, n_experts=16, top_k=2, width=3, requests=2, prompt_tokens=20, row_bytes=1000
    ).save(path)
    return path


def grid(folder):
    rows = pq.read_table(folder / "R.parquet").to_pylist()
    return {(row["policy"], row["slots"], row["width"]) for row in rows}, {
        row["policy"]: row["seconds"] for row in rows
    }


def both(*slots):
    """The baseline and the bound, which always run."""
    return {(policy, size, 0) for policy in ("lru", "opt") for size in slots}


@pytest.mark.once
def test_the_grid_has_no_combination_that_says_nothing_new(trace, tmp_path):
    page = compare([trace], tmp_path / "out", **QUICK)[0]
    found, _ = grid(tmp_path / "out")
    assert found == {
        ("lru", 4, 0), ("lru", 8, 0), ("lfru", 4, 0), ("lfru", 8, 0), ("opt", 4, 0), ("opt", 8, 0),
        ("lru", 4, 3), ("lru", 8, 3), ("lfru", 4, 3), ("lfru", 8, 3), ("lfru+guard", 4, 3), ("lfru+guard", 8, 3),
    }  # fmt: skip
    assert page == tmp_path / "out/report.html"
    assert "Winner at each size" in page.read_text()


def test_a_guarded_policy_alone_runs_at_width_0_too(trace, tmp_path):
    compare([trace], tmp_path / "out", policies=["lfru+guard"], slots=[4])
    assert grid(tmp_path / "out")[0] == {("lfru+guard", 4, 0), ("lfru+guard", 4, 3), *both(4)}


def test_without_predictions_there_is_no_look_ahead_unless_a_predictor_is_named(tmp_path):
    plain = slotwise.Trace.synthesise(n_tokens=50, n_layers=2, n_experts=8, top_k=2)
    compare([plain], tmp_path / "a", policies=["lru"], slots=[4])
    assert grid(tmp_path / "a")[0] == both(4)
    compare([plain], tmp_path / "b", policies=["lru"], slots=[4], predictor="previous")
    assert grid(tmp_path / "b")[0] == both(4) | {("lru", 4, 4)}


def test_the_defaults_are_what_the_documentation_promises(trace, tmp_path):
    compare([trace], tmp_path / "out")
    found, _ = grid(tmp_path / "out")
    assert {policy for policy, _, _ in found} == {str(slotwise.parse_policy(policy)) for policy in POLICIES}
    assert {"lru", "lfru", "lfru(half_life=16)", "lfru(half_life=16)+guard", "lfu(half_life=16)", "opt"} <= set(
        POLICIES
    )
    assert {slots for _, slots, _ in found} == {1, 2, 3, 4, 6, 8, 12, 16}


@pytest.mark.once
def test_the_same_call_again_replays_nothing_and_an_interrupted_one_goes_on(trace, tmp_path):
    out = tmp_path / "out"
    compare([trace], out, **QUICK)
    first, seconds = grid(out)
    told = []
    compare([trace], out, **QUICK, progress=lambda done, total, what: told.append(what))
    assert grid(out) == (first, seconds)
    assert not any("lru" in what for what in told)
    table = pq.read_table(out / "R.parquet")
    pq.write_table(table.slice(0, 5), out / "R.parquet")
    compare([trace], out, **QUICK, progress=lambda done, total, what: told.append(what))
    assert grid(out)[0] == first
    assert sum("width" in what for what in told) == table.num_rows - 5


@pytest.mark.once
def test_another_question_is_refused_by_what_differs_and_forced_starts_anew(trace, tmp_path):
    out = tmp_path / "out"
    compare([trace], out, policies=["lru"], slots=[4])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(slotwise.BadResult, match=r"of toy with policies lru, and you ask for policies fifo.*--force"):
        compare([trace], out, policies=["fifo"], slots=[4])
    with pytest.raises(slotwise.BadResult, match=r"comparison of toy, and you ask about synth.*--force"):
        compare(slotwise.Trace.synthesise(n_tokens=50, n_layers=2, n_experts=8, top_k=2), out, slots=[4])
    with pytest.raises(slotwise.BadResult, match="with reset unset, and you ask for reset request"):
        compare([trace], out, policies=["lru"], slots=[4], reset="request")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    compare([trace], out, policies=["fifo"], slots=[4], force=True)
    assert grid(out)[0] == {("fifo", 4, 0), ("fifo", 4, 3), *both(4)}


@pytest.mark.once
def test_a_report_of_other_rows_is_not_replaced_either(trace, tmp_path):
    slotwise.sweep(trace, "lru", 4, out=tmp_path / "a.parquet")
    slotwise.sweep(slotwise.Trace.synthesise(n_tokens=50), "lru", 4, out=tmp_path / "b.parquet")
    slotwise.write_report([tmp_path / "a.parquet"], tmp_path / "out")
    with pytest.raises(slotwise.BadResult, match=r"a report on toy from a.parquet, and this one is on synth"):
        slotwise.write_report([tmp_path / "b.parquet"], tmp_path / "out")
    with pytest.raises(slotwise.BadResult, match=r"out: holds a report on toy; name another"):
        compare([trace], tmp_path / "out", **QUICK)
    slotwise.sweep(trace, "fifo", 4, out=tmp_path / "a.parquet")
    assert slotwise.write_report([tmp_path / "a.parquet"], tmp_path / "out"), "more rows of the same refresh it"
    assert slotwise.write_report([tmp_path / "b.parquet"], tmp_path / "out", force=True)


@pytest.mark.once
def test_a_policy_alone_is_held_against_lru_and_the_bound_and_why_not_is_said(trace, tmp_path):
    compare([trace], tmp_path / "a", policies=["fifo"], slots=[4], widths=[3])
    assert grid(tmp_path / "a")[0] == {("fifo", 4, 3), *both(4)}
    said = []
    compare([trace], tmp_path / "b", policies="fifo", slots=4, contract="sequential", skipped=said.append)
    assert {policy for policy, _, _ in grid(tmp_path / "b")[0]} == {"fifo", "lru"}
    assert any("does not cover the sequential contract" in why for why in said)


@pytest.mark.once
def test_progress_counts_to_one_total(trace, tmp_path):
    told = []
    compare([trace], tmp_path / "out", **QUICK, progress=lambda done, total, what: told.append((done, total)))
    assert {total for _, total in told} == {12}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert (told[0][0], told[-1][0]) == (1, 12)


def test_rows_that_compare_did_not_write_are_not_touched(trace, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    slotwise.sweep([trace], ["lru"], [4], [0], out=out / "R.parquet")
    before = (out / "R.parquet").read_bytes()
    with pytest.raises(slotwise.BadResult, match="was not written by `slotwise compare`"):
        compare([trace], out, **QUICK)
    assert (out / "R.parquet").read_bytes() == before


@pytest.mark.once
def test_several_traces_and_budgets_in_bytes(trace, tmp_path):
    other = slotwise.Trace.synthesise(n_tokens=60, n_layers=2, n_experts=8, top_k=2, row_bytes=2000, seed=1)
    compare([trace, other], tmp_path / "out", policies=["lru"], vram=["12KB"], widths=[0])
    assert grid(tmp_path / "out")[0] == both(4, 3)
    assert (tmp_path / "out/report.html").read_text().count('class="chapter"') == 2


@pytest.mark.once
@pytest.mark.parametrize("policies", [["lru"], ["lfu", "fifo"]], ids=["the same", "another"])
def test_a_second_comparison_in_the_folder_is_refused_while_the_first_one_runs(trace, tmp_path, policies):
    refusals = []

    def meanwhile(done, total, what):
        with pytest.raises(BadOption, match="another comparison is writing in") as refusal:
            compare([trace], tmp_path / "out", policies=policies, slots=[5], widths=[0])
        refusals.append(refusal)

    compare([trace], tmp_path / "out", policies=["lru"], slots=[4, 5], widths=[0], progress=meanwhile)
    assert refusals
    assert grid(tmp_path / "out")[0] == {(name, slots, 0) for name in ("lru", "opt") for slots in (4, 5)}
    assert not list((tmp_path / "out").glob("*.lock"))


def test_rows_that_a_sweep_is_writing_are_not_cleared_away(trace, tmp_path):
    compare([trace], tmp_path / "out", policies=["lru"], slots=[4], widths=[0])

    def meanwhile(done, total, what):
        with pytest.raises(BadOption, match="a sweep is writing"):
            compare([trace], tmp_path / "out", policies=["lfu"], slots=[4], widths=[0], force=True)

    slotwise.sweep([trace], ["lru"], [5], out=tmp_path / "out/R.parquet", progress=meanwhile)
    assert grid(tmp_path / "out")[0] == {("lru", 4, 0), ("opt", 4, 0), ("lru", 5, 0)}


@pytest.mark.once
def test_the_same_call_works_once_a_policy_was_edited(trace, tmp_path):
    text = "from slotwise.policies.policy_lfu import Lfu\nclass Mine(Lfu):\n    name = 'mine'\n"
    for more in ("", "    @staticmethod\n    def priority(p, key, at):\n        return p.heat[key]\n"):
        (tmp_path / "mine.py").write_text(text + more)
        compare([trace], tmp_path / "out", policies=["lru", f"{tmp_path / 'mine.py'}"], slots=[4], widths=[0])
    assert grid(tmp_path / "out")[0] == {("lru", 4, 0), ("opt", 4, 0), (f"{tmp_path / 'mine.py'}:Mine", 4, 0)}


# ---- the commands


def run(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_compare_says_who_wins_and_where_the_page_is(capsys, trace, tmp_path):
    words = ["--policy", "lru", "--policy", "opt", "--slots", "4,8", "--width", "0"]
    code, out, err = run(capsys, "compare", trace, "-o", tmp_path / "out", *words)
    assert (code, err) == (0, "")
    assert "winner at each size (simulated, event contract)" in out
    header, *lines = out.splitlines()[2:5]
    told = ["slots", "VRAM", "winner", "rate", "lru", "bound", "/token", "/token"]
    assert header.split() == told, "one width needs no column"
    assert [line.split()[:4] for line in lines] == [["4", "11.7", "KiB", "lru"], ["8", "23.4", "KiB", "lru"]]
    assert max(map(len, lines)) < 80
    assert f"Report: {tmp_path / 'out/report.html'}" in out


def test_json_is_one_object_and_nothing_else(capsys, trace, tmp_path):
    arguments = ["-o", tmp_path / "out", "--policy", "lru", "--slots", "4", "--json"]
    code, out, _ = run(capsys, "compare", trace, *arguments)
    compared = json.loads(out)
    assert code == 0
    assert compared["sections"][0]["winners"][0]["winner"] == "lru"
    code, out, _ = run(capsys, "report", tmp_path / "out/R.parquet", "-o", tmp_path / "again", "--json")
    assert json.loads(out) == compared


BAD = {
    "no such file": ("report {here}/none.parquet -o {here}/out", "no such file"),
    "a folder": ("report {here} -o {here}/out", "is a directory"),
    "an empty file": ("report {here}/empty -o {here}/out", "the file is empty"),
    "a trace for a result": ("report {trace} -o {here}/out", "is a trace, not a result"),
    "no output": ("report {here}/empty", "'-o'"),
    "an unknown policy": ("compare {trace} -o {here}/out --policy lfruu", "lfru"),
    "a bad size": ("compare {trace} -o {here}/out --slots many", "many"),
    "a bad width": ("compare {trace} -o {here}/out --width 2,x", "write whole numbers with commas"),
    "too wide": ("compare {trace} -o {here}/out --width 9", "9"),
    "a full folder": ("compare {trace} -o {here}", "no report wrote"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_exit_code_2(capsys, trace, tmp_path, kind):
    (tmp_path / "empty").touch()
    words, message = BAD[kind]
    code, out, err = run(capsys, *words.format(here=tmp_path, trace=trace).split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] in (["empty"], ["empty", "out"], ["out", "empty"])
    assert not (tmp_path / "out/report.html").exists()


def test_one_of_each_need_not_be_a_list(trace, tmp_path):
    page = slotwise.compare(str(trace), tmp_path / "r", policies="lru", slots=4, widths=0)[0]
    answer = json.loads((page.parent / "report.json").read_text())["sections"]
    assert [(one["slots"], one["width"], one["winner"]) for one in answer[0]["winners"]] == [(4, 0, "lru")]


SLOW = """
import importlib, os, sys, time
from slotwise.cli.main import main
sweep = importlib.import_module("slotwise.replay.sweep")
plain, count = sweep._one, [0]
def one(*asked):
    count[0] += 1
    if count[0] == int(sys.argv[2]):
        time.sleep(0.5)
        os.kill(os.getpid(), int(sys.argv[1]))
    return plain(*asked)
sweep._one = one
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("number", "at", "code", "words"),
    [(2, 3, 130, "what is finished is kept, run the same command to go on"), (15, 3, 143, "what is finished is kept"),
     (2, 1, 130, "nothing had finished, nothing is kept")],
)  # fmt: skip
def test_stopped_it_says_what_is_kept_and_how_to_go_on(trace, tmp_path, number, at, code, words):
    out = tmp_path / "out"
    done = python_run(
        sys.executable, "-c", SLOW, str(number), str(at), "compare", trace, "-o", out, "--workers", "1", "--slots", "4",
        code=code,
    )  # fmt: skip
    assert done.stderr.startswith("slotwise: interrupted; " + words)
    assert len(done.stderr.split("\n\n")[0].splitlines()) == 1
    assert out.exists() == (at > 1)
