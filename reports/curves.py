"""Rows of a section -> the curves, names and titles that several figures share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import metrics
from .rows import Row
from .sections import FORESIGHT_PREDICTORS, Look, Section, Size, without_guard

Curves = dict[str, dict[Size, float]]  # policy -> size -> value


def curves_of(section: Section, look: Look, value: Callable[[Row], float], *, bounds: bool = False) -> Curves:
    """`value` by policy and size at `look`; with `bounds` also of what knows the future, run without look-ahead."""
    at = dict.fromkeys(section.field(look), look)
    if bounds:
        at |= {row["policy"]: section.plain for row in section.rows if row["policy"] not in section.policies}
    out = {}
    for policy, its_look in at.items():
        rows = {size: section.row(policy, size, its_look) for size in section.sizes}
        out[policy] = {size: value(row) for size, row in rows.items() if row}
    return {policy: curve for policy, curve in out.items() if curve}


def foresight(section: Section, look: Look) -> Curves:
    """Best hit rates with an oracle of the same width; at the plain look-ahead, also of widths without a figure."""
    out: Curves = {}
    widths = {other.width for other in section.looks}
    for oracle in sorted({key.look for key in section.at if key.look.predictor in FORESIGHT_PREDICTORS}):
        if oracle.width == look.width or (look == section.plain and oracle.width not in widths):
            rows = {
                size: [row for policy in section.policies if (row := section.row(policy, size, oracle))]
                for size in section.sizes
            }
            name = f"oracle look-ahead, width {oracle.width}"
            out[name] = {size: max(map(metrics.hit_rate, found)) for size, found in rows.items() if found}
    return out


def less(curves: Curves, base: Callable[[str, Size], float | None]) -> Curves:
    """`curves` minus `base(policy, size)`, where there is one."""
    out = {}
    for policy, curve in curves.items():
        pairs = {size: (value, base(policy, size)) for size, value in curve.items()}
        out[policy] = {size: value - other for size, (value, other) in pairs.items() if other is not None}
    return {policy: curve for policy, curve in out.items() if curve}


def whole(rate: Callable[[Any, Any], Any]) -> Callable[[Row], float]:
    """A rate as a function of a row's own counters."""
    return lambda row: rate(row, metrics.tokens_of(row, row))


def bytes_per_load(section: Section) -> float | None:
    """Bytes of one load if all rows of the section agree on it: then one axis can show both."""
    known = [row for row in section.rows if row["bytes_moved"] is not None and row["fills"]]
    found = {row["bytes_moved"] / row["fills"] for row in known}
    return found.pop() if len(found) == 1 else None


def ranked(section: Section, size: Size, look: Look) -> list[Row]:
    """Rows of the policies that could win, most hits first. Ties: fewer loads, shorter spelling, alphabet."""
    rows = [row for policy in section.field(look) if (row := section.row(policy, size, look))]
    return sorted(rows, key=lambda row: (-row["hits"], row["fills"], len(row["policy"]), row["policy"]))


def base_row(section: Section, policy: str, size: Size) -> Row | None:
    """The row of the same decisions without look-ahead: of the policy, or of the policy less its guard."""
    plain = section.plain
    return section.row(policy, size, plain) or section.row(without_guard(policy), size, plain)


def drawn_looks(section: Section) -> list[Look]:
    """Look-aheads with figures of their own: all of up to three, else the narrowest, the best and the last."""
    if len(section.looks) <= 3:
        return section.looks
    return sorted({section.plain, section.best_look, section.looks[-1]})


def slug(section: Section, look: Look) -> str:
    """'w4', 'w4-previous': for file names."""
    return section.look_name(look).replace("width ", "w").replace(", ", "-").replace(" ", "")
