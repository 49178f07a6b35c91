"""The figures of a machine file, what each may be, and checks of single entries; `machine.py` puts them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from .errors import BadOption

MOST_SPREAD = 10  # times the value


class Range(NamedTuple):
    """What a figure may be, both ends included, and what it is."""

    low: float
    high: float
    unit: str
    meaning: str


def _seconds(meaning: str, high: float = 0.1) -> Range:
    return Range(1e-9, high, "seconds", meaning)


def _rate(meaning: str) -> Range:
    return Range(1e6, 1e14, "bytes per second", meaning)


FIGURES: Mapping[str, Range] = {
    "ids_s": _seconds("from a layer's last work until the host has the next one's ids"),
    "policy_s": _seconds("the host decides about a layer's demand, and sorts the work"),
    "policy_ahead_s": _seconds("the host decides about a layer's predictions"),
    "submit_cold_s": _seconds("the host hands a job to the cold chain"),
    "submit_hot_s": _seconds("the host launches the hot chain once"),
    "submit_batch_s": _seconds("the host starts a batch of copies, beyond its rows"),
    "submit_load_s": _seconds("the same for each row of the batch"),
    "submit_merge_s": _seconds("the host launches the merge"),
    "submit_next_s": _seconds("the host launches what follows, until it asks for the next layer's ids"),
    "link_host_s": _seconds("the host looks after copies, where some are under way"),
    "link_ids_s": _seconds("by how much later ids then come: words cross the same link"),
    "link_cold_s": _seconds("by how much later the device then has cold results"),
    "merge_s": _seconds("the device merges, beyond its pairs"),
    "merge_pair_s": _seconds("the same for each (token, expert) pair", 1e-3),
    "dense_s": _seconds("the device's work of a layer outside its experts, in this executor a norm"),
    "step_s": _seconds("the host between two steps: loop, sampling, telemetry"),
    "copy_demand_batch_s": _seconds("the link before the first byte of a batch of demand loads"),
    "copy_demand_row_s": _seconds("the same for each row of the batch"),
    "copy_demand_bytes_per_s": _rate("the link within a batch of demand loads"),
    "copy_computed_bytes_per_s": _rate("the same where the cold chain computes the rows at the same time"),
    "copy_ahead_batch_s": _seconds("the link before the first byte of a batch of speculative loads"),
    "copy_ahead_row_s": _seconds("the same for each row of the batch"),
    "copy_ahead_bytes_per_s": _rate("the link within a batch of speculative loads"),
    "hot_by_most": Range(
        0, 1, "of the way", "hot chain: from rows' mean tokens to the most of any, priced for all rows"
    ),
    "cold_by_most": Range(0, 1, "of the way", "the same as the cold chain does"),
    "own_caches_bytes": Range(0, 1e12, "bytes", "the cores' own caches together"),
    "hot_base_s": _seconds("the hot chain beyond its rows, where no sheet is given"),
    "cold_base_s": _seconds("the cold chain beyond its rows, where no sheet is given"),
    "device_read_bytes_per_s": _rate("the hot chain reads rows"),
    "host_read_bytes_per_s": _rate("the cold chain reads rows"),
    "device_compute_bytes_per_s": _rate("the hot chain computes: bytes of rows times the tokens of each"),
    "host_compute_bytes_per_s": _rate("the cold chain computes: bytes of rows times the tokens of each"),
}
POLICY_FIGURES = ("policy_s", "policy_ahead_s")  # also kept for single policies
SHARE = Range(0.01, 1.0, "of its speed alone", "")
SHARES: Mapping[str, str] = {
    "cold_with_link": "speed of the cold chain while the link works",
    "cold_with_own": "speed of the cold chain while the very rows that it computes are loaded",
    "link_with_cold": "speed of the link while the cold chain works",
    "hot_with_link": "speed of the hot chain while the link works",
}
BESIDE: Mapping[str, Range] = {  # what both chains at once cost, where it was measured
    "hot_with_cold": SHARE._replace(meaning="speed of the hot chain while the cold chain works"),
    "cold_with_hot": SHARE._replace(meaning="speed of the cold chain while the hot chain works"),
    "overlap_s": _seconds("what a tick with work for both takes beyond that"),
}
GAP = Range(1e-6, 100.0, "seconds", "the cold chain idle before a job")
WAKE = Range(0.0, 0.1, "seconds", "by how much later it then begins")
SHEET_SECONDS = _seconds("a chain's work", 100.0)


@dataclass(frozen=True)
class Figure:
    """A number, and the standard deviation of single measurements of it, in the same unit."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class Sheet:
    """Seconds of one chain on rows of one size, in steps of so many tokens.

    chain: `hot` or `cold`. threads: of the cold chain, None of the hot one. rows: rising numbers of rows.
    pairs_per_row: rising numbers of tokens that each row serves, [1] where tokens is 1. seconds and spread_s
    [rows][pairs_per_row].
    """

    chain: str
    row_bytes: int
    tokens: int
    rows: tuple[int, ...]
    pairs_per_row: tuple[float, ...]
    seconds: tuple[tuple[float, ...], ...]
    spread_s: tuple[tuple[float, ...], ...]
    threads: int | None = None


@dataclass(frozen=True)
class Wake:
    """How much later the cold chain begins after so long without work."""

    gap_s: float
    seconds: float
    spread_s: float = 0.0


@dataclass(frozen=True)
class Contention:
    """Shares of their own speeds that cold chain (of so many threads), link and hot chain keep beside each other."""

    threads: int
    cold_with_link: Figure
    cold_with_own: Figure
    link_with_cold: Figure
    hot_with_link: Figure


class Entries:
    """Checks of single entries, which name the file."""

    def __init__(self, where: str):
        self.where = where

    def number(self, name: str, value: Any, allowed: Range) -> float:
        if value is None:
            raise BadOption(f"{self.where}: {name} is missing; {self._rule(allowed)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadOption(f"{self.where}: {name} is {str(value)[:40]!r}; {self._rule(allowed)}")
        if not allowed.low <= value <= allowed.high:  # nan is in no range
            shown = str(value)[:40] if isinstance(value, int) else f"{value:g}"  # which may be more than a float holds
            raise BadOption(f"{self.where}: {name} is {shown}; {self._rule(allowed)}")
        return float(value)

    def _rule(self, allowed: Range) -> str:
        about = f": {allowed.meaning}" if allowed.meaning else ""
        return f"it is a number from {allowed.low:g} to {allowed.high:g} {allowed.unit}{about}"

    def spread(self, name: str, value: Any, figure: float) -> float:
        limit = MOST_SPREAD * figure
        unit = f"({MOST_SPREAD} times the value), the standard deviation of single measurements"
        return self.number(name, value, Range(0.0, limit, unit, ""))

    def figure(self, name: str, found: Any, allowed: Range) -> Figure:
        if found is not None and not isinstance(found, dict):
            raise BadOption(f'{self.where}: {name} is {str(found)[:40]!r}; write {{"value": ..., "spread": ...}}')
        value = self.number(name, (found or {}).get("value"), allowed)
        return Figure(value, self.spread(f"spread of {name}", (found or {}).get("spread"), value))

    def whole(self, name: str, value: Any, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadOption(f"{self.where}: {name} is {str(value)[:40]}; it is a whole number from 1 to {most}")
        return value

    def text(self, name: str, value: Any, *, needed: bool) -> Any:
        if not isinstance(value, str) and (needed or value is not None):
            raise BadOption(f"{self.where}: {name} is {str(value)[:40]!r}; it is a text")
        return value

    def table(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadOption(f"{self.where}: {name} is {str(value)[:40]!r}; it is an object with names")
        return value

    def each(self, name: str, found: Any, one: Any) -> tuple[Any, ...]:
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise BadOption(f"{self.where}: {name} is a list of objects")
        return tuple(one(f"{name}[{i}]", entry) for i, entry in enumerate(found))

    def rising(self, name: str, axis: str, values: Sequence[float]) -> None:
        if any(low >= high for low, high in pairwise(values)):
            raise BadOption(f"{self.where}: {name}: {axis} {list(values)} do not rise")

    def wake(self, name: str, found: dict[str, Any]) -> Wake:
        gap_s = self.number(f"{name} gap_s", found.get("gap_s"), GAP)
        seconds = self.number(f"{name} seconds", found.get("seconds"), WAKE)
        return Wake(gap_s, seconds, self.spread(f"{name} spread_s", found.get("spread_s"), max(seconds, 1e-6)))

    def contention(self, name: str, found: dict[str, Any]) -> Contention:
        threads = self.whole(f"{name} threads", found.get("threads"), 4096)
        shares = {
            key: self.figure(f"{name} {key}", found.get(key), SHARE._replace(meaning=meaning))
            for key, meaning in SHARES.items()
        }
        return Contention(threads, **shares)

    def policy(self, name: str, found: Any) -> dict[str, Figure]:
        known = self.table(name, found)
        if unknown := sorted(set(known) - set(POLICY_FIGURES)):
            raise BadOption(f"{self.where}: {name} has {unknown[0]!r}; known: {', '.join(POLICY_FIGURES)}")
        return {each: self.figure(f"{name} {each}", known.get(each), FIGURES[each]) for each in POLICY_FIGURES}

    def beside(self, name: str, found: Any) -> dict[str, Figure]:
        known = self.table(name, found)
        if unknown := sorted(set(known) - set(BESIDE)):
            raise BadOption(f"{self.where}: {name} has {unknown[0]!r}; known: {', '.join(BESIDE)}")
        return {each: self.figure(f"{name} {each}", known.get(each), allowed) for each, allowed in BESIDE.items()}

    def sheet(self, name: str, found: dict[str, Any]) -> Sheet:
        chain, threads = found.get("chain"), found.get("threads")
        if chain not in ("hot", "cold"):
            raise BadOption(f"{self.where}: {name} chain is {chain!r}; it is hot or cold")
        axes = {}
        for axis, most in (("rows", 65536), ("pairs_per_row", 1e6)):
            values = found.get(axis)
            if not isinstance(values, list) or not values:
                raise BadOption(f"{self.where}: {name} {axis} is a list of numbers")
            axes[axis] = [self.number(f"{name} {axis}", value, Range(1, most, "", "")) for value in values]
            self.rising(name, axis, axes[axis])
        grid: dict[str, list[tuple[float, ...]]] = {"seconds": [], "spread_s": []}
        for i, rows in enumerate(axes["rows"]):
            of_rows = []
            for key in grid:
                table = found.get(key)
                line = table[i] if isinstance(table, list) and i < len(table) else None
                if not isinstance(line, list) or len(line) != len(axes["pairs_per_row"]):
                    raise BadOption(
                        f"{self.where}: {name} {key} has no {len(axes['pairs_per_row'])} numbers for {rows:g} rows"
                    )
                of_rows.append(line)
            at = [f"{name} ({rows:g} rows, {pairs:g} pairs a row)" for pairs in axes["pairs_per_row"]]
            seconds = [self.number(f"{a} seconds", s, SHEET_SECONDS) for a, s in zip(at, of_rows[0], strict=True)]
            spreads = [self.spread(f"{a} spread_s", s, v) for a, s, v in zip(at, of_rows[1], seconds, strict=True)]
            grid["seconds"].append(tuple(seconds))
            grid["spread_s"].append(tuple(spreads))
        if any(not isinstance(found[key], list) or len(found[key]) != len(axes["rows"]) for key in grid):
            raise BadOption(f"{self.where}: {name} has more lines of numbers than rows")
        return Sheet(
            chain, self.whole(f"{name} row_bytes", found.get("row_bytes"), 1 << 36),
            self.whole(f"{name} tokens", found.get("tokens"), 1 << 20), tuple(int(n) for n in axes["rows"]),
            tuple(axes["pairs_per_row"]), tuple(grid["seconds"]), tuple(grid["spread_s"]),
            None if chain == "hot" else self.whole(f"{name} threads", threads, 4096),
        )  # fmt: skip
