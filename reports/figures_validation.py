"""Figures of a validation: predicted against measured, errors, pairs of policies, residuals by term, and the blocks."""

from __future__ import annotations

from collections.abc import Iterator

from . import metrics
from .charts_lines import Curve, curves, plain_numbers
from .groups import Groups
from .style import LIGHT, Panel, Picture, drawn, first_of, short
from .validations import STRATA, TERMS, Validation

LOOKS = {"cold": ("c4", "s"), "hot": ("c1", "o"), "link": ("c2", "^"), "host": ("c3", "D")}
MOST = 12  # configurations or pairs of one figure; the tables have all
ERRORS = {"price": ("c0", ""), "fitted line": ("grey2", "////")}


def validation_figures(found: Validation, prefix: str = "") -> dict[str, list[Picture]]:
    """Every figure by part of the page; a part without data is empty."""
    parts = {"against": (scatter, errors), "pairs": (pairs,), "terms": (terms,), "blocks": (blocks,)}
    return {
        name: drawn(lambda draws=draws: [picture for draw in draws for picture in draw(found, prefix)])
        for name, draws in parts.items()
    }


def scatter(found: Validation, prefix: str) -> Iterator[Picture]:
    """Predicted against measured tokens per second, with the line on which both are one."""
    from matplotlib.lines import Line2D

    used = [name for name in STRATA if any(row["stratum"] == name for row in found.rows)]
    legend = [f"bound by the {STRATA[name]}" for name in used] + ["predicted = measured"]
    panel = Panel(found, "Predicted against measured tokens/s", height=3.4, legend=legend)
    axes, every, told = panel.axes, [], []
    for row, name in zip(found.rows, found.names, strict=True):
        x, y = row["measured"], row["predicted"]
        (low, high), (below, above) = row["measured_interval"] or (x, x), row["predicted_interval"] or (y, y)
        colour, marker = LOOKS[row["stratum"]]
        axes.errorbar(
            x, y, xerr=[[max(0, x - low)], [max(0, high - x)]], yerr=[[max(0, y - below)], [max(0, above - y)]],
            color=LIGHT[colour], marker=marker, markersize=5.5, markeredgecolor=LIGHT["paper"], markeredgewidth=0.5,
            elinewidth=0.8, capsize=1.5, zorder=3,
        )  # fmt: skip
        every += [x, y, low, high, below, above]
        told.append(f"{name}: {metrics.number(y)} predicted, {metrics.number(x)} measured")
    low, high = 0.9 * min(every), 1.1 * max(every)
    if low > 0 and high / low > 20:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.plot((low, high), (low, high), color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 2)), zorder=1.5)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis, logarithmic=axes.get_xscale() == "log")
    axes.set_xlabel("measured tokens/s")
    axes.set_ylabel(f"predicted tokens/s ({found.priced})")
    handles = [
        Line2D([], [], linestyle="", marker=LOOKS[name][1], color=LIGHT[LOOKS[name][0]], label=text)
        for name, text in zip(used, legend, strict=False)
    ]
    panel.legend([*handles, Line2D([], [], color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 2)), label=legend[-1])])
    yield panel.picture(
        f"{prefix}predicted", alt=f"Predicted against measured tokens/s. {'; '.join(told[:40])}.",
        caption="Bars: 95 %. Sideways of the median over blocks; up and down of another sample of the same workload, "
        "which these runs were not, so a bar that misses the line is no error by itself.",
    )  # fmt: skip


def errors(found: Validation, prefix: str) -> Iterator[Picture]:
    """How far each price is off, beside the fitted line: the largest errors first."""
    order = sorted(range(len(found.rows)), key=lambda i: -abs(found.rows[i]["error"]))[:MOST]
    groups = Groups(found, "Error of tokens/s", {found.names[i]: list(ERRORS) for i in order}, right=0.9)
    told = []
    for i in order:
        row, name = found.rows[i], found.names[i]
        values = 100 * row["error"], 100 * (row["baseline"] / row["measured"] - 1)
        for line, (value, look) in enumerate(zip(values, ERRORS.values(), strict=True)):
            groups.bar(name, line, 0, value, *look)
            groups.said(name, line, max(value, 0), f"{value:+.1f} %".replace("-", "−"))
        told.append(f"{name}: {values[0]:+.1f} %, of the line {values[1]:+.1f} %")
    groups.axes.axvline(0, color=LIGHT["ink"], linewidth=1, zorder=1.5)
    groups.axes.set_xlabel("predicted less measured, % of measured")
    yield groups.panel.picture(
        f"{prefix}errors", alt=f"Error of predicted tokens/s. {'; '.join(told)}.",
        caption="The line is a + b · misses + c · loads, fitted to these very measurements; prices are fitted to none."
        + first_of(len(order), len(found.rows), "configurations"),
    )  # fmt: skip


def pairs(found: Validation, prefix: str) -> Iterator[Picture]:
    """Policies against each other: the measured gain with its interval, and what the prices say."""
    every = found.found["pairs"]["each"]
    order = sorted(every, key=lambda pair: (not pair["decided"], -abs(pair["measured"])))[:MOST]
    if not order:
        return
    names = [pair_name(found, pair) for pair in order]
    groups = Groups(found, "Policies against each other", {name: [""] for name in dict.fromkeys(names)}, right=1.1)
    told = []
    for name, pair in zip(names, order, strict=True):
        y, gain, said = groups.at[name, 0], 100 * pair["measured"], 100 * pair["predicted"]
        low, high = (100 * end for end in pair["interval"] or (pair["measured"],) * 2)
        groups.axes.errorbar(
            gain, y, xerr=[[max(0, gain - low)], [max(0, high - gain)]], color=LIGHT["ink"], marker="|", markersize=8,
            elinewidth=1.2, capsize=2.5,
        )  # fmt: skip
        wrong = pair["wrong_sign"] or pair["wrong_size"]
        groups.axes.plot(said, y, linestyle="", marker="D", markersize=5, color=LIGHT["bad" if wrong else "c0"])
        word = "wrong sign" if pair["wrong_sign"] else "wrong size" if wrong else ""
        groups.said(name, 0, max(high, said), word or ("right" if pair["decided"] else "undecided"))
        between = f" ({low:+.1f} to {high:+.1f})" if pair["interval"] else ""
        told.append(f"{name}: measured {gain:+.1f} %{between}, predicted {said:+.1f} %")
    groups.axes.axvline(0, color=LIGHT["ink"], linewidth=1, linestyle=(0, (4, 2)), zorder=1.5)
    groups.axes.set_xlabel("% more tokens/s than the other")
    yield groups.panel.picture(
        f"{prefix}pairs", alt=f"Policies against each other. {'; '.join(told)}.",
        caption="Line: measured, 95 %; diamond: predicted. Equal in everything but the policy. A pair is decided where "
        "the measured interval excludes 0; then the prediction must have its sign, and its size within a quarter or "
        "the noise." + first_of(len(order), len(every), "pairs"),
    )  # fmt: skip


def pair_name(found: Validation, pair: dict) -> str:
    """'lru over lfru: 25% slots, width 0, overlap on'."""
    first, second = (found.rows[pair[name]]["policy"] for name in ("first", "second"))
    rest = found.names[pair["first"]].removeprefix(f"{first}, ")
    return f"{first} over {second}: {rest}"


def terms(found: Validation, prefix: str) -> Iterator[Picture]:
    """Predicted less measured seconds by term, shares of the run: the median, and from the least to the most."""
    groups = Groups(found, "What is off", {"median of all configurations": list(TERMS.values())}, right=0.9)
    told = []
    for i, (term, text) in enumerate(TERMS.items()):
        each = [100 * (row["terms"][term]["predicted"] - row["terms"][term]["measured"]) for row in found.rows]
        middle, low, high = 100 * found.found["terms"][term], min(each), max(each)
        name = "median of all configurations"
        groups.bar(name, i, 0, middle, "bad" if middle > 0 else "c0")
        groups.axes.plot((low, high), [groups.at[name, i]] * 2, color=LIGHT["ink"], linewidth=1, marker="|")
        groups.said(name, i, max(high, 0), f"{middle:+.1f} %".replace("-", "−"))
        told.append(f"{text} {middle:+.1f} % ({low:+.1f} to {high:+.1f})")
    groups.axes.axvline(0, color=LIGHT["ink"], linewidth=1, zorder=1.5)
    groups.axes.set_xlabel("predicted less measured, % of the run's seconds")
    yield groups.panel.picture(
        f"{prefix}terms", alt=f"Residuals by term. {'; '.join(told)}.",
        caption="Of the run that was timed tick by tick. Right: predicted too long. The lines span all configurations.",
    )  # fmt: skip


def blocks(found: Validation, prefix: str) -> Iterator[Picture]:
    """What the sentinel reached in each block."""
    each = [block["tokens_per_s"][0] for block in found.found["each_block"]]
    if len(each) < 2 or found.parts or len({len(runs) for runs in each}) > 1:
        return
    numbers = list(range(1, len(each) + 1))
    lines = {
        ("in its turn" if i == 0 else f"repeat {i}"): Curve(numbers, [runs[i] for runs in each])
        for i in range(len(each[0]))
    }
    yield curves(
        found, f"{prefix}blocks", f"The sentinel: {short(found.names[0], 48)}", lines, labels=("block", "tokens/s"),
        ticks=numbers,
        caption=f"The same configuration in every block: what moves here is the machine. "
        f"{found.found['blocks_dropped']} blocks were dropped as it was off by over 3 % in them.",
    )  # fmt: skip
