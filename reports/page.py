"""Sections, tables and figures -> the page, its Markdown twin, and the summary for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from . import metrics, priced, records, tables, tables_measured, tables_price
from .prices import price_records
from .runs import Runs
from .sections import Section
from .style import Picture, css_colours
from .tables import Table
from .terms import HEADS, MEASURED_PARTS, OPTIONS_ARE, PARTS, TERMS, TERMS_OF, Head
from .verdict import headline


@dataclass(frozen=True)
class Chapter:
    """What the page says about one section, ready to be set."""

    anchor: str
    title: str
    facts: list[tuple[str, str]]
    answer: list[str]
    first_table: Table
    parts: list[tuple[str, list[Picture], list[Table]]]
    everything: Table
    options: list[tuple[str, str]]
    records: list[dict[str, Any]]
    provenance: dict[str, Any]
    kind: str = "simulated"  # where its numbers come from, as its badge says
    what: str = "sweep"  # a key of NOUNS
    heads: tuple[str, ...] = ("simulated",)  # keys of HEADS and TERMS_OF: what stands on top of the page, and terms
    more: tuple[Table, ...] = ()  # long tables, folded
    also: dict[str, Any] = field(default_factory=dict)  # what else the summary has

    @property
    def noun(self) -> str:
        """The name of its records in the summary."""
        return NOUNS[self.what]

    @property
    def table(self) -> str:
        """The class of its tables, of those of a sweep all but the winners'."""
        return "runs" if self.what in ("run", "validation") else self.what if self.what == "machine" else "plain"

    @property
    def options_are(self) -> str:
        return OPTIONS_ARE[self.what]

    @property
    def from_trace(self) -> bool:
        """Whether it holds rows of a trace, with their counters."""
        return self.what in ("sweep", "run")


NOUNS = {"sweep": "winners", "run": "runs", "machine": "figures", "validation": "configurations"}


def chapter(section: Section, anchor: str, figures: dict[str, list[Picture]]) -> Chapter:
    row, prices = section.first, priced.priced_of(section)
    extra = {"lookahead": [tables.lookaheads(section)], "phases": [tables.phases(section)]}
    parts = [(title, figures[key], [table for table in extra.get(key, []) if table]) for key, title in PARTS.items()]
    parts = [
        (f"Tokens per second on {part.on}", figures[f"prices-{i}"], [tables_price.speeds(part)])
        for i, part in enumerate(prices)
    ] + parts
    return Chapter(
        anchor, section.title, facts(section),
        headline(section) + [sentence for part in prices for sentence in priced.answer(part)], tables.winners(section),
        [part for part in parts if part[1] or part[2]], tables.everything(section), tables.options(section),
        list(records.winner_records(section, prices[0] if prices else None)),
        {
            "trace": row["trace"], "trace_sha256": row["trace_sha256"], "model": row["model"],
            "files": sorted({row["file"] for row in section.rows}),
        },
        heads=("simulated", *(f"priced {part.label.lower()}" for part in prices)),
        more=tuple(map(tables_price.everything, prices)),
        also={"prices": list(price_records(section.rows))} if prices else {},
    )  # fmt: skip


def run_chapter(runs: Runs, anchor: str, figures: dict[str, list[Picture]]) -> Chapter:
    """The same of runs, which were measured."""
    row, said = runs.first, tables_measured
    extra = {
        "speed": said.seconds(runs), "bandwidth": said.bandwidths(runs), "drops": said.drops(runs), "timeline": None,
    }  # fmt: skip
    parts = [(title, figures[key], [extra[key]] if extra[key] else []) for key, title in MEASURED_PARTS.items()]
    return Chapter(
        anchor, runs.title, said.facts(runs), said.answer(runs), said.speeds(runs),
        [part for part in parts if part[1] or part[2]], said.everything(runs), said.options(runs),
        list(said.run_records(runs)),
        {
            "trace": row["trace"], "trace_sha256": row["trace_sha256"], "model": row["model"],
            "files": sorted({row["file"] for row in runs.rows}),
        },
        "measured", "run", ("measured",),
    )  # fmt: skip


def facts(section: Section) -> list[tuple[str, str]]:
    """What was replayed."""
    row, count = section.first, metrics.number
    cycle = row["token_cycle_bytes"]
    requests = f"{count(row['n_requests'])} request{'s' * (row['n_requests'] != 1)}"
    per_pool = f"{section.cycle_slots} slots {section.pool_word}"
    return [
        ("model", row["model"] or "not recorded"),
        ("shape", f"{row['n_layers']} MoE layers × {row['n_experts']} experts, top-{row['top_k']}"),
        ("tokens", f"{count(row['n_tokens'])} in {count(row['n_steps'])} steps, {requests}"),
        ("one token cycle", f"{per_pool}, T = {metrics.size(cycle)}" if cycle else f"{per_pool} (row size unknown)"),
        ("contract and state", f"{row['contract']}; cold start, reset {row['reset']}, phase {row['phase']}"),
    ]  # fmt: skip


def html(chapters: list[Chapter], files: list[str]) -> str:
    """The page: one file that needs nothing else."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("slotwise.reports", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html").render(
        chapters=chapters,
        kinds=kinds_of(chapters),
        heads=heads_of(chapters),
        terms=terms_of(chapters),
        files=files,
        version=version("slotwise"),
        light=css_colours(0),
        dark=css_colours(1),
    )


def kinds_of(chapters: list[Chapter]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in chapters))


def terms_of(chapters: list[Chapter]) -> dict[str, str]:
    """What the words of these chapters mean."""
    keys = dict.fromkeys(key for one in chapters for key in one.heads)
    common = TERMS if any(one.from_trace for one in chapters) else {}
    return common | {term: meaning for key in keys for term, meaning in TERMS_OF.get(key, {}).items()}


def heads_of(chapters: list[Chapter]) -> list[Head]:
    """What stands on top of the page about the origin of the numbers, each once."""
    return [HEADS[key] for key in dict.fromkeys(key for one in chapters for key in one.heads)]


def markdown(chapters: list[Chapter]) -> str:
    """The same without the long tables; figures are linked files."""
    kinds, out = kinds_of(chapters), ["# Slotwise report", ""]
    for head in heads_of(chapters):
        marked = f"{head.noun} of sections marked {head.kind}" if len(kinds) > 1 and head.kind in kinds else head.noun
        out += [f"{marked} {head.markdown}", ""]
    for one in chapters:
        mark = f" ({one.kind})" if len(kinds) > 1 else ""
        out += [f"## {_plain(one.title)}{mark}", ""]
        out += [*(f"- {_plain(name)}: {_plain(value)}" for name, value in one.facts), ""]
        out += [_plain(sentence) for sentence in one.answer]
        out += ["", *_markdown_table(one.first_table)]
        for title, pictures, extra in one.parts:
            out += ["", f"### {title}", ""]
            for picture in pictures:
                out += [
                    f"![{_plain(picture.alt)}](figures/{picture.name}.png)",
                    "",
                    f"{_plain(picture.title)}. {_plain(picture.caption)}",
                    "",
                ]
            for table in extra:
                out += _markdown_table(table)
        if one.options:
            lines = [f"| {name} | {_plain(value)} |" for name, value in one.options]
            out += ["", "### Options", "", "| option | value |", "|---|---|", *lines, ""]
    terms = (f"- **{term}**: {meaning}" for term, meaning in terms_of(chapters).items())
    out += ["## Terms", "", *terms, "", "## Provenance", ""]
    for one in chapters:
        told = (f"{name} {_plain(str(value))}" for name, value in one.provenance.items())
        out += [f"- {_plain(one.title)}: {', '.join(told)}"]
    return "\n".join([*out, f"- written by slotwise {version('slotwise')}", ""])


def _markdown_table(table: Table) -> Iterable[str]:
    align = ["---"] * table.words + ["---:"] * (len(table.columns) - table.words)
    yield from (
        f"**{_plain(table.title)}**",
        "",
        f"| {' | '.join(map(_plain, table.columns))} |",
        f"|{'|'.join(align)}|",
    )
    yield from (f"| {' | '.join(_plain('; '.join(cell)) for cell in row)} |" for row in table.rows)
    yield from ("", _plain(table.note), "")


def _plain(text: str) -> str:
    """Text that Markdown leaves alone: names come from files that others wrote."""
    flat = " ".join(text.split())
    return "".join(
        f"\\{char}" if char in r"\`*_[]|#!" else {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(char, char)
        for char in flat
    )
