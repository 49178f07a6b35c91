"""Sections, tables and figures -> the page, its Markdown twin, and the summary for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from . import metrics, records, tables, tables_measured
from .runs import Runs
from .sections import Section
from .style import Picture, css_colours
from .tables import Table
from .terms import MEASURED_PARTS, MEASURED_TERMS, PARTS, TERMS
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
    kind: str = "simulated"  # or "measured"


def chapter(section: Section, anchor: str, figures: dict[str, list[Picture]]) -> Chapter:
    row = section.first
    extra = {"lookahead": [tables.lookaheads(section)], "phases": [tables.phases(section)]}
    parts = [(title, figures[key], [table for table in extra.get(key, []) if table]) for key, title in PARTS.items()]
    return Chapter(
        anchor, section.title, facts(section), headline(section), tables.winners(section),
        [part for part in parts if part[1] or part[2]], tables.everything(section), tables.options(section),
        list(records.winner_records(section)),
        {
            "trace": row["trace"], "trace_sha256": row["trace_sha256"], "model": row["model"],
            "files": sorted({row["file"] for row in section.rows}),
        },
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
        "measured",
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
    return TERMS | (MEASURED_TERMS if "measured" in kinds_of(chapters) else {})


SAID = {
    "simulated": "are **SIMULATED**: replayed from router traces, not measured.",
    "measured": "are **MEASURED**: carried out by the executor on the machine that each section names.",
}


def markdown(chapters: list[Chapter]) -> str:
    """The same without the long tables; figures are linked files."""
    kinds, out = kinds_of(chapters), ["# Slotwise report", ""]
    for kind in kinds:
        out += [f"All numbers{f' of sections marked {kind}' if len(kinds) > 1 else ''} {SAID[kind]}", ""]
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
        out += [
            "",
            "### Options",
            "",
            "| option | value |",
            "|---|---|",
            *(f"| {name} | {_plain(value)} |" for name, value in one.options),
            "",
        ]
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
