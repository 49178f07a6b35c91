"""A machine file, checked by who reads it: its figures with their spread, and the curves that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import metrics
from .charts_lines import Curve

ROWS = (1, 2, 4, 8, 16, 32, 64)  # of a batch of copies, and of chains without sheets
SIZES = (1 << 20, 4 << 20)  # of rows, where the file has no sheets that would say
MEMORY = {"hot": "device", "cold": "host"}
SHARES = {  # what is kept of its speed alone: field -> name, while
    "cold_with_link": ("cold chain", "the link works"),
    "cold_with_own": ("cold chain", "its own rows are loaded"),
    "link_with_cold": ("link", "the cold chain works"),
    "hot_with_link": ("hot chain", "the link works"),
}

BESIDE = {  # the same, where both chains at once were measured
    "hot_with_cold": ("hot chain", "the cold chain works"),
    "cold_with_hot": ("cold chain", "the hot chain works"),
}
AT_ONCE = "what a tick with work for both chains takes beyond that"


@dataclass(frozen=True, eq=False)
class MachineFile:
    """`found`: the object in the file. `meanings`: of each figure its unit and what it is."""

    file: str
    sha256: str
    found: Mapping[str, Any]
    meanings: Mapping[str, tuple[str, str]]

    @property
    def label(self) -> str:
        return self.found["label"]

    @property
    def title(self) -> str:
        return self.found["name"]

    @property
    def identity(self) -> str:
        """What a report on the same question is on: a machine may be measured again."""
        return self.title

    @property
    def about(self) -> str:
        return f"{self.found['date']} · CPU threads: {self.found['cpu_threads']}"

    def value(self, name: str) -> float:
        return self.found["figures"][name]["value"]

    def spread(self, name: str) -> float:
        return self.found["figures"][name]["spread"]

    @cached_property
    def more(self) -> dict[str, tuple[Mapping[str, float], str, str]]:
        """Figures that only some files have, by name: value and spread, unit, meaning."""
        out = {}
        for policy, figures in self.found.get("policies", {}).items():
            for name, figure in figures.items():
                out[f"{name} of {policy}"] = figure, *self.meanings.get(name, ("seconds", ""))
        for name, figure in self.found.get("overlap", {}).items():
            shown = ("of its speed alone", " while ".join(BESIDE[name])) if name in BESIDE else ("seconds", AT_ONCE)
            out[name] = figure, *shown
        return out

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of the rows that curves are drawn for."""
        return sorted({sheet["row_bytes"] for sheet in self.found["sheets"]} or SIZES)

    def sheets(self, chain: str, row_bytes: int) -> dict[int | None, list[Mapping[str, Any]]]:
        """By threads (None of the hot chain), each by rising tokens."""
        mine = [s for s in self.found["sheets"] if (s["chain"], s["row_bytes"]) == (chain, row_bytes)]
        threads = dict.fromkeys(sheet["threads"] for sheet in mine)
        return {n: sorted((s for s in mine if s["threads"] == n), key=lambda s: s["tokens"]) for n in threads}

    def chain(self, chain: str, row_bytes: int) -> Curve:
        """Microseconds by rows of one token each, as the rates say: for rows that have no sheet."""
        slower = min((f"{MEMORY[chain]}_{what}_bytes_per_s" for what in ("read", "compute")), key=self.value)
        return self._line(f"{chain}_base_s", None, slower, row_bytes)

    def copies(self, kind: str, row_bytes: int) -> Curve:
        """Microseconds of a batch of copies by its rows. kind: `demand` or `ahead`."""
        return self._line(f"copy_{kind}_batch_s", f"copy_{kind}_row_s", f"copy_{kind}_bytes_per_s", row_bytes)

    def _line(self, base: str, each: str | None, rate: str, row_bytes: int) -> Curve:
        """base + each * rows + bytes / rate; spreads as of figures that vary one by one."""
        seconds, spread = [], []
        for n in ROWS:
            moved = n * row_bytes / self.value(rate)
            seconds.append(1e6 * (self.value(base) + (n * self.value(each) if each else 0) + moved))
            off = moved * self.spread(rate) / self.value(rate)
            spread.append(1e6 * math.hypot(self.spread(base), n * self.spread(each) if each else 0, off))
        return Curve(ROWS, seconds, spread)


UNITS = {
    "seconds": ("µs", 1e6), "bytes per second": ("GB/s", 1e-9), "bytes": ("MiB", 2**-20),
    "of its speed alone": ("%", 100), "of the way": ("%", 100),
}  # fmt: skip


def written(value: float, unit: str) -> str:
    """Seconds in microseconds, rates in GB/s, sizes in MiB, shares in per cent."""
    return metrics.number(value * UNITS[unit][1])


def decoding(sheets: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Those of steps in which a row can be the only one, and serve one token; all, where there are none."""
    return [sheet for sheet in sheets if sheet["rows"][0] == sheet["pairs_per_row"][0] == 1] or sheets


def by_rows(sheets: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Microseconds by rows, a curve for each number of tokens; each row serves one of them."""
    return {
        _tokens(sheet["tokens"]): Curve(
            sheet["rows"], [1e6 * line[0] for line in sheet["seconds"]], [1e6 * line[0] for line in sheet["spread_s"]]
        )
        for sheet in decoding(sheets)
    }


def by_tokens(sheets: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Microseconds by the tokens that each row serves, a curve for a few numbers of rows: in the largest steps of
    decoding, and beyond what those reach in larger steps."""
    first = sheets.index(decoding(sheets)[-1])
    if len(sheets[first]["pairs_per_row"]) < 2:
        return {}
    known = sheets[first]["rows"]
    some = known if len(known) <= 5 else [rows for rows in known if rows in (1, 4, 16, 64, 256)]
    return {f"{rows} row{'s' * (rows > 1)}": _shared(sheets[first:], rows) for rows in some}


def _shared(sheets: Sequence[Mapping[str, Any]], rows: int) -> Curve:
    found: dict[float, tuple[float, float]] = {}
    for sheet in sheets:
        if rows in sheet["rows"]:
            at = sheet["rows"].index(rows)
            cells = zip(sheet["pairs_per_row"], sheet["seconds"][at], sheet["spread_s"][at], strict=True)
            found = {pairs: (1e6 * seconds, 1e6 * spread) for pairs, seconds, spread in cells} | found
    x = sorted(found)
    return Curve(x, [found[pairs][0] for pairs in x], [found[pairs][1] for pairs in x])


def _tokens(n: int) -> str:
    return f"steps of {n} token{'s' * (n > 1)}"
