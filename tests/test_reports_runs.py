"""A report on runs: every part is there and says MEASURED, sides stand beside each other, wrong files are refused."""

import csv
import html
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import slotwise as cli
from test_reports_browser import FRAME, browse, pixels  # noqa: F401
from test_reports_parts import Page
from test_reports_rows import edited, make_grid, write_rows

import slotwise
from slotwise.reports import BadResult, write_report
from slotwise.reports.runs import read_runs, runs_of

pytestmark = pytest.mark.once

ASKED = {"shape": "tiny", "headroom": 0, "alias_layers": 2, "steps": 30}
FIGURES = {"speed", "time", "bandwidth", "drops", "timeline-1", "timeline-2"}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[Path]:
    """Two configurations, both sides of each, two runs of each side."""
    folder = tmp_path_factory.mktemp("runs")
    both = {**ASKED, "overlap": "both", "repeats": 2}
    slotwise.run("sample", "lru", 16, out=folder / "plain.parquet", **both)
    slotwise.run("sample", "lfru+guard", 16, width=4, max_loads=2, out=folder / "ahead.parquet", **both)
    return [folder / "plain.parquet", folder / "ahead.parquet"]


@pytest.fixture(scope="module")
def report(results, tmp_path_factory) -> Path:
    return write_report(results, tmp_path_factory.mktemp("report") / "out")[0].parent


def test_every_part_is_there_and_says_measured(report):
    page = Page((report / "report.html").read_text())
    assert {path.stem for path in (report / "figures").iterdir()} == FIGURES
    pictures = [attrs for _, attrs in page.tags if attrs.get("role") == "img"]
    assert all(attrs["aria-label"].startswith("MEASURED. ") for attrs in pictures)
    assert len(pictures) == len(FIGURES)
    tables = [tag for tag, _ in page.tags if tag == "table"]
    assert page.text.count("measured") >= len(tables) == 5
    assert "simulated" not in page.text.lower()
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    assert len(page.ids) == len(set(page.ids))
    names = {path.name for path in report.iterdir()}
    assert names == {"report.html", "report.md", "report.json", "runs.csv", "timeline.csv", "figures"}


def test_the_sides_stand_beside_each_other_with_their_intervals(report, results):
    page = Page((report / "report.html").read_text())
    rows = read_runs(results)
    for row in rows:
        low, high = row["timing"]["tokens_per_s_range"]
        with (report / "runs.csv").open() as file:
            (line,) = [
                line
                for line in csv.DictReader(file)
                if (line["policy"], line["overlap"]) == (row["policy"], row["overlap"])
            ]
        assert [float(line[f"tokens_per_s_{end}"]) for end in ("low", "high")] == [low, high]
        assert float(line["ceiling_host_read_per_s"]) == row["ceilings"]["host_read_per_s"]
        assert int(line["dropped_throttle"]) == row["dropped_throttle"]
    (one,) = runs_of(rows)
    assert [list(sides) for sides in one.configurations.values()] == [["on", "off"], ["on", "off"]]
    assert list(one.configurations) == [
        "lru, 16 slots, width 0, no max loads", "lfru+guard, 16 slots, width 4, max loads 2",
    ]  # fmt: skip
    on, off = (row["timing"] for row in one.configurations["lru, 16 slots, width 0, no max loads"].values())
    assert f"with overlap it is {on['tokens_per_s'] / off['tokens_per_s']:.2f} times as fast" in page.text
    assert f"Overlap efficiency {on['overlap_efficiency']:.2f}." in page.text


def test_markdown_and_summary_agree_with_the_page(report):
    summary = json.loads((report / "report.json").read_text())
    assert (summary["simulated"], summary["measured"]) == (False, True)
    (section,) = summary["sections"]
    assert section["measured"] is True
    assert len(section["runs"]) == 4
    markdown = (report / "report.md").read_text()
    assert "All numbers are **MEASURED**" in markdown
    assert "SIMULATED" not in markdown
    for name in re.findall(r"\]\((figures/[^)]*)\)", markdown):
        assert (report / name).is_file()
    for sentence in section["answer"]:
        assert sentence in Page((report / "report.html").read_text()).text


def test_the_timeline_is_there_in_numbers(report):
    with (report / "timeline.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["what"] for line in lines} >= {"tick", "hot", "cold", "copies"}
    ticks = [line for line in lines if line["what"] == "tick"]
    assert len(ticks) == 4 * 3 * 24
    assert {line["step"] for line in ticks} == {"15", "16", "17"}


def test_sweeps_and_runs_share_a_page_and_are_told_apart(results, tmp_path):
    swept = write_rows(tmp_path / "S.parquet", make_grid(("lru", "opt"), (4, 8)))
    out = tmp_path / "out"
    done = cli("report", swept, results[0], "-o", out)
    assert "winner at each size (simulated" in done.stdout
    assert "speed (MEASURED)" in done.stdout
    page = Page((out / "report.html").read_text())
    labels = [attrs["aria-label"].split(".")[0] for _, attrs in page.tags if attrs.get("role") == "img"]
    assert set(labels) == {"SIMULATED", "MEASURED"}
    names = {path.name for path in out.iterdir()}
    assert names >= {"configurations.csv", "winners.csv", "runs.csv", "timeline.csv"}
    summary = json.loads((out / "report.json").read_text())
    assert [set(section) & {"winners", "runs"} for section in summary["sections"]] == [{"winners"}, {"runs"}]
    assert "sections marked measured" in (out / "report.md").read_text()


def test_one_side_one_run_no_predictions(tmp_path):
    slotwise.run("sample", "lru", 16, out=tmp_path / "R.parquet", **{**ASKED, "overlap": "off", "steps": 3})
    done = cli("report", tmp_path / "R.parquet", "-o", tmp_path / "out")
    assert "one run" in done.stdout
    assert "not known from one side" in done.stdout
    assert {path.stem for path in (tmp_path / "out/figures").iterdir()} == {"speed", "time", "bandwidth", "timeline-1"}
    assert "--repeats 5 gives intervals" in (tmp_path / "out/report.html").read_text()


def test_a_run_of_no_steps_is_reported_without_figures(tmp_path):
    slotwise.run("sample", "lru", 16, out=tmp_path / "R.parquet", **{**ASKED, "steps": 0})
    write_report([tmp_path / "R.parquet"], tmp_path / "out")
    page = Page((tmp_path / "out/report.html").read_text())
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    assert not (tmp_path / "out/figures").exists()


def test_a_run_that_broke_off_says_so(results, tmp_path):
    broken = {"steps": 7, "error": "the device is lost"}
    path = edited(results[0], tmp_path / "R.parquet", lambda row: row.update(incomplete=broken))
    done = cli("report", path, "-o", tmp_path / "out")
    assert "INCOMPLETE: it broke off after 7 steps (the device is lost)" in done.stdout
    assert "INCOMPLETE" in (tmp_path / "out/report.html").read_text()


def test_rows_that_differ_by_layer_are_told_layer_by_layer(tmp_path):
    asked = {"hidden": 256, "intermediate": 256, "dtype": "Q4_K_M", "headroom": 0, "alias_layers": None, "steps": 1}
    slotwise.run("sample", "lru", 2, out=tmp_path / "R.parquet", **asked)
    write_report([tmp_path / "R.parquet"], tmp_path / "out")
    page = Page((tmp_path / "out/report.html").read_text())
    assert re.search(r"layers 0-2,\S*: 256 × 256, Q4_K/Q6_K, \d+ KiB; layers \S+: 256 × 256, Q4_K, \d+ KiB", page.text)
    assert not re.search(r"\b(nan|None|inf)\b", page.text)


def test_the_same_configuration_from_two_files_stays_two(results, tmp_path):
    again = edited(results[0], tmp_path / "again.parquet", lambda row: None)
    (tmp_path / "other").mkdir()
    other = edited(results[0], tmp_path / "other/again.parquet", lambda row: None)
    (one,) = runs_of(read_runs([results[0], again, other]))
    assert list(one.configurations) == [
        "lru, 16 slots, width 0, plain.parquet",
        "lru, 16 slots, width 0, again.parquet",
        "lru, 16 slots, width 0, again.parquet, 2",
    ]


def test_other_machines_and_shapes_are_sections_of_their_own(results, tmp_path):
    other = edited(results[0], tmp_path / "other.parquet", lambda row: row.update(machine="another"))
    wide = edited(results[0], tmp_path / "wide.parquet", lambda row: row.update(hidden=999))
    titles = [one.title for one in runs_of(read_runs([results[0], other, wide]))]
    assert len(set(titles)) == 3
    assert "machine another" in titles[1]
    assert "hidden 999" in titles[2]


def test_many_configurations_are_cut_in_figures_and_whole_in_tables(results, tmp_path):
    files = [edited(results[1], tmp_path / f"{n}.parquet", lambda row, n=n: row.update(seed=n)) for n in range(14)]
    write_report(files, tmp_path / "out")
    page = Page((tmp_path / "out/report.html").read_text())
    assert "Shown are 12 of 14 configurations; the table has all." in page.text
    assert "The first 4 of 14 configurations" in page.text
    assert "lfru+guard, 16 slots, width 4, seed 13" in page.text


def test_hostile_names_are_text_and_nothing_else(results, tmp_path):
    name = "<script>alert(1)</script> | $x_{$ [a](b) & \"'"

    def change(row):
        row.update(trace=name, machine=name, device=name, policy=f"./m:{name}")

    write_report([edited(results[1], tmp_path / "R.parquet", change)], tmp_path / "out")
    page = Page((tmp_path / "out/report.html").read_text())
    assert "script" not in {tag for tag, _ in page.tags}
    assert name in page.text
    assert "<script>" not in (tmp_path / "out/report.md").read_text()


def test_a_file_without_a_column_or_cut_off_is_refused(results, tmp_path):
    table = pq.read_table(results[0])
    pq.write_table(table.drop_columns(["timing"]), tmp_path / "short.parquet")
    with pytest.raises(BadResult, match="column 'timing' is missing"):
        write_report([tmp_path / "short.parquet"], tmp_path / "out")
    pq.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(BadResult, match="holds no runs"):
        write_report([tmp_path / "empty.parquet"], tmp_path / "out")
    (tmp_path / "cut.parquet").write_bytes(results[0].read_bytes()[:-100])
    with pytest.raises(BadResult, match="truncated or damaged"):
        write_report([tmp_path / "cut.parquet"], tmp_path / "out")


def test_the_same_runs_give_the_same_bytes(results, tmp_path):
    first, second = (write_report(results, tmp_path / name) for name in ("a", "b"))
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(first, second, strict=True))


# ---- looked at


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_each_figure_has_ink_inside_and_none_at_its_rim(report, name):
    seen = pixels(report / "figures" / f"{name}.png")
    rim = np.concatenate([edge.reshape(-1, 3) for edge in (seen[:3], seen[-3:], seen[:, :3], seen[:, -3:])])
    assert rim.min() == 1.0
    assert (seen < 0.95).any(axis=2).mean() > 0.01


def test_the_browser_shows_every_figure_and_table(browse, report):  # noqa: F811
    text = browse(report / "report.html", "--dump-dom")
    assert text.count("<svg") == len(FIGURES)
    assert len(re.findall(r"<table class=\"runs\">", text)) == 5


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(browse, report, tmp_path, width):  # noqa: F811
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, page=html.escape((report / "report.html").read_text())))
    found = re.search(r'data-width="(\d+)"', browse(frame, "--dump-dom"))
    assert found
    assert int(found[1]) <= width


def test_the_screen_is_neither_blank_nor_without_colours(browse, report, tmp_path):  # noqa: F811
    shot = tmp_path / "shot.png"
    browse(report / "report.html", "--window-size=1280,3000", f"--screenshot={shot}")
    seen = pixels(shot)
    assert (np.abs(seen - np.median(seen)) > 0.3).any(axis=(1, 2)).mean() > 0.5
    assert len(np.unique((seen[::3, ::3] * 15).astype(int).reshape(-1, 3), axis=0)) > 50
