"""A page on a machine file: every figure with unit, spread and label, curves that are those of the file."""

import csv
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cold_cases import built
from conftest import slotwise as command
from test_reports_browser import FRAME, browse  # noqa: F401
from test_reports_parts import Page

import slotwise
from slotwise.replay.machine_figures import FIGURES, Contention, Figure, Sheet
from slotwise.reports import metrics, write_report
from slotwise.reports.machines import ROWS, MachineFile

pytestmark = pytest.mark.once
ROW = 96 << 10


def sheet(chain, tokens, threads, scale=1.0):
    rows, pairs = (1, 2, 8), (1.0,) if tokens == 1 else (1.0, 2.0)
    seconds = tuple(tuple(scale * 1e-5 * n * (1 + 0.5 * (p - 1)) for p in pairs) for n in rows)
    return Sheet(
        chain, ROW, tokens, rows, pairs, seconds, tuple(tuple(0.1 * s for s in line) for line in seconds), threads
    )


@pytest.fixture(scope="module")
def estimated():
    return slotwise.estimate_machine(presets=("rtx-3060-x4", "ddr4"))


@pytest.fixture(scope="module")
def measured(estimated):
    """As if it had been measured with two numbers of threads."""
    shares = Figure(0.61, 0.02), Figure(0.5, 0.02), Figure(0.87, 0.03), Figure(0.99, 0.0)
    return replace(
        estimated, label="MEASURED", name="bench <1>", device="a card", driver="580.1", cpu="a CPU", backend="cupy",
        libraries={"cupy": "14.2"}, sources={}, restricted_to="4 of 132 SMs", details={"asked": {"hidden": 128}},
        sheets=(sheet("hot", 1, None), sheet("hot", 4, None), sheet("cold", 1, 4, 3.0), sheet("cold", 1, 8, 2.0)),
        contention=(Contention(4, *shares), Contention(8, *reversed(shares))),
    )  # fmt: skip


def report(machine, folder) -> tuple[Path, Page]:
    path = slotwise.write_machine(machine, folder / "machine.json")
    page = slotwise.write_report([path], folder / "out")[0]
    return page.parent, Page(page.read_text())


@pytest.fixture(scope="module")
def both(measured, estimated, tmp_path_factory):
    return {one.label: report(one, tmp_path_factory.mktemp("machine")) for one in (measured, estimated)}


@pytest.mark.parametrize("label", ["MEASURED", "ESTIMATED"])
def test_every_figure_stands_there_with_unit_spread_and_meaning(both, measured, estimated, label):
    machine = {"MEASURED": measured, "ESTIMATED": estimated}[label]
    folder, page = both[label]
    with (folder / "machine.csv").open() as file:
        lines = {line["name"]: line for line in csv.DictReader(file) if line["what"] == "figure"}
    assert list(lines) == list(FIGURES)
    table = re.search(r'<table class="machine">(.*?)</table>', (folder / "report.html").read_text(), re.DOTALL)
    assert table
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", table[1])
    for name, line in lines.items():
        value, spread = machine.figures[name].value, machine.figures[name].spread
        assert (float(line["value"]), float(line["spread"])) == (value, spread)
        assert (line["unit"], line["meaning"], line["label"]) == (*FIGURES[name][2:], label)
        unit, scale = {
            "seconds": ("µs", 1e6), "bytes per second": ("GB/s", 1e-9), "bytes": ("MiB", 2**-20),
            "of the way": ("%", 100),
        }[FIGURES[name].unit]  # fmt: skip
        at = cells.index(name)
        assert html.unescape(cells[at + 1]).startswith(FIGURES[name].meaning)
        assert cells[at + 2 : at + 5] == [
            unit, metrics.number(value * scale), f"± {metrics.number(spread * scale)}"
        ]  # fmt: skip
    labels = {attrs["aria-label"].split(".")[0] for _, attrs in page.tags if attrs.get("role") == "img"}
    assert labels == {label}
    other = {"MEASURED": "estimated", "ESTIMATED": "measured"}[label]
    assert f"All figures are **{label}**" in (folder / "report.md").read_text()
    assert f"\n{other}" not in page.text
    assert page.text.count(label.lower()) >= [tag for tag, _ in page.tags].count("table")
    assert "http" not in (folder / "report.html").read_text()
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    assert len(page.ids) == len(set(page.ids))


def test_the_page_says_of_which_machine_and_when(both, measured):
    text = both["MEASURED"][1].text
    for word in ("bench <1>", measured.date, "a card", "580.1", "a CPU", "cupy 14.2", "4 of 132 SMs", measured.sha256):
        assert word in text
    summary = json.loads((both["MEASURED"][0] / "report.json").read_text())
    assert (summary["measured"], summary["simulated"]) == (True, False)
    assert summary["sections"][0]["figures"][0]["value"] == measured["ids_s"]


def rounded(alt: str) -> str:
    """The curves of a description; numbers are not exact in binary, so '10.0' may be written for 10."""
    return re.sub(r"\.0+\b|(?<=\.\d)0+\b", "", alt.split(". ", 2)[2])


def test_each_chain_has_a_curve_for_each_size_and_number_of_threads(both, measured):
    folder, page = both["MEASURED"]
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert names == {
        f"hot-{ROW}-rows", f"hot-{ROW}-tokens", f"cold-{ROW}-4-rows", f"cold-{ROW}-8-rows", f"copies-{ROW}", "wake",
        "contention",
    }  # fmt: skip
    said = {attrs["aria-label"] for _, attrs in page.tags if attrs.get("role") == "img"}
    (hot,) = [text for text in said if "Hot chain by rows" in text]
    assert rounded(hot) == "steps of 1 token: 10 ± 1 at 1, 80 ± 8 at 8; steps of 4 tokens: 10 ± 1 at 1, 80 ± 8 at 8."
    (tokens,) = [text for text in said if "Hot chain by tokens" in text]
    assert rounded(tokens).startswith("1 row: 10 ± 1 at 1, 15 ± 1.5 at 2; 2 rows: 20 ± 2 at 1, 30 ± 3 at 2; 8 rows: ")
    (cold,) = [text for text in said if "Cold chain by rows of 96 KiB, 8 threads" in text]
    assert rounded(cold) == "steps of 1 token: 20 ± 2 at 1, 160 ± 16 at 8."
    (beside,) = [text for text in said if "beside each other" in text]
    assert "4 CPU threads, cold chain, while the link works: 61 ± 2 %" in beside
    assert "8 CPU threads, hot chain, while the link works: 61 ± 2 %" in beside
    (woken,) = [text for text in said if "Waking up" in text]
    last = measured.wake[-1]
    assert f"{metrics.number(1e6 * last.seconds)} ± {metrics.number(1e6 * last.spread_s)}" in woken


def test_figures_of_policies_and_of_both_chains_at_once_are_shown_where_a_file_has_them(measured, tmp_path):
    found = json.loads(json.dumps(measured.to_dict()))
    found["policies"] = {"lfru": {"policy_s": {"value": 3.5e-5, "spread": 1e-6}}}
    shares = {"hot_with_cold": {"value": 0.75, "spread": 0.01}, "cold_with_hot": {"value": 0.5, "spread": 0.02}}
    found["overlap"] = shares | {"overlap_s": {"value": 4.25e-6, "spread": 5e-7}}
    meanings = {name: (figure.unit, figure.meaning) for name, figure in FIGURES.items()}
    given = [{"machine": found, "file": "m.json", "sha256": "e" * 64, "meanings": meanings}]
    page = write_report([], tmp_path / "out", given=given)[0]
    text = html.unescape(page.read_text())
    assert "policy_s of lfru" in text
    for said in ("35", "± 1", "75", "50", "4.25", "± 0.500"):
        assert f">{said}</td>" in text
    assert "both chains at once, hot chain, while the cold chain works: 75 ± 1 %" in text
    assert "both chains at once, cold chain, while the hot chain works: 50 ± 2 %" in text


def test_curves_of_rates_are_base_and_bytes_and_their_spreads_add_as_squares(estimated):
    found = MachineFile("m.json", "", json.loads(json.dumps(estimated.to_dict())), {})
    m, size = estimated, 4 << 20
    line = found.copies("ahead", size)
    for i, n in enumerate(ROWS):
        moved = n * size / m["copy_ahead_bytes_per_s"]
        assert line.y[i] == pytest.approx(1e6 * (m["copy_ahead_batch_s"] + n * m["copy_ahead_row_s"] + moved))
        spread = [m.figures["copy_ahead_batch_s"].spread, n * m.figures["copy_ahead_row_s"].spread]
        rate = m.figures["copy_ahead_bytes_per_s"]
        spread.append(moved * rate.spread / rate.value)
        assert line.spread[i] == pytest.approx(1e6 * sum(s * s for s in spread) ** 0.5)
    assert found.chain("cold", size).y[0] == pytest.approx(1e6 * (m["cold_base_s"] + size / m["host_read_bytes_per_s"]))
    assert found.sizes == [1 << 20, 4 << 20]


def test_a_machine_shares_a_page_with_others_and_a_folder_with_its_own_kind(measured, estimated, tmp_path):
    first = slotwise.write_machine(measured, tmp_path / "a.json")
    other = slotwise.write_machine(estimated, tmp_path / "b.json")
    out = slotwise.write_report([first, other], tmp_path / "out")[0].parent
    page = Page((out / "report.html").read_text())
    assert {tag for tag, _ in page.tags} >= {"nav"}
    assert len(page.ids) == len(set(page.ids))
    slotwise.write_report([first, other], out)
    with pytest.raises(slotwise.BadResult, match=r"holds a report on bench <1>, RTX 3060 .* from a.json, b.json"):
        slotwise.write_report([other], out)
    assert "figures (ESTIMATED)" in command("report", other, "-o", tmp_path / "b").stdout


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda found: found["figures"]["ids_s"].update(value=8),
            "figure ids_s is 8; it is a number from 1e-09 to 0.1",
        ),
        (lambda found: found["figures"].pop("step_s"), "figure step_s is missing"),
        (lambda found: found["sheets"][0]["seconds"].pop(), "sheets[0] seconds has no 1 numbers for 8 rows"),
        (lambda found: found.update(label="SIMULATED"), "label 'SIMULATED': it is MEASURED or ESTIMATED"),
        (lambda found: found.update(format="slotwise.else"), "JSON that says it is 'slotwise.else'; a report is made"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_name_of_the_figure(measured, tmp_path, change, told):
    found = json.loads(json.dumps(measured.to_dict()))
    change(found)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(found))
    said = command("report", path, "-o", tmp_path / "out", code=2).stderr
    assert said.startswith(f"slotwise: {path}: {told}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_cut_off_is_refused(measured, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(measured.to_dict())[:-20])
    assert "is cut off or damaged" in command("report", path, "-o", tmp_path / "out", code=2).stderr


@pytest.mark.skipif(not built(), reason="the cold chain was not built")
def test_a_machine_that_was_calibrated_here_has_its_page(tmp_path):
    machine = slotwise.calibrate(shape="tiny", quick=True, cpu_threads=1)
    folder, page = report(machine, tmp_path)
    assert "calibrate" in page.text
    assert f"hot-{ROW}-rows.png" in {path.name for path in (folder / "figures").iterdir()}
    assert not re.search(r"\b(nan|None|inf)\b", page.text)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("label", ["MEASURED", "ESTIMATED"])
def test_nothing_is_wider_than_the_screen(browse, both, tmp_path, label, width):  # noqa: F811
    folder = both[label][0]
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, page=html.escape((folder / "report.html").read_text())))
    found = re.search(r'data-width="(\d+)"', browse(frame, "--dump-dom"))
    assert found
    assert int(found[1]) <= width
    assert browse(folder / "report.html", "--dump-dom").count("<svg") == len(list((folder / "figures").iterdir()))


def test_steps_of_a_prompt_lengthen_the_curves_by_tokens_and_are_none_by_rows(measured, tmp_path):
    def prompt(chain, threads):
        seconds = ((1e-4, 4e-4), (4e-4, 16e-4))
        return Sheet(chain, ROW, 256, (2, 8), (4.0, 32.0), seconds, ((0.0, 0.0), (0.0, 0.0)), threads)

    sheets = (sheet("hot", 1, None), sheet("hot", 4, None), prompt("hot", None), sheet("cold", 1, 4), prompt("cold", 4))
    _, page = report(replace(measured, sheets=sheets), tmp_path)
    said = {attrs["aria-label"] for _, attrs in page.tags if attrs.get("role") == "img"}
    (rows,) = [text for text in said if "Hot chain by rows" in text]
    assert "256" not in rows
    (tokens,) = [text for text in said if "Hot chain by tokens" in text]
    found = rounded(tokens)
    assert found.startswith("1 row: 10 ± 1 at 1, 15 ± 1.5 at 2; ")
    assert "2 rows: 20 ± 2 at 1, 400 ± 0 at 32; 8 rows: " in found
