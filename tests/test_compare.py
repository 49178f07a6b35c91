"""`compare`: the grid it runs, what it leaves behind, going on when interrupted; and both commands by exit code."""

import json

import pyarrow.parquet as pq
import pytest

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
    assert grid(tmp_path / "out")[0] == {("lfru+guard", 4, 0), ("lfru+guard", 4, 3)}


def test_without_predictions_there_is_no_look_ahead_unless_a_predictor_is_named(tmp_path):
    plain = slotwise.Trace.synthesise(n_tokens=50, n_layers=2, n_experts=8, top_k=2)
    compare([plain], tmp_path / "a", policies=["lru"], slots=[4])
    assert grid(tmp_path / "a")[0] == {("lru", 4, 0)}
    compare([plain], tmp_path / "b", policies=["lru"], slots=[4], predictor="previous")
    assert grid(tmp_path / "b")[0] == {("lru", 4, 0), ("lru", 4, 4)}


def test_the_defaults_are_what_the_documentation_promises(trace, tmp_path):
    compare([trace], tmp_path / "out")
    found, _ = grid(tmp_path / "out")
    assert {policy for policy, _, _ in found} == {str(slotwise.parse_policy(policy)) for policy in POLICIES}
    assert {"lru", "lfru", "lfru(half_life=16)", "lfru(half_life=16)+guard", "lfu(half_life=16)", "opt"} <= set(
        POLICIES
    )
    assert {slots for _, slots, _ in found} == {1, 2, 3, 4, 6, 8, 12, 16}


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


def test_another_question_starts_anew(trace, tmp_path):
    compare([trace], tmp_path / "out", policies=["lru"], slots=[4])
    compare([trace], tmp_path / "out", policies=["fifo"], slots=[4])
    assert {policy for policy, _, _ in grid(tmp_path / "out")[0]} == {"fifo"}


def test_rows_that_compare_did_not_write_are_not_touched(trace, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    slotwise.sweep([trace], ["lru"], [4], [0], out=out / "R.parquet")
    before = (out / "R.parquet").read_bytes()
    with pytest.raises(slotwise.BadResult, match="was not written by `slotwise compare`"):
        compare([trace], out, **QUICK)
    assert (out / "R.parquet").read_bytes() == before


def test_several_traces_and_budgets_in_bytes(trace, tmp_path):
    other = slotwise.Trace.synthesise(n_tokens=60, n_layers=2, n_experts=8, top_k=2, row_bytes=2000, seed=1)
    compare([trace, other], tmp_path / "out", policies=["lru"], vram=["12KB"], widths=[0])
    assert grid(tmp_path / "out")[0] == {("lru", 4, 0), ("lru", 3, 0)}
    assert (tmp_path / "out/report.html").read_text().count('class="chapter"') == 2


@pytest.mark.parametrize("policies", [["lru"], ["lfu", "fifo"]], ids=["the same", "another"])
def test_a_second_comparison_in_the_folder_is_refused_while_the_first_one_runs(trace, tmp_path, policies):
    refusals = []

    def meanwhile(done, total, what):
        with pytest.raises(BadOption, match="another comparison is writing in") as refusal:
            compare([trace], tmp_path / "out", policies=policies, slots=[5], widths=[0])
        refusals.append(refusal)

    compare([trace], tmp_path / "out", policies=["lru"], slots=[4, 5], widths=[0], progress=meanwhile)
    assert refusals
    assert grid(tmp_path / "out")[0] == {("lru", 4, 0), ("lru", 5, 0)}
    assert not list((tmp_path / "out").glob("*.lock"))


def test_rows_that_a_sweep_is_writing_are_not_cleared_away(trace, tmp_path):
    compare([trace], tmp_path / "out", policies=["lru"], slots=[4], widths=[0])

    def meanwhile(done, total, what):
        with pytest.raises(BadOption, match="a sweep is writing"):
            compare([trace], tmp_path / "out", policies=["lfu"], slots=[4], widths=[0], force=True)

    slotwise.sweep([trace], ["lru"], [5], out=tmp_path / "out/R.parquet", progress=meanwhile)
    assert grid(tmp_path / "out")[0] == {("lru", 4, 0), ("lru", 5, 0)}


def test_where_no_combination_is_left_nothing_is_written(trace, tmp_path):
    with pytest.raises(BadOption, match="leave nothing to run of opt; bounds run at width 0"):
        compare([trace], tmp_path / "out", policies=["opt"], slots=[4], widths=[2])
    assert list(tmp_path.iterdir()) == []


def test_the_same_call_works_once_a_policy_was_edited(trace, tmp_path):
    text = "from slotwise.policies.policy_lfu import Lfu\nclass Mine(Lfu):\n    name = 'mine'\n"
    for more in ("", "    @staticmethod\n    def priority(p, key, at):\n        return p.heat[key]\n"):
        (tmp_path / "mine.py").write_text(text + more)
        compare([trace], tmp_path / "out", policies=["lru", f"{tmp_path / 'mine.py'}"], slots=[4], widths=[0])
    assert grid(tmp_path / "out")[0] == {("lru", 4, 0), (f"{tmp_path / 'mine.py'}:Mine", 4, 0)}


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
