"""`slotwise sweep` as it is asked: sizes and names of files that can be, predictors without a width, the command."""

import json

import pytest
from conftest import slotwise as command
from test_sweep import shown
from trace_cases import demanding

import slotwise


@pytest.fixture(scope="module")
def trace():
    return slotwise.Trace.synthesise(n_tokens=40, n_layers=2, n_experts=8, top_k=2, width=2, row_bytes=1000, name="toy")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "r.parquet"


def test_budgets_may_be_a_list_in_one_word(trace, out):
    counted = []
    slotwise.sweep(trace, "lru", vram="16KB,32KB", out=out, counted=lambda *counts: counted.append(counts))
    slotwise.sweep(trace, "lru", vram=["16KB", "48KB"], out=out, counted=lambda *counts: counted.append(counts))
    assert [asked for _, _, asked, _ in shown(out)] == ["16KB", "32KB", "48KB"]
    assert counted == [(2, 0), (1, 2)]


@pytest.mark.parametrize("name", ["r.csv", "r.json", "r.html"])
def test_an_ending_that_promises_another_format_is_refused(trace, tmp_path, name):
    with pytest.raises(slotwise.BadOption, match=r"a result is a Parquet file, not \.\w+; name it r.parquet"):
        slotwise.sweep(trace, "lru", 2, out=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once
def test_a_predictor_without_a_width_is_warned_about_and_with_one_it_is_not(trace, out, recwarn):
    slotwise.sweep(trace, "lru", 2, widths=[0, 1], out=out, predictor="previous")
    slotwise.compare(trace, out.parent / "a", policies="lru", slots=2, widths=[0, 1], predictor="previous")
    slotwise.replay(trace, "lru", 2, width=1, predictor="previous")
    assert [str(each.message) for each in recwarn] == []
    words = "predictor previous: at width 0 nothing is predicted; give a width, such as 4"
    for call in (
        lambda: slotwise.replay(trace, "lru", 2, predictor="previous"),
        lambda: slotwise.sweep(trace, "lru", 2, out=out, predictor="previous"),
        lambda: slotwise.compare(trace, out.parent / "b", policies="lru", slots=2, widths=0, predictor="previous"),
    ):
        with pytest.warns(UserWarning, match=words) as said:
            call()
        assert len(said) == 1


# ---- the command


def test_the_command_says_where_the_file_is_what_was_left_out_and_what_to_do_next(tmp_path):
    demanding(0, 1, 0, n_layers=2).save(tmp_path / "t.parquet")
    grid = ["t.parquet", "--policy", "opt", "--policy", "lru", "--slots", "1,50%", "--width", "0,1"]
    done = command("sweep", *grid, "--predictor", "oracle", "-o", "r.parquet", cwd=tmp_path)
    assert done.stdout == "r.parquet: 6 new, 0 kept; next: slotwise report r.parquet -o report\n"
    assert done.stderr.startswith("slotwise: left out: opt bounds runs without prefetch")
    assert done.stderr.count("\n") == 1
    assert len(shown(tmp_path / "r.parquet")) == 6
    again = command("sweep", *grid, "--predictor", "oracle", "-o", "r.parquet", "--json", cwd=tmp_path)
    told = json.loads(again.stdout)
    assert (told["output"], told["new"], told["kept"]) == ("r.parquet", 0, 6)
    assert "opt bounds" in json.loads(again.stdout)["skipped"][0]


@pytest.mark.parametrize(
    ("words", "hint"),
    [("--width 0,x", "--width '0,x': write whole numbers with commas"), ("--width -1", "width=-1: it is at least 0"),
     ("--slots many", "slots 'many'"), ("--workers 0", "'--workers'"), ("--polcy lru", "--policy")],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2_and_one_line(tmp_path, words, hint):
    grid = ["sample", "--policy", "lru", "--slots", "8", "-o", "r.parquet"]
    done = command("sweep", *grid, *words.split(), code=2, cwd=tmp_path)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert hint in done.stderr
    assert list(tmp_path.iterdir()) == []
