"""Results of runs whose schema is right and whose figures are not: one line says so, or the report is written."""

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from test_reports_runs import ASKED, edited

import slotwise
from slotwise.reports import BadResult, page, write_report
from slotwise.reports.figures import measured_figures
from slotwise.reports.rows import kinds_of_columns
from slotwise.reports.runs import NESTED, PARTS, SETTINGS, check_run, read_runs, runs_of
from slotwise.reports.tables_measured import tick_records

pytestmark = pytest.mark.once

WRONG = (None, math.nan, math.inf, -1, -1.0, 0.0, 5e-324, 1e308, 2**62)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """Both sides of one configuration, two runs of each."""
    path = tmp_path_factory.mktemp("good") / "R.parquet"
    options = {**ASKED, "steps": 5, "overlap": "both", "repeats": 2, "width": 4}
    slotwise.run("sample", "lfru+guard", 16, out=path, **options)
    return path


def within(row: dict, path: str, value: Any) -> None:
    *outer, last = path.split(".")
    here: Any = row
    for name in outer:
        here = here[int(name) if isinstance(here, list) else name]
    here[int(last) if isinstance(here, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("hits", 0, "is not hits"),
        ("measured", False, "measured is False"),
        ("overlap", "maybe", "must be on, off or auto"),
        ("timing", None, "timing is None, but must hold figures"),
        ("timing.steps", None, "timing.steps is None"),
        ("timing.tokens_per_s", -1.0, "timing.tokens_per_s is -1.0"),
        ("timing.parts.both_s", float("nan"), "timing.parts.both_s is nan"),
        ("timing.parts", None, "timing.parts.both_s is 'missing'"),
        ("timing.tokens_per_s_range", [1.0, float("inf")], r"timing.tokens_per_s_range\[1\] is inf"),
        ("timing.tokens_per_s_range", [1.0], "1 ends of the range of 2 runs"),
        ("timing.tokens_per_s_runs", None, "2 ends of the range of 0 runs"),
        ("ceilings.host_read_per_s", -5.0, "host_read_per_s is -5.0"),
        ("achieved.hot_per_s", float("inf"), "hot_per_s is inf"),
        ("ceilings.host_read_per_s", 5e-324, "host_read_per_s is 5e-324, but must be 0, or 1e-12 or more"),
        ("hidden", None, "hidden is None"),
        ("stretch.ticks", [{"step": 1}], r"stretch.ticks\[0\].layer is None"),
        ("stretch.ticks", [None], r"stretch.ticks\[0\] is None, but must hold figures"),
        ("stretch.ticks.0.late", [None], r"stretch.ticks\[0\].late\[0\] is None"),
        ("stretch.ticks.0.hot.0.at_s", float("inf"), r"stretch.ticks\[0\].hot\[0\].at_s is inf"),
        ("stretch.ticks.0.hot.0.at_s", float("nan"), r"stretch.ticks\[0\].hot\[0\].at_s is nan"),
        ("stretch.copies", None, "stretch.copies is None, but must be a list"),
        ("stretch.copies.0.seconds", None, r"stretch.copies\[0\].seconds is None"),
        ("timing.wait_s", float("inf"), "timing.wait_s is inf"),
        ("timing.parts.merge_s", 1e308, r"timing.parts.merge_s is 1e\+308, but must be 1e\+09 at most"),
        ("timing.tokens_per_s_range", [0.0, 1e-3], "outside its range"),
        ("spin_us", float("inf"), "spin_us is inf, but must be from 0 to 1e9"),
    ],
)
def test_figures_that_cannot_be_are_one_line(good, tmp_path, path, value, told):
    bad = edited(good, tmp_path / "bad.parquet", lambda row: within(row, path, value))
    with pytest.raises(BadResult, match=told) as caught:
        write_report([bad], tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def leaf_of(row: dict, path: str) -> Any:
    here: Any = row
    for name in path.split("."):
        here = here[int(name) if isinstance(here, list) else name]
    return here


def leaves(value: Any, path: str) -> list[str]:
    """Paths of everything within: figures, and the lists and dicts that hold them."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for name, one in inner for leaf in leaves(one, f"{path}.{name}"))]


def small(rows: list) -> list:
    """The rows with two ticks and two copies each."""
    for row in rows:
        row["stretch"] = {name: values[:2] for name, values in row["stretch"].items()}
    return rows


def wrongs(value: Any) -> list:
    """Values that do not belong there, of the kinds that a file of the right schema can hold."""
    if isinstance(value, list):
        return [None, [], value[:-1], [*value, None], [None] * len(value)]
    if isinstance(value, (dict, str)):
        return [None]
    return [one for one in WRONG if isinstance(value, float) or not isinstance(one, float)]


def test_whatever_is_wrong_with_one_figure_is_said_or_reported(good):
    rows = small(read_runs([good]))
    flat = [*kinds_of_columns(), *SETTINGS, "incomplete", "rows_by_layer", "slots_by_layer", "measured"]
    paths = [*flat, *(leaf for name in NESTED for leaf in leaves(rows[0][name], name))]
    assert {f"timing.parts.{name}" for name in PARTS} <= set(paths)
    refused, said, drawn = set(), [], 0
    for path in paths:
        for wrong in wrongs(leaf_of(rows[0], path)):
            changed = deepcopy(rows)
            within(changed[0], path, deepcopy(wrong))
            try:
                check_run("here", changed[0])
            except BadResult as error:
                refused.add(path)
                said.append(str(error))
                continue
            draw = path.startswith(("stretch", "timing.tokens_per_s", "timing.parts.both")) and drawn < 3
            drawn += draw
            for part in runs_of(changed):
                pictures = measured_figures(part) if draw else {key: [] for key in page.MEASURED_PARTS}
                chapter = page.run_chapter(part, "here", pictures)
                known = [{key: None if one != one else one for key, one in of.items()} for of in chapter.records]
                json.dumps([known, list(tick_records(part)), chapter.answer], allow_nan=False)
    assert {path for path in paths if path.startswith(("timing", "stretch."))} - {"timing.tokens_per_s_runs"} <= refused
    assert not any("\n" in one for one in said)
