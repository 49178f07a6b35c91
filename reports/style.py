"""How figures look: sizes, colours for colour-blind readers and for light and dark paper, the way to PNG and SVG.

A figure is laid out in inches by hand: the legend has its own strip below the axes, so it covers no data and no
layout engine is needed (one costs more than the drawing). Colours are drawn as seen on light paper; in the inline
SVG each becomes a CSS variable, which the page sets for light, dark and print.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from .sections import Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name: (on light paper, on dark paper). c0..c6 tell policies apart, together with a marker and a dash; they came out of
# a search for the widest smallest distance, as seen by normal, red-blind, green-blind and blue-blind eyes.
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9aa4af"),
    "line": ("#d1d9e0", "#3d444d"),
    "paper": ("#ffffff", "#0d1117"),
    "c0": ("#003cb0", "#3b7fc9"),
    "c1": ("#f76007", "#ff4920"),
    "c2": ("#4e996b", "#00d36b"),
    "c3": ("#ad0079", "#bf5c7a"),
    "c4": ("#0093cb", "#6ef1f4"),
    "c5": ("#653912", "#ffd909"),
    "c6": ("#6b00ff", "#8d59ff"),
    "good": ("#00795a", "#2fb58f"),
    "fair": ("#7cc4ad", "#1c6e57"),
    "bad": ("#c75000", "#e8772e"),
    "pale": ("#dfe4e9", "#2d333b"),
    "grey1": ("#b9c1ca", "#4c545d"),
    "grey2": ("#929ca6", "#6b747e"),
    "grey3": ("#6b7580", "#8d96a0"),
    "grey4": ("#454d56", "#b3bcc5"),
}
LIGHT = {name: light for name, (light, dark) in COLOURS.items()}
MARKERS, DASHES = "os^DvPX<>ph*", ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))
DPI, WIDTH, FOOT = 170, 4.9, 0.27  # pixels an inch, inches, inches of the foot
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9, "text.parse_math": False, "text.color": LIGHT["ink"],
    "axes.labelpad": 3, "axes.edgecolor": LIGHT["grey2"], "axes.labelcolor": LIGHT["ink"], "axes.facecolor": "none",
    "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": LIGHT["line"], "grid.linewidth": 0.6, "xtick.color": LIGHT["grey3"], "ytick.color": LIGHT["grey3"],
    "xtick.labelcolor": LIGHT["ink"], "ytick.labelcolor": LIGHT["ink"], "lines.linewidth": 1.5, "lines.markersize": 5,
    "legend.frameon": False, "hatch.linewidth": 0.7, "svg.fonttype": "path", "figure.facecolor": "none",
}  # fmt: skip


class Subject(Protocol):
    """What a figure is about, as its foot says: a section, runs, a machine."""

    @property
    def label(self) -> str:
        """MEASURED, SIMULATED or ESTIMATED, or two of them where it compares."""
        ...

    @property
    def title(self) -> str: ...

    @property
    def about(self) -> str:
        """What numbers must have in common to be compared."""
        ...


@dataclass(frozen=True)
class Picture:
    """A finished figure."""

    name: str  # of the file, without suffix; unique in a report
    title: str
    alt: str  # what it shows, for who does not see it
    caption: str
    png: bytes
    svg: str  # inline, coloured by the page


def look_of(section: Section, names: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Line properties by policy, the same in every figure of a section. What knows the future (and whatever else is in
    `names`) is dashed and has no marker; the bound is black."""
    out: dict[str, dict[str, Any]] = {}
    for policy in dict.fromkeys([*(row["policy"] for row in section.rows), *names]):
        if policy not in section.policies:
            colour = "ink" if policy == section.bound else "grey3"
            before = sum("marker" not in style for style in out.values())
            dash = (5, 2) if policy == section.bound else (4, 1, *(1, 1) * (before + 1))  # a dash and so many dots
            out[policy] = {"color": LIGHT[colour], "linestyle": (0, dash), "linewidth": 1.8}
            continue
        i = section.policies.index(policy)
        out[policy] = {
            "color": LIGHT[f"c{i % 7}"], "marker": MARKERS[i % 12], "linestyle": DASHES[i // 7 % 3],
            "markeredgecolor": LIGHT["paper"], "markeredgewidth": 0.5,
        }  # fmt: skip
    return out


def first_of(n: int, of: int, what: str) -> str:
    """What the caption of a figure of `n` out of `of` adds, '' where it shows all."""
    return f" Shown are {n} of {of} {what}; the table has all." if n < of else ""


def bound_name(policy: str, phase: str = "all") -> str:
    """The label of a policy that knows the future; it decides for the whole run, whichever phase is reported."""
    if not policy.startswith("opt"):
        return f"{policy} (knows the future)"
    return f"{policy}: bound without prefetch" if phase == "all" else f"{policy} over the whole run"


@cache
def _font(weight: str = "normal") -> Any:
    from matplotlib import font_manager

    return font_manager.get_font(font_manager.findfont(f"DejaVu Sans:{weight}"))


@cache
def _drawable() -> frozenset[int]:
    return frozenset(_font().get_charmap())


def inches(text: str, points: float, weight: str = "normal") -> float:
    """How wide `text` is at that font size."""
    font = _font(weight)
    font.set_size(points, 72)
    font.set_text(text)
    return font.get_width_height()[0] / 64 / 72


def short(text: str, limit: int = 44) -> str:
    """Text for a figure: folders, then the middle cut out if it is too long; a mark for each letter our font lacks."""
    text = "".join(char if ord(char) in _drawable() and char.isprintable() else "\ufffd" for char in text)
    if len(text) > limit:
        text = re.sub(r"^.*/(?=[^/]+\.py:)", "…/", text)
    return text if len(text) <= limit else f"{text[: limit - 20]}…{text[-19:]}"


class Panel:
    """One figure with one pair of axes: title above, legend in a strip below, in its foot where numbers come from."""

    def __init__(
        self, section: Subject, title: str, *, height: float = 2.6, legend: Sequence[str] = (),
        left: float = 0.58, right: float = 0.2, top: float = 0.4, bottom: float = 0.42,
    ) -> None:  # fmt: skip
        """`legend` is what the legend will say; sizes are inches, `height` that of the axes."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.section, self.title = section, title
        self.columns = _columns(legend)
        strip = 0.158 * -(-len(legend) // self.columns) + 0.13 if legend else 0.0
        self.height = top + height + bottom + strip + FOOT
        self.figure: Figure = Figure(figsize=(WIDTH, self.height))
        FigureCanvasAgg(self.figure)
        low = (bottom + strip + FOOT) / self.height
        self.axes: Axes = self.figure.add_axes(
            (left / WIDTH, low, (WIDTH - left - right) / WIDTH, height / self.height)
        )
        self.width_in, self.height_in, self.left, self._strip = WIDTH - left - right, height, left, strip
        points = 10.5 * min(1, (WIDTH - 0.2) / inches(title, 10.5, "bold"))
        self.figure.text(0.1 / WIDTH, 1 - 0.08 / self.height, title, va="top", fontsize=points, fontweight="bold")

    def legend(self, handles: Sequence[Any]) -> None:
        """Puts the legend into its strip, column by column."""
        if handles:
            self.figure.legend(
                handles=handles, loc="lower left", bbox_to_anchor=(0.06 / WIDTH, (FOOT + 0.01) / self.height),
                ncols=self.columns, fontsize=8, labelspacing=0.35, borderaxespad=0, borderpad=0, columnspacing=1.2,
                handlelength=2.6,
            )  # fmt: skip

    def _keep_inside(self) -> None:
        """Moves the sides of the axes inwards by what their labels stick out: how wide ticks are is known only now."""
        canvas: Any = self.figure.canvas
        box, (x, y, width, height) = self.axes.get_tightbbox(canvas.get_renderer()), self.axes.get_position().bounds
        if box:
            left, right = (max(0.0, out / self.figure.dpi + 0.05) for out in (-box.x0, box.x1 - self.figure.bbox.width))
            self.axes.set_position((x + left / WIDTH, y, width - (left + right) / WIDTH, height))

    def picture(self, name: str, *, alt: str, caption: str, note: str = "") -> Picture:
        """Draws it. `note` joins the foot line, which says where the numbers come from."""
        label = self.section.label
        alt = f"{label}. {alt}"
        foot = f"{label} · {short(self.section.title, 40)} · {self.section.about}"
        if note:
            foot += " · " + note if inches(f"{foot} · {note}", 6.8) < WIDTH - 0.2 else "\n" + short(note, 96)
        self.figure.text(
            0.1 / WIDTH, 0.05 / self.height, foot, va="bottom", fontsize=6.8 if "\n" not in foot else 6.2,
            linespacing=1.1, color=LIGHT["muted"],
        )  # fmt: skip
        self._keep_inside()
        png, svg = io.BytesIO(), io.StringIO()
        self.figure.savefig(
            png,
            format="png",
            dpi=DPI,
            facecolor=LIGHT["paper"],
            metadata={"Software": "slotwise", "Description": alt},
        )
        self.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        return Picture(name, self.title, alt, caption, png.getvalue(), inline_svg(svg.getvalue(), name))


def _columns(legend: Sequence[str]) -> int:
    """Two, if the legend then fits into the width of the figure."""
    half = -(-len(legend) // 2)
    columns = [part for part in (legend[:half], legend[half:]) if part]
    wide = sum(max(inches(text, 8) for text in part) + 0.4 for part in columns) + 0.2
    return 2 if wide < WIDTH else 1


def inline_svg(text: str, name: str) -> str:
    """matplotlib's SVG -> an element for the page: no outside names, ids unique to the figure, colours as variables."""
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    variables = {light: f"var(--{name})" for name, light in LIGHT.items()}
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: variables.get(match[0], match[0]), text)
    return re.sub(r"\s*\n\s*", "\n", text)


def drawn(draw: Callable[[], list[Picture]]) -> list[Picture]:
    """Runs `draw` under our settings; the ids of the SVG depend on nothing but the picture."""
    import matplotlib

    with matplotlib.rc_context({**RC, "svg.hashsalt": "slotwise"}):
        return draw()


def css_colours(which: int) -> str:
    """The colour variables for light (0) or dark (1) paper."""
    return "".join(f"--{name}:{pair[which]};" for name, pair in COLOURS.items())
