"""Rows -> sections: the rows of one trace under one setting, which may share a figure, by policy, size, look-ahead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from . import metrics
from .errors import BadResult
from .rows import OPTIONS, Row

# Everything that is not an axis of the figures: rows that differ in one of these are never drawn together.
SETTING = tuple(
    name
    for name in OPTIONS
    if name not in ("policy", "slots", "slots_asked", "capacity_bytes", "width", "predictor", "horizon")
)
FORESIGHT_POLICIES = {"opt", "belady"}
FORESIGHT_PREDICTORS = {"oracle"}  # not `noisy`, which stands for a real predictor of such a recall


class Look(NamedTuple):
    """A look-ahead: how many predictions, whose, how far ahead. Width 0 has no predictor."""

    width: int
    predictor: str
    horizon: int


class Size(NamedTuple):
    """A pool size: slots per pool (the mean, where layers got different numbers) and what they ask for in VRAM."""

    slots: float
    pool_bytes: int | None  # of all layers together; None if the row size is unknown
    text: str

    def __str__(self) -> str:
        return self.text


class Key(NamedTuple):
    policy: str
    size: Size
    look: Look


def base_name(policy: str) -> str:
    """The eviction order of a policy's spelling: 'lfru(half_life=16)+guard' -> 'lfru'."""
    return re.split(r"[(+]", policy, maxsplit=1)[0]


def without_guard(policy: str) -> str:
    """The spelling less its guard: at width 0 both decide the same, for a guard vets look-ahead alone."""
    return re.sub(r"\+guard(\([^)]*\))?", "", policy)


def is_bound(policy: str) -> bool:
    """Whether the policy knows the future, so that it can bound others but not win."""
    return base_name(policy) in FORESIGHT_POLICIES


@dataclass(frozen=True, eq=False)
class Section:
    """The rows of one trace under one setting."""

    rows: list[Row]
    differs: dict[str, Any] = field(default_factory=dict)  # the options that set it apart from its sibling sections

    @property
    def label(self) -> str:
        return "SIMULATED"

    @property
    def about(self) -> str:
        return f"contract {self.first['contract']} · scope {self.first['scope']}"

    @property
    def first(self) -> Row:
        return self.rows[0]

    @cached_property
    def at(self) -> dict[Key, Row]:
        """The row of each (policy, size, look-ahead)."""
        out: dict[Key, Row] = {}
        for row in self.rows:
            out.setdefault(Key(row["policy"], size_of(row), _look(row)), row)
        return out

    @cached_property
    def sizes(self) -> list[Size]:
        """Ascending."""
        return sorted({key.size for key in self.at}, key=lambda size: (size.slots, size.pool_bytes or 0))

    @cached_property
    def policies(self) -> list[str]:
        """The policies that could win, in file order. Those that know the future may only if they are alone."""
        names = list(dict.fromkeys(row["policy"] for row in self.rows))
        return [name for name in names if not is_bound(name)] or names

    @cached_property
    def looks(self) -> list[Look]:
        """Look-aheads of these policies that are possible in life, narrow first."""
        looks = {key.look for key in self.at if key.policy in self.policies}
        return sorted(look for look in looks if base_name(look.predictor) not in FORESIGHT_PREDICTORS)

    @cached_property
    def bound(self) -> str | None:
        """The policy that bounds the others without prefetch, if it was run."""
        return next((row["policy"] for row in self.rows if base_name(row["policy"]) == "opt"), None)

    @cached_property
    def reference(self) -> str | None:
        """What the others are held against: plain `lru`, which most engines ship."""
        return next((row["policy"] for row in self.rows if row["policy"] == "lru" and row["width"] == 0), None)

    def row(self, policy: str | None, size: Size, look: Look) -> Row | None:
        return self.at.get(Key(policy, size, look)) if policy else None

    def field(self, look: Look) -> list[str]:
        """Policies to set side by side: at width 0 a guard changes nothing, so the plain form stands for both."""
        here = [policy for policy in self.policies if any(key.policy == policy and key.look == look for key in self.at)]
        return (
            here
            if look.width
            else [policy for policy in here if without_guard(policy) not in here or without_guard(policy) == policy]
        )

    @cached_property
    def shown(self) -> Size:
        """The size of the figures that show one size: the nearest to a quarter of the experts."""
        return min(self.sizes, key=lambda size: abs(self.share(size) - 0.25))

    @cached_property
    def plain(self) -> Look:
        """No look-ahead, or the narrowest that was run."""
        return self.looks[0]

    @cached_property
    def best_look(self) -> Look:
        """The look-ahead whose best policy hits most at the shown size."""

        def best(look: Look) -> float:
            rows = [self.row(policy, self.shown, look) for policy in self.policies]
            return max((metrics.hit_rate(row) for row in rows if row), default=-1.0)

        return max(self.looks, key=best)

    def look_name(self, look: Look) -> str:
        """'width 4', with the predictor and the horizon where they vary or are unusual."""
        if not look.width:
            return "width 0"
        others = [other for other in self.looks if other.width]
        words = [f"width {look.width}"]
        if look.predictor != "trace" or len({other.predictor for other in others}) > 1:
            words.append(look.predictor)
        if look.horizon != 1 or len({other.horizon for other in others}) > 1:
            words.append(f"horizon {look.horizon}")
        return ", ".join(words)

    @property
    def pool_word(self) -> str:
        return "per layer" if self.first["scope"] == "layer" else "in all"

    @property
    def keys(self) -> int:
        """Rows that a pool could hold at most."""
        return self.first["n_experts"] * (1 if self.first["scope"] == "layer" else self.first["n_layers"])

    @property
    def cycle_slots(self) -> int:
        """One token cycle in slots of a pool: what one token reads."""
        return self.first["top_k"] * (1 if self.first["scope"] == "layer" else self.first["n_layers"])

    def share(self, size: Size) -> float:
        return size.slots / self.keys

    def where(self, size: Size) -> str:
        """'32 of 128 slots per layer (25 %)', or '8GiB of VRAM (32 of 128 slots per layer, 25 %)' if so asked."""
        slots, share = f"{size} of {self.keys} slots {self.pool_word}", f"{100 * self.share(size):.3g} %"
        asked = self.budget(size)
        return f"{asked} of VRAM ({slots}, {share})" if asked else f"{slots} ({share})"

    def budget(self, size: Size) -> str:
        """The VRAM that was asked for, as it was written; empty if slots were."""
        asked = next((row["slots_asked"] for key, row in self.at.items() if key.size == size), None) or ""
        return "" if re.fullmatch(r"[0-9.%, ]+", asked) else asked

    @property
    def title(self) -> str:
        return ", ".join([self.first["trace"], *(f"{name} {value}" for name, value in self.differs.items())])


def sections(rows: Sequence[Row]) -> list[Section]:
    """One section per trace and setting, in file order. Traces of one name are told apart by their hash."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["content_sha256"], *(row[name] for name in SETTING)), []).append(row)
    out = []
    for key, members in groups.items():
        siblings = [other for other in groups if other[0] == key[0]]
        varying = [name for i, name in enumerate(SETTING, 1) if len({other[i] for other in siblings}) > 1]
        differs = {name: metrics.DASH if members[0][name] is None else members[0][name] for name in varying}
        if any(row["trace"] == members[0]["trace"] and row["content_sha256"] != key[0] for row in rows):
            differs = {"sha256": key[0][:8]} | differs
        section = Section(members, differs)
        if not section.looks:
            raise BadResult(
                f"{members[0]['file']}: {members[0]['trace']} was replayed with predictors that know the future alone; "
                "add a width of 0"
            )
        out.append(section)
    return out


def size_of(row: Row) -> Size:
    """The size that `row` was granted. A pool of bytes counts as the slots that it would be with rows of mean size."""
    n_bytes, slots, by_layer = row["capacity_bytes"], row["slots"], row["slots_by_layer"]
    if by_layer and len(set(by_layer)) > 1:
        return Size(sum(by_layer) / len(by_layer), n_bytes, f"{min(by_layer)}–{max(by_layer)}")
    if slots is not None:
        return Size(float(slots), n_bytes, str(slots))
    if n_bytes is None or not row["token_cycle_bytes"]:
        raise BadResult(f"{row['file']} row {row['index']}: neither slots nor bytes of the pool; no sweep result")
    rows = n_bytes * row["n_layers"] * row["top_k"] / row["token_cycle_bytes"]
    return Size(rows / (1 if row["scope"] == "global" else row["n_layers"]), n_bytes, f"≈{rows:.0f}")


def _look(row: Row) -> Look:
    return Look(row["width"], row["predictor"], row["horizon"]) if row["width"] else Look(0, "", 1)
