"""The page of an advice: the answer, speed along the size of the pools, the candidates, the memory, the flags."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import metrics
from .errors import BadResult
from .style import LIGHT, Panel, Picture, css_colours, drawn, first_of, short

Advice = Mapping[str, Any]  # what `slotwise advise --json` prints
GIB = 1 << 30
SHOWN = 10  # candidates of the figure
AGAINST = {"all_cpu": "all experts on the CPU", "no_cache": "no cache, every row fetched", "bound": "opt, the bound"}


@dataclass(frozen=True)
class Sheet:
    """A table of text: the first `words` columns hold words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: int = 1
    note: str = ""
    labelled: bool = True


@dataclass(frozen=True)
class Subject:
    """What a figure's foot says that it is of."""

    title: str
    label: str
    about: str


def check_page(path: Path | str, *, force: bool = False, read: Iterable[Path | str] = ()) -> None:
    """Raises BadResult where a page cannot go, before anything is worked out. read: files that it must not replace."""
    path = Path(path)
    if path.is_dir():
        raise BadResult(f"{path}: is a folder; name a file for the page, such as advice.html")
    if path.exists() and any(Path(one).exists() and path.samefile(one) for one in read):
        raise BadResult(f"{path}: the page would replace what the advice is made from; name another file")
    if path.suffix.lower() != ".html":
        raise BadResult(
            f"{path}: a page is an HTML file, not {path.suffix or 'one of no kind'}; name it {path.stem}.html"
        )
    if path.exists() and not path.is_file():
        raise BadResult(f"{path}: is there and no file; name a file for the page, such as advice.html")
    if path.exists() and not force:
        raise BadResult(f"{path}: is there already; name another file, or replace it with --force")
    if not path.absolute().parent.is_dir():
        raise BadResult(f"{path}: there is no folder {path.parent}; make it first")
    try:
        tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as wrong:
        raise BadResult(f"{path}: no file can be written there ({wrong.strerror}); name another folder") from wrong


def write_page(advice: Advice, path: Path | str, *, force: bool = False) -> Path:
    """Writes the page, one file that needs nothing else: beside its place first, then renamed. Raises BadResult."""
    path = Path(path)
    check_page(path, force=force)
    text = html(advice)
    handle, beside = tempfile.mkstemp(prefix=f".{path.name[:32]}-", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0o022)
        os.umask(mask)
        Path(beside).chmod(0o666 & ~mask)
        Path(beside).replace(path)
    finally:
        Path(beside).unlink(missing_ok=True)
    return path


def html(advice: Advice) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("slotwise.reports", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    stands_on = (
        "By two or more runs of an engine: a step's seconds are a line in its misses."
        if advice["priced_by"] == "anchors"
        else "Replayed from a router trace and priced in seconds of a machine; nothing was timed here."
    )
    return environment.get_template("advice.html").render(
        advice=advice, stands_on=stands_on, facts=_facts(advice), pictures=drawn(lambda: _pictures(advice)),
        tables=_tables(advice), long=_long(advice), flags=_flags(advice), version=version("slotwise"),
        light=css_colours(0), dark=css_colours(1),
    )  # fmt: skip


def _facts(advice: Advice) -> list[tuple[str, str]]:
    rows = sorted(set(advice["row_bytes"]))
    row = metrics.size(rows[0]) if len(rows) == 1 else f"{metrics.size(rows[0])} to {metrics.size(rows[-1])}"
    return [
        ("model", advice["model"] or "not recorded"),
        ("shape", f"{advice['n_layers']} MoE layers × {advice['n_experts']} experts, top-{advice['top_k']}"),
        ("one expert", row),
        ("one token cycle", metrics.size(advice["token_cycle_bytes"])),
        ("machine", advice["machine"]),
        ("steps", f"{advice['phase']}, of {advice['verify_tokens']} token{'s' * (advice['verify_tokens'] > 1)}"),
    ]


def _tables(advice: Advice) -> list[Sheet]:
    memory = [(one["what"], f"{one['bytes']:+,}", _signed(one["bytes"])) for one in advice["memory"]]
    left = sum(one["bytes"] for one in advice["memory"])
    against = [(AGAINST[name], rate(one), figure(one["times"], one["times_interval"]))
               for name, one in advice["against"].items()]  # fmt: skip
    curve = [
        (metrics.size(one["pool_bytes"]), metrics.DASH if one["slots"] is None else f"{one['slots']:,}", rate(one),
         figure(one["per_gib"], one["per_gib_interval"]), metrics.percent(one["share_per_gib"]))
        for one in advice["curve"]
    ]  # fmt: skip
    return [
        Sheet("Against", ("what", "tokens/s", "times as fast"), against),
        Sheet("Along the size of the pools", ("pools", "slots", "tokens/s", "a further GiB: tokens/s", "share"),
              curve, words=0),
        Sheet("Memory", ("what", "bytes", "that is"), [*memory, ("left for experts", f"{left:+,}", _signed(left))],
              labelled=False),
    ]  # fmt: skip


def _long(advice: Advice) -> list[Sheet]:
    candidates = [
        (one["policy"], one["scope"], one["overlap"], f"{one['width']}", f"{one['chosen_by']:,.2f}", rate(one))
        for one in advice["candidates"]
    ]
    sheets = [
        Sheet("Candidates", ("policy", "pool", "overlap", "width", "tokens/s that chose", "tokens/s, judged"),
              candidates, words=3, note="In the order in which they were chosen, on the first part of the trace; "
              "speeds with an interval are of the rest."),
    ]  # fmt: skip
    if advice["by_layer"]:
        slots = [(str(layer), str(n)) for layer, n in enumerate(advice["by_layer"]["slots"])]
        sheets.append(
            Sheet("Slots by layer, divided by hits", ("MoE layer", "slots"), slots, labelled=False,
                  note=f"{figure(advice['by_layer']['gain'], advice['by_layer']['gain_interval'], 3)} times the speed "
                  "of equal slots, on the steps that divided nothing.")
        )  # fmt: skip
    return sheets


def _flags(advice: Advice) -> Sheet:
    rows = [(one["flag"], one["engine"], one["meaning"], f"{one['source']}: {one['url']}") for one in advice["flags"]]
    return Sheet("As their sources name them; not run here", ("flag", "engine", "what it means there", "source"), rows,
                 words=4, labelled=False)  # fmt: skip


def _signed(n_bytes: int) -> str:
    return f"{'-' if n_bytes < 0 else '+'}{metrics.size(abs(n_bytes))}"


def rate(one: Mapping[str, Any]) -> str:
    return figure(one["tokens_per_s"], one["tokens_per_s_interval"])


def figure(value: float | None, interval: Sequence[float] | None, digits: int = 2) -> str:
    if value is None:
        return metrics.DASH
    between = f" ({interval[0]:,.{digits}f} to {interval[1]:,.{digits}f})" if interval else ""
    return f"{value:,.{digits}f}{between}"


def _pictures(advice: Advice) -> list[Picture]:
    subject = Subject(advice["trace"], advice["label"], f"contract event · scope {advice['scope']}")
    return [_curve(advice, subject), _candidates(advice, subject)]


def _curve(advice: Advice, subject: Any) -> Picture:
    """Tokens per second against the size of the pools, with what it is to beat."""
    from matplotlib.lines import Line2D

    title = "Tokens per second along the size of the pools"
    legend = [advice["policy"], *(AGAINST[name] for name in advice["against"])]
    panel = Panel(subject, title, legend=legend)
    axes, points = panel.axes, advice["curve"]
    unit, units = (GIB, "GiB") if points[-1]["pool_bytes"] >= GIB else (1 << 20, "MiB")
    at = [one["pool_bytes"] / unit for one in points]
    known = [one["tokens_per_s_interval"] for one in points]
    if all(known):
        low, high = zip(*known, strict=True)
        axes.fill_between(at, low, high, color=LIGHT["c0"], alpha=0.15, linewidth=0)
    lines: list[dict[str, Any]] = [{"color": LIGHT["c0"], "marker": "o"}]
    axes.plot(at, [one["tokens_per_s"] for one in points], **lines[0])
    for (name, one), dash in zip(advice["against"].items(), ((1, 1.5), (5, 2), (4, 1.5, 1, 1.5)), strict=False):
        look: dict[str, Any] = {"color": LIGHT["ink" if name == "bound" else "grey3"], "linestyle": (0, dash)}
        here = advice["pool_bytes"] / unit
        if name == "bound":  # known at the size that was asked for alone
            look |= {"marker": "D", "linestyle": "none"}
            axes.plot([here], [one["tokens_per_s"]], **look)
        else:
            axes.axhline(one["tokens_per_s"], **look)
        lines.append(look)
    axes.axvline(advice["pool_bytes"] / unit, color=LIGHT["grey2"], linewidth=1)
    axes.set_xlim(0, None)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.set_xlabel(f"{units} of the pools, all layers together")
    axes.set_ylabel("tokens/s")
    panel.legend([Line2D([], [], label=short(text), **look) for text, look in zip(legend, lines, strict=True)])
    told = "; ".join(f"{metrics.size(one['pool_bytes'])} {rate(one)}" for one in points)
    return panel.picture(
        "curve", alt=f"{title}. {told}.",
        caption="The band is the 95 % interval; the thin line across stands at the pools that fit.",
    )  # fmt: skip


def _candidates(advice: Advice, subject: Any) -> Picture:
    """The candidates that chose best, by what they reach on the rest."""
    title = "Candidates, judged on the steps that chose nothing"
    some = advice["candidates"][:SHOWN]
    if len(some) < len(advice["candidates"]):
        title += f": the first {len(some)} of {len(advice['candidates'])}"
    names = [f"{short(one['policy'], 22)}, {one['scope']}, {one['width']}, {one['overlap']}" for one in some]
    panel = Panel(subject, title, height=0.27 * len(some) + 0.1, left=2.1, right=0.3)
    axes = panel.axes
    for y, one in enumerate(some):
        axes.barh(y, one["tokens_per_s"], height=0.62, color=LIGHT["c0" if y == 0 else "grey1"])
        if one["tokens_per_s_interval"]:
            axes.plot(one["tokens_per_s_interval"], [y, y], color=LIGHT["ink"], linewidth=1.2)
    axes.set_yticks(range(len(some)), names, fontsize=8)
    axes.set_ylim(-0.6, len(some) - 0.4)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tokens/s; the mark is the 95 % interval")
    told = "; ".join(f"{name}: {rate(one)}" for name, one in zip(names, some, strict=True))
    return panel.picture(
        "candidates", alt=f"{title}. {told}.",
        caption="Policy, pool, width and overlap, in the order in which the first part of the trace ranks them."
        + first_of(len(some), len(advice["candidates"]), "candidates"),
    )  # fmt: skip
