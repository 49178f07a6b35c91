"""A result of `slotwise validate`, checked: what was predicted and measured of each configuration, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import BadResult

VERDICTS = ("passed", "failed", "inconclusive")
STRATA = {"cold": "cold chain", "hot": "hot chain", "link": "link", "host": "host"}
TERMS = {  # seconds by cause that both a timed run and a price know
    "both_s": "hot and cold at once", "hot_alone_s": "hot alone", "cold_alone_s": "cold alone",
    "late_s": "awaited copies", "policy_s": "policy", "merge_s": "merge", "rest_s": "rest of the ticks",
    "between_s": "between ticks",
}  # fmt: skip
NEEDED = ("drift", "kendall_tau", "options", "plans")  # null may be right for some, but not their absence
PART = ("rows", "trace", "machine", "machine_date", "verdict", "blocks", "blocks_dropped", "noise_floor", "drift")
THREE = ("median", "p95", "worst")
MOST = 1e18
NONE = "that is no result of a validation: make it again with `slotwise validate -o`"
# What has a place of its own on the page; whatever else a result holds is shown as recorded.
KNOWN = {
    "format", "version", "verdict", "reasons", "blocks", "blocks_dropped", "noise_floor", "drift", "all", "strata",
    "kendall_tau", "pairs", "plans", "drift_by_part", "terms", "trace", "content_sha256", "options", "machine",
    "machine_sha256", "machine_date", "backend", "device", "processor", "restricted_to", "configurations",
    "each_block", "parts", "rows",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Validation:
    """`found`: the object in the file."""

    file: str
    found: Mapping[str, Any]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return self.found["configurations"]

    @property
    def priced(self) -> str:
        """Where the predictions come from."""
        return "/".join(sorted({row["label"] for row in self.rows}))

    @property
    def label(self) -> str:
        return f"{self.priced} and MEASURED"

    @property
    def title(self) -> str:
        return f"{self.found['trace']} on {self.found['machine']}"

    @property
    def identity(self) -> str:
        return self.found["content_sha256"]

    @property
    def about(self) -> str:
        return f"{self.found['blocks']} blocks · {self.found['verdict']}"

    @cached_property
    def names(self) -> list[str]:
        """'lru, 25% slots, width 0, overlap on', and what else differs between configurations."""
        words = {"verify_tokens": "verify ", "miss": "", "part": "part "}
        varying = [name for name in words if len({str(row.get(name)) for row in self.rows}) > 1]
        return [
            ", ".join(
                [row["policy"], f"{row['slots']} slots", f"width {row['width']}", f"overlap {row['overlap']}"]
                + [f"{words[name]}{row[name]}" for name in varying]
            )
            for row in self.rows
        ]

    @property
    def parts(self) -> list[dict[str, Any]]:
        """What each was that this was put together of; [] of a single one."""
        return self.found.get("parts", [])

    @cached_property
    def recorded(self) -> dict[str, list[Any]]:
        """What was recorded beside the figures: path -> its values, of each block or of the whole."""
        out: dict[str, list[Any]] = {}
        for block in self.found["each_block"]:
            _flatten("", {name: value for name, value in block.items() if name != "tokens_per_s"}, out)
        _flatten("", {name: value for name, value in self.found.items() if name not in KNOWN}, out)
        return out


def _flatten(path: str, value: Any, out: dict[str, list[Any]]) -> None:
    if isinstance(value, dict):
        for name, each in value.items():
            _flatten(f"{path}{' ' * bool(path)}{name}", each, out)
    elif isinstance(value, list):
        for each in value:
            _flatten(path, each, out)
    elif value is not None:
        out.setdefault(path.replace("_", " "), []).append(value)


def validation_of(file: str, found: Mapping[str, Any]) -> Validation:
    """Raises BadResult: one line that names the file, the entry and its rule."""
    say = _Entries(file)
    say.there("", found, NEEDED)
    say.of("version", found.get("version"), lambda value: value == 1, "1")
    say.of("verdict", found.get("verdict"), lambda value: value in VERDICTS, f"one of {', '.join(VERDICTS)}")
    say.of("plans", found["plans"], lambda value: value == "equal", "equal")
    say.of("reasons", found.get("reasons"), _texts, "a list of texts")
    for name in ("rows", "trace", "content_sha256", "machine", "machine_sha256", "machine_date", "processor"):
        say.of(name, found.get(name), lambda value: isinstance(value, str), "a text")
    for name in ("blocks", "blocks_dropped"):
        say.number(name, found.get(name), 0)
    say.number("noise_floor", found.get("noise_floor"), 0)
    for name in ("drift", "kendall_tau"):
        say.number(name, found.get(name), -MOST, may_be_null=True)
    say.table("options", found.get("options"))
    for name, value in say.table("drift_by_part", found.get("drift_by_part") or {}).items():
        say.number(f"drift_by_part.{name}", value, -MOST)
    terms = say.table("terms", found.get("terms"))
    for name in TERMS:
        say.number(f"terms.{name}", terms.get(name), -MOST)
    strata = say.table("strata", found.get("strata"))
    for name, each in {"all": found.get("all"), **{f"strata.{key}": one for key, one in strata.items()}}.items():
        one = say.table(name, each)
        for at, errors in ((name, one), (f"{name}.baseline", say.table(f"{name}.baseline", one.get("baseline")))):
            for key in THREE:
                say.number(f"{at}.{key}", errors.get(key), 0)
        say.number(f"{name}.configurations", one.get("configurations"), 1)
    rows = say.each("configurations", found.get("configurations"))
    say.of("configurations", rows, bool, "one or more")
    for i, row in enumerate(rows):
        _check_row(say, f"configurations[{i}]", row)
    pairs = say.table("pairs", found.get("pairs"))
    for name in ("decided", "of", "wrong_sign", "wrong_size"):
        say.number(f"pairs.{name}", pairs.get(name), 0)
    for i, pair in enumerate(say.each("pairs.each", pairs.get("each"))):
        at = f"pairs.each[{i}]"
        for name in ("first", "second"):
            say.of(f"{at}.{name}", pair.get(name), lambda value: value in range(len(rows)), "a configuration's number")
        for name in ("measured", "predicted"):
            say.number(f"{at}.{name}", pair.get(name), -MOST)
        say.interval(f"{at}.", pair, "interval")
        for name in ("decided", "wrong_sign", "wrong_size"):
            say.of(f"{at}.{name}", pair.get(name), lambda value: isinstance(value, bool), "true or false")
    for i, part in enumerate(say.each("parts", found.get("parts", []))):
        say.there(f"parts[{i}].", part, PART)
        for name in PART[-2:]:
            say.number(f"parts[{i}].{name}", part[name], -MOST, may_be_null=True)
    for i, block in enumerate(say.each("each_block", found.get("each_block"))):
        runs = block.get("tokens_per_s")
        right = isinstance(runs, list) and all(isinstance(one, list) and one for one in runs)
        right = right and (len(runs) == len(rows) or "parts" in found)
        say.of(f"each_block[{i}].tokens_per_s", runs, lambda _, right=right: right, "runs of each configuration")
        for value in (value for one in runs for value in one):
            say.number(f"each_block[{i}].tokens_per_s", value, 0)
    return Validation(file, found)


def _check_row(say: _Entries, at: str, row: Mapping[str, Any]) -> None:
    for name in ("policy", "slots", "overlap", "miss", "label", "stratum"):
        say.of(f"{at}.{name}", row.get(name), lambda value: isinstance(value, str), "a text")
    say.of(f"{at}.stratum", row["stratum"], lambda value: value in STRATA, f"one of {', '.join(STRATA)}")
    labels = ("SIMULATED", "ESTIMATED")
    say.of(f"{at}.label", row["label"], lambda value: value in labels, " or ".join(labels))
    for name in ("width", "verify_tokens"):
        say.number(f"{at}.{name}", row.get(name), 0)
    for name in ("predicted", "measured", "baseline"):
        say.number(f"{at}.{name}", row.get(name), 1e-12)
    say.number(f"{at}.error", row.get("error"), -1)
    for name in ("predicted_interval", "measured_interval"):
        say.interval(f"{at}.", row, name)
    terms = say.table(f"{at}.terms", row.get("terms"))
    for name in TERMS:
        for side in ("measured", "predicted"):
            say.number(f"{at}.terms.{name}.{side}", say.table(f"{at}.terms.{name}", terms.get(name)).get(side), -MOST)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


class _Entries:
    """Checks of single entries, which name the file."""

    def __init__(self, where: str):
        self.where = where

    def of(self, name: str, value: Any, right: Callable[[Any], Any], rule: str) -> None:
        if not right(value):
            raise BadResult(f"{self.where}: {name} is {str(value)[:60]!r}, but must be {rule}; {NONE}")

    def there(self, at: str, found: Mapping[str, Any], names: Sequence[str]) -> None:
        for name in names:
            if name not in found:
                raise BadResult(f"{self.where}: {at}{name} is missing; {NONE}")

    def number(self, name: str, value: Any, least: float, *, may_be_null: bool = False) -> None:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (may_be_null and value is None) and not (known and least <= value <= MOST):  # nan is neither
            raise BadResult(f"{self.where}: {name} is {str(value)[:60]!r}, but must be a number from {least:g}; {NONE}")

    def interval(self, at: str, found: Mapping[str, Any], name: str) -> None:
        """Two rising ends, or null where there are too few runs for them."""
        self.there(at, found, (name,))
        name, value = at + name, found[name]
        if value is None:
            return
        self.of(name, value, lambda ends: isinstance(ends, list) and len(ends) == 2, "a lower and an upper end")
        for end in value:
            self.number(name, end, -MOST)
        self.of(name, value, lambda ends: ends[0] <= ends[1], "a lower and an upper end")

    def table(self, name: str, value: Any) -> dict[str, Any]:
        self.of(name, value, lambda found: isinstance(found, dict), "an object with names")
        return value

    def each(self, name: str, value: Any) -> list[Any]:
        right = isinstance(value, list) and all(isinstance(each, dict) for each in value)
        self.of(name, value, lambda _: right, "a list of objects")
        return value
