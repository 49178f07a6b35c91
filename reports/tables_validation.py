"""A validation -> sentences, tables and records, and its chapter of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import metrics
from .figures_validation import pair_name
from .page import Chapter
from .style import Picture
from .tables import NONE, Cell, Table, table
from .terms import VALIDATION_PARTS
from .validations import PART, STRATA, TERMS, THREE, Validation

MOST_ROWS = 400  # of a table; the CSV has all


def validation_chapter(found: Validation, anchor: str, figures: dict[str, list[Picture]]) -> Chapter:
    extra = {
        "against": [_strata(found)], "pairs": [_pairs(found)] if found.found["pairs"]["each"] else [],
        "terms": [_terms(found)],
        "blocks": [draw(found) for draw, there in ((_parts, found.parts), (_recorded, found.recorded)) if there],
    }  # fmt: skip
    said = found.found
    return Chapter(
        anchor, found.title, _facts(found), _answer(found), _configurations(found),
        [(title, figures[key], extra[key]) for key, title in VALIDATION_PARTS.items()], _all_terms(found),
        [(name, _word(value)) for name, value in said["options"].items()], list(configuration_records(found)),
        {
            "trace": said["trace"], "trace_sha256": said["content_sha256"], "machine": said["machine"],
            "machine_sha256": said["machine_sha256"], "files": [found.file],
        },
        found.label.lower(), "validation", ("validation",), also={"pairs": list(pair_records(found))},
    )  # fmt: skip


def _facts(found: Validation) -> list[tuple[str, str]]:
    said, drift = found.found, found.found["drift"]
    known = {
        "verdict": said["verdict"], "trace": said["trace"], "rows": said["rows"], "machine": said["machine"],
        "calibrated": said["machine_date"], "device": said.get("device"), "backend": said.get("backend"),
        "processor": said["processor"], "restricted to": said.get("restricted_to"),
        "plans": f"{said.get('plans')}, tick for tick",
        "blocks": f"{said['blocks']}, of which {said['blocks_dropped']} dropped",
        "noise floor": metrics.percent(said["noise_floor"]),
        "prices of two calibrations apart": "not calibrated again" if drift is None else metrics.percent(drift),
    }  # fmt: skip
    return [(name, str(value)) for name, value in known.items() if value]


def _answer(found: Validation) -> list[str]:
    """The verdict with its reasons, the errors, the pairs."""
    said, whole, pairs = found.found, found.found["all"], found.found["pairs"]
    line = whole["baseline"]
    tau = metrics.DASH if said["kendall_tau"] is None else f"{said['kendall_tau']:.2f}"
    off = (
        f"Predicted tokens/s ({found.priced}) are off from MEASURED by {metrics.percent(whole['median'])} (median), "
        f"{metrics.percent(whole['p95'])} (p95), {metrics.percent(whole['worst'])} (worst) over "
        f"{len(found.rows)} configurations; a line fitted to misses and loads by {metrics.percent(line['median'])}, "
        f"{metrics.percent(line['p95'])}, {metrics.percent(line['worst'])}."
    )
    compared = (
        f"Of {pairs['of']} pairs of policies the runs decide {pairs['decided']}; the prices have the wrong sign in "
        f"{pairs['wrong_sign']} and the wrong size in {pairs['wrong_size']}. Kendall's tau over all configurations: "
        f"{tau}."
    )
    doubts = "" if not said["reasons"] else ", for:" if said["verdict"] == "failed" else ", because:"
    reasons = [f"{reason}." for reason in said["reasons"]]
    return [f"Verdict: {said['verdict']}{doubts or '.'}", *reasons, off, compared]


def _configurations(found: Validation) -> Table:
    rows: list[dict[str, Cell]] = [
        ({"part": (str(row.get("part", "")),)} if found.parts else {}) | {
            "policy": (row["policy"],), "bound by": (STRATA[row["stratum"]],), "slots": (row["slots"],),
            "width": (str(row["width"]),), "overlap": (row["overlap"],), "verify": (str(row["verify_tokens"]),),
            "miss": (row["miss"],),
            f"predicted tokens/s, {found.priced}": _with(row["predicted"], row["predicted_interval"]),
            "MEASURED tokens/s": _with(row["measured"], row["measured_interval"]),
            "error": (_signed(row["error"]),),
            "error of the line": (_signed(row["baseline"] / row["measured"] - 1),),
        }
        for row in found.rows
    ]  # fmt: skip
    for name in ("verify", "miss"):
        if len({row[name] for row in rows}) == 1:
            for row in rows:
                del row[name]
    cut = f" The first {MOST_ROWS} of {len(rows)}; validation.csv has all." if len(rows) > MOST_ROWS else ""
    note = (
        "Below each figure its 95 % interval: of another sample of the workload, and of the median over blocks, where "
        "they are five or more." + cut
    )
    return table("Predicted and measured", rows[:MOST_ROWS], words=2, note=note)


def _with(value: float, ends: Any) -> Cell:
    text = metrics.number(value)
    return (text, f"{metrics.number(ends[0])} to {metrics.number(ends[1])}") if ends else (text,)


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _strata(found: Validation) -> Table:
    rows = []
    for name, each in {"all": found.found["all"], **found.found["strata"]}.items():
        rows.append(
            {
                "bound by": (STRATA.get(name, name),), "configurations": (str(each["configurations"]),),
                **{f"{key} error": (metrics.percent(each[key]),) for key in THREE},
                **{f"line: {key}": (metrics.percent(each["baseline"][key]),) for key in THREE},
            }
        )  # fmt: skip
    note = "Errors of predicted tokens/s without their signs. The line is fitted to these very measurements."
    return table("Errors by what bounds a configuration", rows, words=1, note=note)


def _pairs(found: Validation) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "pair": (pair_name(found, pair),),
            "sign": ("undecided" if not pair["decided"] else "wrong" if pair["wrong_sign"] else "right",),
            "size": ("undecided" if not pair["decided"] else "wrong" if pair["wrong_size"] else "right",),
            "MEASURED gain": (_signed(pair["measured"]), " to ".join(map(_signed, pair["interval"] or ()))),
            f"predicted gain, {found.priced}": (_signed(pair["predicted"]),),
        }
        for pair in found.found["pairs"]["each"]
    ]
    note = (
        "Undecided: the measured 95 % interval includes 0, or there are too few blocks for one. Size: within a quarter "
        "of the gain, or the noise floor."
    )
    return table("Policies against each other", rows[:MOST_ROWS], words=3, note=note)


def _terms(found: Validation) -> Table:
    drift = found.found.get("drift_by_part") or {}
    rows: list[dict[str, Cell]] = [
        {"term": (text,), "predicted less measured": (_signed(found.found["terms"][term]),)}
        for term, text in TERMS.items()
    ]
    apart = ", ".join(f"{name} {_signed(value)}" for name, value in drift.items())
    note = "Medians over configurations, of the seconds of the timed run." + (
        f" The second calibration against the first: {apart}." if apart else ""
    )
    return table("Residuals by term", rows, words=1, note=note)


def _all_terms(found: Validation) -> Table:
    rows = []
    for row, name in zip(found.rows[:MOST_ROWS], found.names, strict=False):
        cells: dict[str, Cell] = {"configuration": (name,), "bound by": (STRATA[row["stratum"]],)}
        for term, text in TERMS.items():
            one = row["terms"][term]
            measured = f"measured {metrics.percent(one['measured'])}"
            cells[text] = (_signed(one["predicted"] - one["measured"]), measured)
        rows.append(cells)
    note = "Predicted less measured, of the seconds of the timed run; below it what was measured."
    return table("Residuals of every configuration", rows, words=2, note=note)


def _parts(found: Validation) -> Table:
    """What it was put together of."""
    rows: list[dict[str, Cell]] = []
    for number, part in enumerate(found.parts, 1):
        shares = {name: NONE if part[name] is None else (metrics.percent(part[name]),) for name in PART[-2:]}
        texts = {"part": (str(number),)} | {name.replace("_", " "): (_word(part[name]),) for name in PART[:-2]}
        rows.append(texts | {name.replace("_", " "): cell for name, cell in shares.items()})
    return table("Put together of", rows, words=4, note="Each on its own. The verdict above is over all of them.")


def _recorded(found: Validation) -> Table:
    rows: list[dict[str, Cell]] = []
    for name, values in found.recorded.items():
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) == len(values):
            middle = sorted(numbers)[len(numbers) // 2]
            cells = [(metrics.number(value),) for value in (min(numbers), middle, max(numbers))]
        else:
            texts = list(dict.fromkeys(map(str, values)))
            cells = [("; ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else ""),), NONE, NONE]
        rows.append({"what": (name,), **dict(zip(("least", "median", "most"), cells, strict=True))})
    return table("Recorded meanwhile", rows, words=1, note="MEASURED, over blocks or of the whole.")


def _word(value: Any) -> str:
    return metrics.DASH if value is None else str(value)


def configuration_records(found: Validation) -> Iterator[dict[str, Any]]:
    """A line per configuration."""
    for row in found.rows:
        flat = {key: value for key, value in row.items() if not isinstance(value, (dict, list))}
        ends = {
            f"{side}_{end}": (row[f"{side}_interval"] or (None, None))[i]
            for side in ("predicted", "measured")
            for i, end in enumerate(("low", "high"))
        }
        terms = {f"{side}_{term}": row["terms"][term][side] for term in TERMS for side in ("predicted", "measured")}
        yield flat | ends | terms


def pair_records(found: Validation) -> Iterator[dict[str, Any]]:
    """A line per pair of policies."""
    for pair in found.found["pairs"]["each"]:
        low, high = pair["interval"] or (None, None)
        yield {"pair": pair_name(found, pair), "measured_low": low, "measured_high": high,
               **{key: value for key, value in pair.items() if key != "interval"}}  # fmt: skip
