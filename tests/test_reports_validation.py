"""A page on a validation: verdict, errors, pairs and conditions are those of the result, and it can be made again."""

import csv
import html
import json
import re
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from test_reports_browser import FRAME, browse  # noqa: F401
from test_reports_hostile import within
from test_reports_parts import Page
from test_validate import evidence

import slotwise
from slotwise.reports import BadResult, metrics
from slotwise.reports.validations import STRATA, TERMS, validation_of
from slotwise.validate_judge import judge
from slotwise.validate_merge import merge_validations

pytestmark = pytest.mark.once
POLICIES = ("lru", "lfru+guard")


def made_up(off=0.02, **more):
    """The result of eight configurations, two policies at four sizes; everything but the runs is as `validate` says."""
    found = replace(evidence(off), **more)
    judged = judge(found)
    measured, intervals, fitted = (judged.pop(name) for name in ("measured", "intervals", "baseline"))
    terms = {name: {"measured": 0.125, "predicted": 0.125 + 0.01 * i} for i, name in enumerate(TERMS)}
    rows = [
        {
            "policy": POLICIES[i % 2], "slots": f"{10 + 10 * (i // 2)}%", "width": 2 * (i % 2), "overlap": "on",
            "verify_tokens": 1, "miss": "cpu", "label": found.labels[i], "predicted": float(found.predicted[i]),
            "measured": measured[i], "error": float(found.predicted[i]) / measured[i] - 1,
            "predicted_interval": [0.8 * float(found.predicted[i]), 1.2 * float(found.predicted[i])],
            "measured_interval": intervals[i], "baseline": fitted[i], "stratum": found.strata[i], "terms": terms,
        }
        for i in range(8)
    ]  # fmt: skip
    blocks = [
        {
            "tokens_per_s": [[float(runs[i]), *(map(float, twice) if i == 0 else ())] for i in range(8)],
            "load": {"steal_s": 0.25 * number, "involuntary_switches": 12, "most_rss_bytes": 1 << 30},
            "conditions": {"gpu": {"clock_mhz": [1500, 1980], "throttled": "no"}},
        }
        for number, (runs, twice) in enumerate(zip(found.measured, found.sentinel, strict=True))
    ]  # fmt: skip
    said = {
        "format": "slotwise.validation", "version": 1, **judged, "plans": "equal",
        "drift_by_part": {"hot": 0.01, "cold": -0.004, "link": 0.0, "host": 0.002},
        "terms": {name: each["predicted"] - each["measured"] for name, each in terms.items()},
        "rows": "tiny, f32", "trace": "sample", "content_sha256": "c" * 64, "options": {"steps": 40},
        "machine": "the bench", "machine_sha256": "d" * 64, "machine_date": "2026-01-31", "backend": "numpy",
        "device": "host memory", "processor": "a CPU", "restricted_to": None,
        "configurations": rows, "each_block": blocks,
        "governor": "performance",
    }  # fmt: skip
    return json.loads(json.dumps(said))


def report(found, folder):
    path = folder / "V.json"
    path.write_text(json.dumps(found))
    page = slotwise.write_report([path], folder / "out")[0]
    return page.parent, Page(page.read_text())


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    found = made_up()
    assert found["verdict"] == "passed"
    return found, *report(found, tmp_path_factory.mktemp("passed"))


def alt_of(page, word):
    (alt,) = [
        attrs["aria-label"] for _, attrs in page.tags if attrs.get("role") == "img" and word in attrs["aria-label"]
    ]
    return alt


def cells_of(folder, title):
    """The cells of a table, line by line, the first line of each cell only."""
    table = (folder / "report.html").read_text().split(f"<caption>{title}")[1].split("</table>")[0]
    lines = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    return [[html.unescape(text) for text in re.findall(r"<t[hd][^>]*>(.*?)(?:<small>.*?)?</t[hd]>", line)]
            for line in lines]  # fmt: skip


def test_predicted_and_measured_are_those_of_the_result(passed):
    found, folder, page = passed
    with (folder / "validation.csv").open() as file:
        lines = list(csv.DictReader(file))
    scatter = alt_of(page, "Predicted against measured")
    for line, row in zip(lines, found["configurations"], strict=True):
        for name in ("predicted", "measured", "baseline", "error"):
            assert float(line[name]) == row[name]
        for side in ("predicted", "measured"):
            assert [float(line[f"{side}_{end}"]) for end in ("low", "high")] == row[f"{side}_interval"]
        values = f"{metrics.number(row['predicted'])} predicted, {metrics.number(row['measured'])} measured"
        assert f"{row['policy']}, {row['slots']} slots, width {row['width']}, overlap on: {values}" in scatter
        assert f"{100 * row['error']:+.1f} %" in page.text
        assert metrics.number(row["predicted_interval"][0]) in page.text
    assert "SIMULATED and MEASURED." in scatter


def test_errors_by_stratum_stand_beside_those_of_the_line(passed):
    found, folder, _ = passed
    rows = cells_of(folder, "Errors by what bounds a configuration")[1:]
    for cells, (name, each) in zip(rows, {"all": found["all"], **found["strata"]}.items(), strict=True):
        errors = [metrics.percent(of[key]) for of in (each, each["baseline"]) for key in ("median", "p95", "worst")]
        assert cells == [STRATA.get(name, name), str(each["configurations"]), *errors]


def test_pairs_say_whether_sign_and_size_are_right(tmp_path):
    """The first pair's prices are in the wrong order; the second's right, but three times as far apart."""
    predicted = evidence().predicted * [1.0, 0.75, 1.0, 1.4, 1.0, 1.0, 1.0, 1.0]
    found = made_up(predicted=predicted)
    assert found["verdict"] == "failed"
    folder, page = report(found, tmp_path)
    with (folder / "pairs.csv").open() as file:
        lines = {line["pair"]: line for line in csv.DictReader(file)}
    assert [line["wrong_sign"] for line in lines.values()] == ["True", "False", "False", "False"]
    assert [line["wrong_size"] for line in lines.values()] == ["True", "True", "False", "False"]
    said = [cells[1:3] for cells in cells_of(folder, "Policies against each other")[1:]]
    assert said == [["wrong", "wrong"], ["right", "wrong"], ["right", "right"], ["right", "right"]]
    gain, told = 100 * (10 / 12 - 1), 100 * (10 / 9 - 1)
    assert f"measured {gain:+.1f} % ({gain:+.1f} to {gain:+.1f}), predicted {told:+.1f} %" in alt_of(page, "each other")
    assert "1 of 4 pairs of policies have the wrong sign." in page.text


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, "Verdict: passed."),
        ({"off": 0.3}, "Verdict: failed, for:"),
        ({"drift": None}, "Verdict: inconclusive, because:"),
        ({"labels": ["ESTIMATED"] * 8}, "Verdict: inconclusive, because:"),
    ],
)
def test_the_verdict_comes_with_its_reasons(tmp_path, more, verdict):
    found = made_up(**more)
    folder, page = report(found, tmp_path)
    (section,) = json.loads((folder / "report.json").read_text())["sections"]
    assert section["answer"][0] == verdict
    assert section["answer"][1:-2] == [f"{reason}." for reason in found["reasons"]]
    assert (len(found["reasons"]) > 0) == (verdict != "Verdict: passed.")
    for sentence in section["answer"]:
        assert sentence in page.text
    assert f"Kendall's tau over all configurations: {found['kendall_tau']:.2f}." in section["answer"][-1]
    assert len(section["configurations"]) == 8
    assert len(section["pairs"]) == 4


def test_residuals_by_term_are_drawn_and_written(passed):
    found, folder, page = passed
    alt = alt_of(page, "Residuals by term")
    for i, text in enumerate(TERMS.values()):
        assert f"{text} {i:+.1f} % ({i:+.1f} to {i:+.1f})" in alt
    lines = cells_of(folder, "Residuals by term")[1:]
    assert lines == [[text, f"{i:+.1f} %"] for i, text in enumerate(TERMS.values())]
    assert found["terms"]["merge_s"] == pytest.approx(0.05)


def test_whatever_was_recorded_of_the_machine_is_shown_by_its_name(passed):
    assert cells_of(passed[1], "Recorded meanwhile")[1:] == [
        ["load steal s", "0", "1.25", "2.25"], ["load involuntary switches", "12", "12", "12"],
        ["load most rss bytes", *["1,073,741,824"] * 3], ["conditions gpu clock mhz", "1,500", "1,980", "1,980"],
        ["conditions gpu throttled", "no", "–", "–"], ["governor", "performance", "–", "–"],
    ]  # fmt: skip
    for said in ("the bench", "2026-01-31", "a CPU", "host memory", "10, of which 0 dropped", "equal, tick for tick"):
        assert said in passed[2].text


def test_the_page_stands_alone_and_says_of_every_table_and_figure_where_it_is_from(passed):
    _, folder, page = passed
    text = (folder / "report.html").read_text()
    assert "http" not in text
    assert "script" not in {tag for tag, _ in page.tags}
    assert len(page.ids) == len(set(page.ids))
    labels = {attrs["aria-label"].split(".")[0] for _, attrs in page.tags if attrs.get("role") == "img"}
    assert labels == {"SIMULATED and MEASURED"}
    assert page.text.count("simulated and measured") >= [tag for tag, _ in page.tags].count("table")
    assert not re.search(r"\b(nan|None|inf)\b", page.text)
    assert {path.stem for path in (folder / "figures").iterdir()} == {"predicted", "errors", "pairs", "terms", "blocks"}
    for name in re.findall(r"\]\((figures/[^)]*)\)", (folder / "report.md").read_text()):
        assert (folder / name).is_file()


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("verdict", "perhaps", "verdict is 'perhaps', but must be one of passed, failed, inconclusive"),
        ("plans", "different", "plans is 'different', but must be equal"),
        ("version", 2, "version is '2', but must be 1"),
        ("noise_floor", None, "noise_floor is 'None', but must be a number from 0"),
        ("all.baseline.p95", float("nan"), "all.baseline.p95 is 'nan', but must be a number from 0"),
        ("configurations", [], "configurations is '[]', but must be one or more"),
        pytest.param("drift", 10**400, "drift is '1000000000000", id="more than a float"),
        ("configurations.3.measured", 0, "configurations[3].measured is '0', but must be a number from 1e-12"),
        ("configurations.0.stratum", "moon", "configurations[0].stratum is 'moon', but must be one of cold, hot"),
        ("configurations.1.measured_interval", [2, 1], "configurations[1].measured_interval is '[2, 1]', but must"),
        ("configurations.1.terms", {}, "configurations[1].terms.both_s is 'None', but must be an object"),
        ("pairs.each.0.second", 8, "pairs.each[0].second is '8', but must be a configuration's number"),
        ("each_block.2.tokens_per_s", [[1.0]], "each_block[2].tokens_per_s is '[[1.0]]', but must be runs of each"),
        ("strata.hot", 3, "strata.hot is '3', but must be an object with names"),
        ("terms.late_s", "x", "terms.late_s is 'x', but must be a number"),
    ],
)
def test_a_result_that_cannot_be_is_refused_by_name(passed, path, value, told):
    found = deepcopy(passed[0])
    within(found, path, value)
    with pytest.raises(BadResult) as refused:
        validation_of("V.json", found)
    assert str(refused.value).startswith(f"V.json: {told}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("at", ["drift", "kendall_tau", "options", "plans", "configurations.3.predicted_interval"])
def test_an_entry_that_the_page_needs_is_named_where_it_is_missing(passed, at):
    found = deepcopy(passed[0])
    *path, name = at.split(".")
    inner = found
    for step in path:
        inner = inner[int(step) if step.isdigit() else step]
    del inner[name]
    with pytest.raises(BadResult, match=rf"^V.json: .*{name} is missing; .*: make it again with `slotwise validate"):
        validation_of("V.json", found)


def test_one_configuration_and_one_block_are_enough_for_a_page(tmp_path):
    found = made_up()
    found["configurations"], found["each_block"] = found["configurations"][:1], found["each_block"][:1]
    found["each_block"][0]["tokens_per_s"] = found["each_block"][0]["tokens_per_s"][:1]
    found["pairs"]["each"], found["kendall_tau"], found["verdict"] = [], None, "inconclusive"
    folder, page = report(found, tmp_path)
    assert "pairs" not in {path.stem for path in (folder / "figures").iterdir()}
    assert not re.search(r"\b(nan|None|inf)\b", page.text)


def test_several_put_together_have_a_page_that_says_of_what(tmp_path):
    one, other = made_up(), made_up(off=0.3) | {"trace": "another", "content_sha256": "b" * 64}
    found = merge_validations([one, other])
    folder, page = report(found, tmp_path)
    assert f"Verdict: {found['verdict']}" in page.text
    assert [cells[:3] for cells in cells_of(folder, "Put together of")[1:]] == [
        ["1", "tiny, f32", "sample"], ["2", "tiny, f32", "another"],
    ]  # fmt: skip
    assert [cells[0] for cells in cells_of(folder, "Predicted and measured")[1:]] == ["1"] * 8 + ["2"] * 8
    scatter = alt_of(page, "Predicted against measured")
    for row in found["configurations"]:
        assert (
            f"width {row['width']}, overlap on, part {row['part']}: {metrics.number(row['predicted'])} pred" in scatter
        )
    with (folder / "pairs.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["pair"].endswith("part 2") for line in lines] == [False] * 4 + [True] * 4
    assert "blocks" not in {path.stem for path in (folder / "figures").iterdir()}, "sentinels of several"


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(browse, passed, tmp_path, width):  # noqa: F811
    folder = passed[1]
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, page=html.escape((folder / "report.html").read_text())))
    found = re.search(r'data-width="(\d+)"', browse(frame, "--dump-dom"))
    assert found
    assert int(found[1]) <= width
    assert browse(folder / "report.html", "--dump-dom").count("<svg") == 5


def test_a_very_wide_range_is_drawn_with_logarithms_and_plain_numbers(tmp_path):
    true = np.geomspace(2, 400, 8)
    found = made_up(predicted=true, measured=true * np.ones((10, 8)))
    folder, _ = report(found, tmp_path)
    assert "mathdefault" not in (folder / "report.html").read_text()
