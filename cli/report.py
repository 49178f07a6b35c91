"""`slotwise report`: result files in, a folder with a page, figures and tables out."""

import json
from pathlib import Path

import click

from .progress import working


@click.command(
    name="report",
    epilog="Examples: slotwise report R.parquet -o report; "
    "slotwise report machine.json -o machine; slotwise report validation.json -o validation",
)
@click.argument("results", metavar="R...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder for the report: new, empty, or of a report.")
@click.option(
    "--force", is_flag=True, help="Write into a folder of other files (they stay) or another report (it goes)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object and nothing else.")
def command(results, output, force, as_json):
    """Turn results into HTML, PNG, CSV and Markdown.

    R is a result of `slotwise sweep`, `run` or `validate`, or a machine file of `slotwise calibrate` or `machine`; it
    is known by its content. Each becomes a section that says what was simulated, measured or estimated; together they
    share one page.
    """
    from slotwise.report import write_report

    with working() as progress:
        page = write_report(results, output, force=force, progress=lambda what: progress(1, 1, what))[0]
    show(page, as_json)


def show(page: Path, as_json: bool) -> None:
    """Says who won at each size and where the page is; or prints the summary that lies beside the page."""
    summary = json.loads((page.parent / "report.json").read_text())
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False, allow_nan=False))
        return
    from .screen import show as print_table
    from .screen import wrapped

    for section in summary["sections"]:
        if "runs" in section:
            click.echo(f"{section['title']}: speed (MEASURED)")
            print_table(_runs_table(section["runs"]))
        elif "figures" in section:
            click.echo(f"{section['title']}: figures ({section['figures'][0]['label']})")
        elif "configurations" in section:
            click.echo(f"{section['title']}: predicted against measured")
        else:
            click.echo(
                f"{section['title']}: winner at each size (simulated, {section['options']['contract']} contract)"
            )
            print_table(_table(section["winners"]))
            if "prices" in section:
                first = section["winners"][0]
                click.echo(f"tokens/s {first['price_label']} on {first['machine']}")
        click.echo()
        for sentence in section["answer"]:
            wrapped(sentence)
        click.echo()
    click.echo(f"Report: {page}")


def _table(winners: list[dict]):
    """A line per size and look-ahead; a column that says nothing, or the same in every line, is left out."""
    from slotwise.compare import written

    from .screen import columns

    cells = [
        {
            "slots": f"{one['slots']:.0f}",
            "VRAM": written(one["pool_bytes"], "B"),
            "width": str(one["width"]),
            "winner": one["winner"] + (f" (and {one['tied_with'].count('; ') + 1} more)" if one["tied_with"] else ""),
            "hit\nrate": written(one["hit_rate"], "%"),
            "over\nlru": written(one["lead_over_lru"], "points"),
            "\nbound": written(one["bound_hit_rate"], "%"),
            "loads\n/token": written(one["loads_per_token"], ""),
            "bytes\n/token": written(one["bytes_per_token"], "B"),
            **(_speeds(one) if "tokens_per_s" in one else {}),
        }
        for one in winners
    ]
    names = [
        name
        for name in cells[0]
        if any(row[name] != "–" for row in cells) and (name != "width" or len({row[name] for row in cells}) > 1)
    ]
    return columns(names, [[row[name] for name in names] for row in cells], ("winner", "fastest"), gap=1)


def _speeds(one: dict) -> dict[str, str]:
    """Tokens per second of the winner, and who is fastest if it is another."""
    from slotwise.compare import written

    best = one["fastest"] if one["fastest"] != one["winner"] else None
    return {
        "tokens\n/s": written(one["tokens_per_s"], ""),
        "\n95 %": _ends(one, ""),
        "fastest": best or "–",
        "its\ntokens/s": written(one["fastest_tokens_per_s"], "") if best else "–",
        "its\n95 %": _ends(one, "fastest_") if best else "–",
    }


def _ends(one: dict, prefix: str) -> str:
    from slotwise.compare import written

    low, high = (one[f"{prefix}tokens_per_s_{end}"] for end in ("low", "high"))
    return "–" if low is None else f"{written(low, '')}-{written(high, '')}"


def _runs_table(runs: list[dict]):
    """A line per run: how fast, within what, and what overlap hid."""
    from slotwise.compare import written

    from .screen import columns

    rows = []
    for one in runs:
        interval = [written(one[f"tokens_per_s_{end}"], "") for end in ("low", "high")]
        efficiency = one["overlap_efficiency"]
        rows.append(
            [
                one["configuration"], one["overlap"], written(one["tokens_per_s"], ""),
                " to ".join(interval) if one["repeats"] > 1 else "one run", written(one["hit_rate"], "%"),
                "–" if efficiency is None or one["overlap"] == "off" else f"{efficiency:.2f}",
            ]
        )  # fmt: skip
    names = ("configuration", "overlap", "tokens/s", "interval", "hit rate", "overlap\nefficiency")
    return columns(names, rows, ("configuration", "overlap"), gap=1)
