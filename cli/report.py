"""`slotwise report`: result files in, a folder with a page, figures and tables out."""

import json
from pathlib import Path

import click

from .progress import working


@click.command(name="report", epilog="Example: slotwise report R.parquet -o report")
@click.argument("results", metavar="R...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder for the report: new, empty, or of a report.")
@click.option("--force", is_flag=True, help="Write into a folder that holds other files, too. They stay.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object and nothing else.")
def command(results, output, force, as_json):
    """Turn result files of `slotwise sweep` into HTML, PNG, CSV and Markdown."""
    from slotwise.compare import write_report

    with working() as progress:
        page = write_report(results, output, force=force, progress=lambda what: progress(1, 1, what))[0]
    show(page, as_json)


def show(page: Path, as_json: bool) -> None:
    """Says who won at each size and where the page is; or prints the summary that lies beside the page."""
    summary = json.loads((page.parent / "report.json").read_text())
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 120
    for section in summary["sections"]:
        console.print(_table(section))
        for sentence in section["answer"]:
            console.print(sentence, markup=False, highlight=False)
        console.print()
    click.echo(f"Report: {page}")


def _table(section: dict):
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="bold")
    table.title = Text(
        f"{section['title']}: winner at each size (simulated, {section['options']['contract']} contract)"
    )
    for name in ("slots", "width", "winner"):
        table.add_column(name, justify="left" if name == "winner" else "right", overflow="fold")
    for name in ("hit rate", "over lru", "bound", "loads/token"):
        table.add_column(name, justify="right")
    for one in section["winners"]:
        tied = f" (and {one['tied_with'].count('; ') + 1} more)" if one["tied_with"] else ""
        points = "–" if one["lead_over_lru"] is None else f"{100 * one['lead_over_lru']:+.2f}".replace("-", "−")
        table.add_row(
            f"{one['slots']:.0f}", str(one["width"]), Text(one["winner"] + tied),
            _percent(one["hit_rate"]), points, _percent(one["bound_hit_rate"]), _number(one["loads_per_token"]),
        )  # fmt: skip
    return table


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
