"""Runs -> sentences, tables of text, and records of numbers: what was measured, beside what could have been."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import metrics
from .figures_measured import gb, intervals_said, rate_said
from .rows import OPTIONS, Row
from .runs import ENGINES, PARTS, SETTINGS, SPANS, Runs, identity_columns
from .tables import NONE, Cell, Table, table

MOST_ROWS = 400  # of a table; the CSV has all
MOST_SAID = 4  # configurations that sentences are about
REASONS = {
    "dropped_guard": "guard", "dropped_no_victim": "no victim", "dropped_throttle": "throttle",
    "failed_prediction": "copy refused",
}  # fmt: skip


def answer(runs: Runs) -> list[str]:
    """The fastest configurations in words: how fast, what overlap brought, where the time went."""
    ranked = sorted(runs.configurations.items(), key=lambda one: -(_fastest(one[1])["timing"]["tokens_per_s"] or 0))
    said = [_sentence(name, sides) for name, sides in ranked[:MOST_SAID]]
    if len(ranked) > MOST_SAID:
        said.append(f"{len(ranked) - MOST_SAID} more configurations are slower; the table has them.")
    if len(ranked) > 1:
        first, second = (_fastest(sides)["timing"]["tokens_per_s_range"] for _, sides in ranked[:2])
        if first and second and first[0] <= second[1]:
            said.append("The ranges of the two fastest overlap, so these runs do not say which of them is faster.")
    return said


def _fastest(sides: dict[str, Row]) -> Row:
    return max(sides.values(), key=lambda row: row["timing"]["tokens_per_s"] or 0)


def _sentence(name: str, sides: dict[str, Row]) -> str:
    speeds = [f"{rate_said(row)} tokens/s with overlap {side}" for side, row in sides.items()]
    text = f"{name}: {', '.join(speeds)}"
    if ratio := speedup(sides):
        text += f"; with overlap it is {ratio[0]} times as fast" + (f" ({ratio[1]} run by run)" if ratio[1] else "")
    row = sides.get("on") or next(iter(sides.values()))
    parts, whole = row["timing"]["parts"], sum(row["timing"]["parts"].values())
    if whole:
        most = max(parts, key=lambda part: parts[part] if part in PARTS else -1)
        text += f". The largest part of the time: {PARTS[most]}, {metrics.percent(parts[most] / whole)}"
    if broken := row["incomplete"]:
        text += f". INCOMPLETE: it broke off after {broken['steps']} steps ({broken['error']})"
    return f"{text}. {efficiency_said(sides)}"


def speedup(sides: dict[str, Row]) -> tuple[str, str] | None:
    """How many times as fast overlap makes it: of the medians, and the range over pairs of runs that took turns."""
    if not sides.keys() >= {"on", "off"}:
        return None
    on, off = (sides[side]["timing"] for side in ("on", "off"))
    if not (on["tokens_per_s"] and off["tokens_per_s"]):
        return None
    pairs = [a / b for a, b in zip(on["tokens_per_s_runs"], off["tokens_per_s_runs"], strict=False) if b]
    spread = f"{min(pairs):.2f} to {max(pairs):.2f}" if len(pairs) > 1 else ""
    return f"{on['tokens_per_s'] / off['tokens_per_s']:.2f}", spread


def efficiency_said(sides: dict[str, Row]) -> str:
    """The overlap efficiency, or why there is none."""
    value = next(iter(sides.values()))["timing"]["overlap_efficiency"]
    if value is not None:
        return f"Overlap efficiency {value:.2f}."
    if len(sides) < 2:
        return "Overlap efficiency is not known from one side: run it with --overlap both."
    return "No overlap efficiency: no tick had work for both chains."


def speeds(runs: Runs) -> Table:
    """A line per configuration and side: speed, latency, hits, what overlap brought."""
    rows = []
    for name, sides in runs.configurations.items():
        ratio = speedup(sides)
        for side, row in sides.items():
            timing = row["timing"]
            low, high = map(metrics.number, timing["tokens_per_s_range"] or (None, None))
            rows.append(
                {
                    "configuration": (name,),
                    "overlap": (side,),
                    "tokens/s": (metrics.number(timing["tokens_per_s"]),),
                    "interval": (f"{low} to {high}", f"{timing['repeats']} runs") if timing["repeats"] > 1 else NONE,
                    "step p50": (_ms(timing["step_p50_s"]),),
                    "p95": (_ms(timing["step_p95_s"]),),
                    "p99": (_ms(timing["step_p99_s"]),),
                    "hit rate": (metrics.percent(metrics.hit_rate(row)),),
                    "overlap, times as fast": tuple(filter(None, ratio)) if ratio and side == "on" else NONE,
                    "overlap efficiency": _efficiency(timing) if side == "on" else NONE,
                }
            )
    return table("Speed", rows[:MOST_ROWS], words=2, note=f"MEASURED. {intervals_said(runs)}")


def _efficiency(timing: dict[str, Any]) -> Cell:
    return NONE if timing["overlap_efficiency"] is None else (f"{timing['overlap_efficiency']:.2f}",)


def _ms(seconds: float) -> str:
    return f"{metrics.number(1e3 * seconds)} ms"


def seconds(runs: Runs) -> Table:
    """Where the time went, shares of the timed run."""
    rows = []
    for name, side, row in _each(runs):
        parts = row["timing"]["parts"]
        whole = sum(parts.values())
        cells = {word: (metrics.percent(metrics.ratio(parts[part], whole)),) for part, word in PARTS.items()}
        rows.append({"configuration": (name,), "overlap": (side,), "ms a step": _per_step(row, whole), **cells})
    note = "MEASURED in one run of each side that was timed tick by tick. Each moment counts once."
    return table("Where the time went, in numbers", rows[:MOST_ROWS], words=2, note=note)


def _per_step(row: Row, whole: float) -> Cell:
    return (metrics.number(1e3 * whole / row["timing"]["steps"]),) if row["timing"]["steps"] else NONE


def bandwidths(runs: Runs) -> Table | None:
    """What was achieved beside the ceilings, GB/s."""
    rows = []
    for name, side, row in _each(runs):
        cells: dict[str, Cell] = {"configuration": (name,), "overlap": (side,)}
        for engine, achieved, ceiling in ENGINES:
            cells[engine] = (gb(row["achieved"][achieved]),)
            cells[f"{engine}: ceiling"] = (gb(row["ceilings"][ceiling]),)
        cells["large copies: ceiling"] = (gb(row["ceilings"]["copy_large_per_s"]),)
        rows.append(cells)
    known = any(cell != NONE for row in rows for cell in list(row.values())[2:])
    note = "MEASURED, GB/s. The ceilings are those of the run in the same line."
    return table("Bandwidths in numbers", rows[:MOST_ROWS], words=2, note=note) if known else None


def drops(runs: Runs) -> Table:
    """Predictions refused a slot by reason, and what came late, as counts."""
    rows = []
    for name, side, row in _each(runs):
        counts = {word: (metrics.number(row[counter]),) for counter, word in REASONS.items()}
        rows.append(
            {
                "configuration": (name,), "overlap": (side,), "predictions": (metrics.number(row["predictions"]),),
                **{f"dropped: {word}": cell if row["predictions"] else NONE for word, cell in counts.items()},
                "redundant": (metrics.number(row["redundant"]),) if row["predictions"] else NONE,
                "loaded": (metrics.number(row["loads_speculative"]),) if row["predictions"] else NONE,
                "late demands": (metrics.number(row["late"]),),
                "diverted rows": (metrics.number(row["timing"]["diverted"]),),
            }
        )  # fmt: skip
    note = (
        "MEASURED, counts of one run. Late: a row still in flight by plan when demanded. Diverted: rows that the other "
        "chain computed because a copy was late or had failed."
    )
    return table("Drops by reason", rows[:MOST_ROWS], words=2, note=note)


def _each(runs: Runs) -> Iterator[tuple[str, str, Row]]:
    for name, sides in runs.configurations.items():
        for side, row in sides.items():
            yield name, side, row


def facts(runs: Runs) -> list[tuple[str, str]]:
    """What ran, and on what."""
    row, count = runs.first, metrics.number
    restricted = f", restricted to {row['restricted_to']}" if row["restricted_to"] else ""
    one = f"{row['hidden']} × {row['intermediate']}, {_word(row['dtypes'])}, {metrics.size(row['row_bytes'])}"
    rows = "; ".join(
        f"layers {each['layers']}: {row['hidden']} × {each['intermediate']}, {_word(each['dtypes'])}, "
        f"{metrics.size(each['row_bytes'])}"
        for each in row["rows_by_layer"] or ()
    )
    return [
        ("model", row["model"] or "not recorded"),
        ("shape", f"{row['n_layers']} MoE layers × {row['n_experts']} experts, top-{row['top_k']}"),
        ("rows", rows or one),
        ("memory of the rows", row["host"]),
        ("weights", row["weights"]),
        ("tokens", f"{count(row['n_tokens'])} in {count(row['n_steps'])} steps"),
        ("machine", row["machine"]),
        ("device", f"{row['device']} (backend {row['backend']}){restricted}"),
        ("attention", f"{count(row['dense_us'])} us a layer" + ("" if row["dense_us"] else ": nothing stands for it")),
        ("contract and state", f"{row['contract']}; cold start, reset {row['reset']}"),
    ]  # fmt: skip


def options(runs: Runs) -> list[tuple[str, str]]:
    """Every option and setting with its value, or its values where the runs differ."""
    out = []
    for name in (*OPTIONS, *SETTINGS):
        values = list(dict.fromkeys(_word(row[name]) for row in runs.rows))
        out.append((name.replace("when_late", "late"), ", ".join(values)))
    return out


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(dict.fromkeys(map(str, value)))
    return metrics.DASH if value is None else str(value)


def everything(runs: Runs) -> Table:
    """Every counter that is not zero in all of them."""
    counters = [name for name in (*metrics.COUNTERS, *metrics.NULLABLE) if any(row[name] for row in runs.rows)]
    rows = [
        {
            "configuration": (name,),
            "overlap": (side,),
            **{counter: (metrics.number(row[counter]),) for counter in counters},
        }
        for name, side, row in _each(runs)
    ]
    title = f"Counters of all {len(rows)} runs" if len(rows) > 1 else "Counters of the one run"
    return table(title, rows[:MOST_ROWS], words=2, note="MEASURED: counted by the pools that decided.")


def run_records(runs: Runs) -> Iterator[dict[str, Any]]:
    """A line per run: identity, options, settings, speed, seconds, bandwidths with ceilings, rates, counters."""
    for name, side, row in _each(runs):
        timing = row["timing"]
        low, high = timing["tokens_per_s_range"] or (None, None)
        flat = {key: value for key, value in timing.items() if not isinstance(value, (list, dict))}
        yield {
            "measured": True, "configuration": name, "overlap": side,
            **{key: _word(row[key]) if key == "dtypes" else row[key] for key in identity_columns() if key != "overlap"},
            "tokens_per_s_low": low, "tokens_per_s_high": high, **flat,
            **{f"part_{key}": value for key, value in timing["parts"].items()},
            **{f"achieved_{key}": value for key, value in row["achieved"].items()},
            **{f"ceiling_{key}": value for key, value in row["ceilings"].items()},
            **metrics.rates(row, row["n_tokens_counted"]),
            **{key: row[key] for key in (*metrics.COUNTERS, *metrics.NULLABLE)},
        }  # fmt: skip


def tick_records(runs: Runs) -> Iterator[dict[str, Any]]:
    """A line per tick that is kept of each run, per span of work or waiting in it, and per batch of copies."""
    for configuration, side, row in _each(runs):
        head = {"measured": True, "trace": row["trace"], "configuration": configuration, "overlap": side}
        for tick in row["stretch"]["ticks"]:
            flat = {key: value for key, value in tick.items() if key not in (*SPANS, "total_s")}
            yield {**head, "what": "tick", **flat, "seconds": tick["total_s"]}
            for name in SPANS:
                of = {"what": name, "step": tick["step"], "layer": tick["layer"]}
                yield from ({**head, **of, **span} for span in tick[name])
        yield from ({**head, "what": "copies", **batch} for batch in row["stretch"]["copies"])
