"""How figures look, as far as arithmetic can tell: contrast, colours for every eye, labels and lines that show."""

import io
import re

import numpy as np
import pytest
from matplotlib import image
from test_reports_rows import make_grid, write_rows

from slotwise.reports.charts import _fitting, _from_the_right
from slotwise.reports.figures import figures
from slotwise.reports.ropes import look_alikes, roped, side_by_side, told
from slotwise.reports.rows import read_rows
from slotwise.reports.sections import Size, sections
from slotwise.reports.style import COLOURS, LIGHT, inline_svg, look_of, short

pytestmark = pytest.mark.once

# Linear RGB -> cone responses, and what each kind of colour blindness makes of them (Viénot, Brettel and Mollon, 1999).
CONES = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
EYES = {
    "normal": np.eye(3),
    "red-blind": np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]]),
    "green-blind": np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]]),
    "blue-blind": np.array([[1, 0, 0], [0, 1, 0], [-0.395913, 0.801109, 0]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
SCHEMES = pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = XYZ @ rgb.clip(0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (one, other))
    return high / low


@SCHEMES
def test_lines_and_text_stand_out_from_the_paper(scheme):
    paper = COLOURS["paper"][scheme]
    for name in ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "good", "bad", "grey3"):
        assert contrast(COLOURS[name][scheme], paper) >= 3, name
    assert contrast(COLOURS["ink"][scheme], paper) >= 7
    assert contrast(COLOURS["muted"][scheme], paper) >= 4.5


@SCHEMES
@pytest.mark.parametrize("eye", EYES)
def test_seven_policies_keep_seven_colours_in_every_eye(scheme, eye):
    sees = np.linalg.inv(CONES) @ EYES[eye] @ CONES
    seen = [lab(sees @ linear(COLOURS[f"c{i}"][scheme])) for i in range(7)]
    assert min(np.linalg.norm(seen[i] - seen[j]) for i in range(7) for j in range(i)) > 15


def test_twenty_policies_look_different_and_bounds_have_no_marker(tmp_path):
    names = [f"lfru(half_life={n})" for n in range(1, 21)]
    (section,) = sections(read_rows([write_rows(tmp_path / "r.parquet", make_grid((*names, "opt", "belady"), (4,)))]))
    looks = look_of(section)
    assert len({(looks[name]["color"], looks[name]["marker"], looks[name]["linestyle"]) for name in names}) == 20
    assert looks["opt"]["color"] == LIGHT["ink"]
    assert "marker" not in looks["opt"]
    assert looks["opt"]["linestyle"] != looks["belady"]["linestyle"]
    looks = look_of(section, [f"oracle look-ahead, width {width}" for width in range(1, 9)])
    assert len({looks[name]["linestyle"] for name in looks if name not in names}) == 10, "two bounds and eight oracles"


def test_lines_that_look_like_one_are_a_rope_in_which_each_shows_its_colour_and_markers():
    lines = [[0, 50, 100], [0, 50.9, 100], [0, 60, 100], [0, 49.1, float("nan")]]
    assert look_alikes(lines) == [[0, 1, 3], [2]]
    first, second, alone, third = roped(lines)
    assert alone == {}
    assert [rope["markevery"] for rope in (first, second, third)] == [(0, 3), (1, 3), (2, 3)]
    assert [rope["linestyle"] for rope in (first, second, third)] == ["-", (12, (6, 12)), (6, (6, 12))]
    assert roped([[float("nan")], [float("nan")]])[0]["markevery"] == (0, 2)
    assert told(lines, "abcd") == " Lines of alternating colours lie on each other: a, b and d."
    assert told(lines[1:3], "bc") == ""


def test_marks_that_would_cover_each_other_form_a_row_about_their_place():
    marks = {"a": (0.0, 0.0), "b": (100.0, 100.0), "c": (1.0, 1.0), "d": (10.0, 0.0)}
    assert side_by_side(marks) == {"a": ((0, 0), -0.5), "c": ((0, 0), 0.5), "b": ((100, 100), 0), "d": ((10, 0), 0)}
    assert side_by_side({"a": (5.0, 5.0), "b": (5.0, 5.0)})["b"] == ((5, 5), 0.5)


def test_the_legend_reads_as_the_lines_end_at_the_right():
    low, high = (Size(slots, None, str(slots)) for slots in (8.0, 16.0))
    curves = {"a": {low: 0.1, high: 0.9}, "b": {low: 0.5, high: 0.901}, "c": {low: 0.9, high: 0.5}, "d": {low: 1.0}}
    assert _from_the_right(curves, [low, high]) == ["b", "a", "c", "d"]


LONG = "./policies/of/my/own/that/evicts.py:FewestDemandsThenOldest(half_life=16)+guard(warm=3)"


@pytest.mark.parametrize("grid", [
    {"slots": (4, 8, 16), "widths": (0, 2, 4), "row_bytes": 1000 << 20, "phases": 2},
    {"slots": (4,), "widths": (0, 4)},
    {"slots": (4, 8), "widths": (0,), "miss": "fetch", "row_bytes": 3000, "contract": "sequential", "scope": "global"},
], ids=["usual", "one size", "global"])  # fmt: skip
def test_no_text_of_any_figure_is_cut_at_its_rim_however_long_the_names(tmp_path, grid):
    rows = make_grid(("lru", LONG, LONG.replace("16", "32"), "opt"), **grid)
    rows = [row | {"trace": "a-trace-with-a-name-that-says-everything-of-its-making"} for row in rows]
    (section,) = sections(read_rows([write_rows(tmp_path / "r.parquet", rows)]))
    pictures = [picture for part in figures(section).values() for picture in part]
    assert len(pictures) > 5
    for picture in pictures:
        seen = image.imread(io.BytesIO(picture.png))[..., :3]
        rim = np.concatenate([edge.reshape(-1, 3) for edge in (seen[:3], seen[-3:], seen[:, :3], seen[:, -3:])])
        assert rim.min() == 1.0, picture.name


def test_labels_that_would_touch_give_way_to_those_on_their_right():
    assert _fitting(["8", "16", "24", "128"], [0.2, 0.3, 0.6, 4.0], 9) == ["", "16", "24", "128"]
    assert _fitting(["432 MiB"], [1.0], 8) == ["432 MiB"]


def test_long_names_are_cut_in_the_middle():
    assert short("x" * 44) == "x" * 44
    assert short("./a/very/long/path/to/my_policies.py:MyPolicy(x=1)+guard") == "…/my_policies.py:MyPolicy(x=1)+guard"
    assert short(LONG) == "…/evicts.py:FewestDemand…e=16)+guard(warm=3)"


def test_letters_that_the_font_lacks_are_marked_and_not_warned_about():
    assert short("tab\there, line\nthere, 専門家") == "tab\ufffdhere, line\ufffdthere, \ufffd\ufffd\ufffd"
    assert short("größer ≥ 25 %") == "größer ≥ 25 %"


def test_an_inline_figure_names_nothing_outside_and_takes_its_colours_from_the_page():
    raw = """<?xml version="1.0"?><!DOCTYPE svg SYSTEM "http://www.w3.org/x.dtd">
    <svg xmlns:xlink="http://www.w3.org/1999/xlink" width="10pt" height="20pt" viewBox="0 0 10 20" xmlns="http://www.w3.org/2000/svg">
    <metadata><a href="http://purl.org/"/></metadata><defs><path id="p1" style="fill: #1f2328"/></defs>
    <use xlink:href="#p1" clip-path="url(#p1)" style="stroke: #123456"/></svg>"""
    text = inline_svg(raw, "fig")
    assert text.startswith('<svg viewBox="0 0 10 20">')
    assert "http" not in text
    assert re.findall(r'(?:id="|href="#|url\(#)([\w-]+)', text) == ["fig-p1"] * 3
    assert "fill: var(--ink)" in text
    assert "#123456" in text
