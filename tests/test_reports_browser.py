"""The page in a real browser, at desk and phone width, in light and dark: it renders, and nothing sticks out."""

import html
import io
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_reports_rows import make_grid, write_rows

from slotwise.reports import write_report

pytestmark = pytest.mark.once

FLAGS = """--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update
--disable-sync --disable-dev-shm-usage --hide-scrollbars""".split()
# The page in a frame of a given width: a window cannot be made narrower than 500 pixels.
FRAME = """<body><iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><script>
onload = () => document.body.dataset.width = document.querySelector("iframe").contentDocument.body.scrollWidth
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    rows = make_grid(("lru", "lfru", "lfru(half_life=16)+guard", "opt"), widths=(0, 4), row_bytes=3 << 20)
    return write_report([write_rows(folder / "r.parquet", rows)], folder / "out")[0]


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Runs the browser on a page and returns what it prints. Its profile stays: the first start makes one."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on this machine: the page is not looked at in a browser")

    profile = tmp_path_factory.mktemp("browser")

    def run(page: Path, *flags: str) -> str:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout

    return run


def pixels(path: Path) -> np.ndarray:
    from matplotlib import image

    return image.imread(io.BytesIO(path.read_bytes()))[..., :3]


def test_the_browser_finds_the_winner_table_and_every_figure(browse, page):
    text = browse(page, "--dump-dom")
    table = re.search(r"<table class=\"winners\">.*?</table>", text, re.DOTALL)
    assert table
    assert table[0].count("<tr") == 1 + 4 * 2
    assert text.count("<svg") == len(list((page.parent / "figures").iterdir()))


@pytest.mark.parametrize(("scheme", "bright"), [("1", True), ("0", False)])
def test_the_screen_is_neither_blank_nor_in_the_wrong_light(browse, page, tmp_path, scheme, bright):
    shot = tmp_path / "shot.png"
    browse(page, "--window-size=1280,4000", f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={scheme}")
    seen = pixels(shot)
    assert seen.shape[:2] == (4000, 1280)
    assert (np.median(seen) > 0.9) == bright
    rows_with_ink = (np.abs(seen - np.median(seen)) > 0.3).any(axis=(1, 2)).mean()
    assert rows_with_ink > 0.5
    assert len(np.unique((seen[::3, ::3] * 15).astype(int).reshape(-1, 3), axis=0)) > 50  # lines have colours


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(browse, page, tmp_path, width):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, page=html.escape(page.read_text())))
    found = re.search(r'data-width="(\d+)"', browse(frame, "--dump-dom"))
    assert found
    assert int(found[1]) <= width


SIZES = """<body><iframe style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><script>
onload = () => {{
  const inside = document.querySelector("iframe").contentDocument, said = document.body.dataset
  said.sign = getComputedStyle(inside.querySelector(".sideways")).display
  said.figure = Math.round(inside.querySelector("figure svg").getBoundingClientRect().width)
}}
</script>"""


@pytest.mark.parametrize(("width", "sign"), [(400, "block"), (1280, "none")])
def test_a_phone_is_told_that_tables_scroll_and_shows_legends_at_their_size(browse, page, tmp_path, width, sign):
    """A figure is 470 pixels wide; at the 370 of a phone its letters of 10 pixels would be 8."""
    frame = tmp_path / "frame.html"
    frame.write_text(SIZES.format(width=width, page=html.escape(page.read_text())))
    text = browse(frame, "--dump-dom")
    assert f'data-sign="{sign}"' in text
    found = re.search(r'data-figure="(\d+)"', text)
    assert found
    assert int(found[1]) >= 460


@pytest.mark.parametrize("name", ["hit-rate-w0", "loads-w4", "trade", "predictions", "layers", "warm-up", "decode"])
def test_each_figure_has_ink_inside_and_none_at_its_rim(page, name):
    """What touches the rim of a figure is cut off."""
    seen = pixels(page.parent / "figures" / f"{name}.png")
    rim = np.concatenate([edge.reshape(-1, 3) for edge in (seen[:3], seen[-3:], seen[:, :3], seen[:, -3:])])
    assert rim.min() == 1.0
    assert (seen < 0.95).any(axis=2).mean() > 0.01
