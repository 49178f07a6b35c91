"""The written report: all parts are there, the page stands alone, odd grids and names do no harm, folders are safe."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import some
from test_reports_rows import emptied, make_grid, make_row, write_rows

from slotwise.reports import BadResult, write_report
from slotwise.reports.rows import OPTIONS

VOID = {"meta", "br", "img", "link", "input", "hr"}
FIGURES = set(
    "hit-rate-w0 hit-rate-w4 loads-w0 loads-w4 distance trade gain-w4 cost-w4 hits predictions "
    "layers layers-slots warm-up warm-up-slots occupancy prefill decode".split()
)
TABLES = {"configurations.csv", "winners.csv", "layers.csv", "phases.csv", "requests.csv", "windows.csv"}


class Page(HTMLParser):
    """Parses a page strictly enough to be proud of: tags nest, ids are unique, references stay inside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def report(tmp_path: Path, rows, **how) -> tuple[Path, Page]:
    out = tmp_path / "out"
    write_report([write_rows(tmp_path / "r.parquet", rows)], out, **how)
    return out, Page((out / "report.html").read_text())


TWELVE = tuple(f"lfru(half_life={n})" for n in range(1, 13))
GRIDS = {
    "usual": make_grid(("lru", "lfru", "lfru+guard", "opt"), widths=(0, 4), row_bytes=1000),
    "one policy, one size": make_grid(("lru",), (4,)),
    "one size": make_grid(slots=(4,), widths=(0, 2)),
    "no bound": make_grid(("lru", "lfru")),
    "only the bound's kin and one": make_grid(("opt", "belady", "fifo")),
    "the bound alone": make_grid(("opt",)),
    "no width 0": make_grid(("lru", "lfru"), widths=(2, 4)),
    "four widths": make_grid(widths=(0, 1, 2, 4)),
    "twelve policies, twenty sizes": make_grid(TWELVE, range(1, 21), n_experts=20),
    "prefill missing": make_grid(phases=1),
    "bytes not proportional": make_grid(("lru", "lru+gate"), row_bytes=1000, miss="fetch"),
    "one layer, one window": make_grid(n_layers=1, n_windows=2),
    "global scope": make_grid(scope="global", slots=(8, 32)),
    "no demands": [emptied(make_row("lru", 4, phase="decode"))],
    "wide range": make_grid(slots=(1, 8, 512), n_experts=512),
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A report as most will be; nobody changes it."""
    return report(tmp_path_factory.mktemp("usual"), GRIDS["usual"])


@pytest.mark.parametrize("kind", some(GRIDS))
def test_the_page_parses_stands_alone_and_says_simulated(tmp_path, kind):
    out, page = report(tmp_path, GRIDS[kind])
    text = (out / "report.html").read_text()
    assert len(page.ids) == len(set(page.ids))
    assert all(reference.strip("'\"")[1:] in page.ids for reference in page.references if reference[0] == "#")
    inside = ("#", "data:image/png;base64,")
    assert all(reference.strip("'\"").startswith(inside) for reference in page.references)
    assert "http" not in text
    assert "@import" not in text
    tags = [tag for tag, _ in page.tags]
    assert "script" not in tags
    assert not {name for _, attrs in page.tags for name in attrs if name.startswith("on")}
    pictures = [attrs for _, attrs in page.tags if attrs.get("role") == "img"]
    assert len(pictures) == tags.count("svg") == len(list((out / "figures").glob("*.png")))
    assert all(attrs["aria-label"].startswith("SIMULATED. ") for attrs in pictures)
    assert page.text.count("simulated") >= tags.count("table")
    assert not re.search(r"\b(nan|None|inf)\b", page.text)


def test_every_part_is_written_and_named_with_the_page_first(tmp_path):
    out = tmp_path / "out"
    files = write_report([write_rows(tmp_path / "r.parquet", GRIDS["usual"])], out)
    assert files[0] == out / "report.html"
    assert {path for path in out.rglob("*") if path.is_file()} == set(files)
    names = {path.relative_to(out).as_posix() for path in files}
    assert names >= TABLES | {"report.md", "report.json"}
    figures = {Path(name).stem for name in names if name.startswith("figures/")}
    assert figures == FIGURES


@pytest.mark.once
def test_width_0_alone_has_no_look_ahead_part_and_one_phase_no_split(tmp_path):
    out, page = report(tmp_path, make_grid(phases=1))
    names = {path.stem for path in (out / "figures").iterdir()}
    assert not names & {"hits", "predictions", "widths", "prefill", "decode"}
    headings = "".join(tag for tag, _ in page.tags if tag == "h3")
    assert headings.count("h3") == 4
    assert "Look-ahead in numbers" not in page.text


@pytest.mark.once
def test_csv_holds_every_configuration_option_and_counter(usual):
    rows, (out, _) = GRIDS["usual"], usual
    with (out / "configurations.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == len(rows)
    for row, line in zip(rows, found, strict=True):
        assert line["simulated"] == "True"
        assert int(line["evictions"]) == row["evictions"]
        assert float(line["hit_rate"]) == row["hits"] / row["demands"]
        assert line["contract"] == "event"
        assert line["max_loads"] == ""
    for name, split in (("layers.csv", 4), ("phases.csv", 2), ("requests.csv", 5), ("windows.csv", 10)):
        with (out / name).open() as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == split * len(rows)
        assert len({tuple(line[key] for key in ("policy", "slots", "width")) for line in lines}) == len(rows)
        assert sum(int(line["misses"]) for line in lines) == sum(row["misses"] for row in rows)


def test_page_markdown_and_summary_name_the_same_winners(usual):
    out, page = usual
    summary = json.loads((out / "report.json").read_text())
    assert summary["simulated"] is True
    winners = summary["sections"][0]["winners"]
    assert [(record["slots"], record["width"]) for record in winners] == [(n, w) for n in (2, 4, 8, 16) for w in (0, 4)]
    markdown = (out / "report.md").read_text()
    for record in winners:
        assert f"| {record['winner'].replace('_', chr(92) + '_')}" in markdown
        assert f"{100 * record['hit_rate']:.1f} %" in page.text
    for name in re.findall(r"\]\((figures/[^)]*)\)", markdown):
        assert (out / name).is_file()


def test_every_option_and_the_provenance_are_on_the_page(tmp_path):
    row = make_row("lru", 4)
    _, page = report(tmp_path, [row])
    for name in OPTIONS:
        assert name in page.text
    assert row["trace_sha256"] in page.text
    assert "toy-moe" in page.text
    assert "row size unknown" in page.text


@pytest.mark.once
def test_several_traces_make_a_section_each_and_files_of_their_own(tmp_path):
    out, page = report(tmp_path, make_grid(slots=(4,), trace="a") + make_grid(slots=(4,), trace="b", row_bytes=2**20))
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section" and "id" in attrs] == ["section-1", "section-2"]
    assert {path.name[:2] for path in (out / "figures").iterdir()} == {"1-", "2-"}


@pytest.mark.once
def test_hostile_names_are_text_and_nothing_else(tmp_path):
    name = "<script>alert(1)</script> | $x_{$ [a](b) & \"'"
    rows = [row | {"model": name} for row in make_grid(("lru", f"./my$_{{policy.py:{name}"), (4, 8), trace=name)]
    out, page = report(tmp_path, rows)
    assert "script" not in {tag for tag, _ in page.tags}
    assert name in page.text
    markdown = (out / "report.md").read_text()
    assert "<script>" not in markdown
    table = [line for line in markdown.splitlines() if line.startswith("| ") and not line.startswith("| option")]
    assert table
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table if "of 16" in line} == {9}


@pytest.mark.once
def test_the_same_rows_give_the_same_bytes(tmp_path):
    path = write_rows(tmp_path / "r.parquet", GRIDS["one size"])
    first, second = (write_report([path], tmp_path / name) for name in ("a", "b"))
    assert [one.name for one in first] == [two.name for two in second]
    assert all(one.read_bytes() == two.read_bytes() for one, two in zip(first, second, strict=True))


# ---- the folder


@pytest.mark.once
def test_a_second_report_replaces_the_first_and_its_figures(tmp_path):
    out, _ = report(tmp_path, GRIDS["one size"])
    assert (out / "figures/gain-w2.png").exists()
    _, page = report(tmp_path, GRIDS["one policy, one size"])
    assert not (out / "figures/gain-w2.png").exists()
    assert "The one configuration" in page.text
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.once
def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("years of work")
    with pytest.raises(BadResult, match=r"holds 'thesis.txt' that no report wrote; .*--force"):
        report(tmp_path, GRIDS["one policy, one size"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    out, _ = report(tmp_path, GRIDS["one policy, one size"], force=True)
    assert (out / "thesis.txt").read_text() == "years of work"


def test_a_folder_inside_says_that_the_outer_one_is_somebody_elses(tmp_path):
    (tmp_path / "out/figures").mkdir(parents=True)
    (tmp_path / "out/notes").mkdir()
    with pytest.raises(BadResult, match="holds 'notes' that no report wrote"):
        report(tmp_path, GRIDS["one policy, one size"])


@pytest.mark.once
def test_a_mark_with_foreign_names_removes_nothing_outside(tmp_path):
    out, _ = report(tmp_path, GRIDS["one policy, one size"])
    (tmp_path / "precious.txt").write_text("keep")
    mark = json.loads((out / "report.json").read_text())
    names = [*mark["files"], "../precious.txt", str(tmp_path / "precious.txt")]
    (out / "report.json").write_text(json.dumps(mark | {"files": names}))
    report(tmp_path, GRIDS["one policy, one size"])
    assert (tmp_path / "precious.txt").read_text() == "keep"


@pytest.mark.once
def test_results_that_lie_in_the_folder_stay_there(tmp_path):
    (tmp_path / "out").mkdir()
    path = write_rows(tmp_path / "out/R.parquet", GRIDS["one policy, one size"])
    before = path.read_bytes()
    for _ in range(2):
        write_report([path], tmp_path / "out")
        assert path.read_bytes() == before


def test_bad_rows_leave_an_earlier_report_as_it_was(tmp_path):
    out, _ = report(tmp_path, GRIDS["one policy, one size"])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(BadResult, match="is not hits"):
        report(tmp_path, [make_row("lru", 4) | {"hits": 0}])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(BadResult, match="is a file, not a folder"):
        report(tmp_path, GRIDS["one size"])
