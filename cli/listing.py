"""What is installed: `slotwise policies | formats | predictors`, one line each with its source."""

import json

import click

import slotwise

_json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON array and nothing else.")


@click.command(epilog="Example: slotwise policies --json")
@_json_flag
def policies(as_json: bool):
    """The eviction policies, with the parameters that their spelling takes: `lfru(half_life=16)`."""
    _show(slotwise.list_policies(), as_json)


@click.command(epilog="Example: slotwise formats")
@_json_flag
def formats(as_json: bool):
    """The trace formats that every command reads, sniffed from the content of a file."""
    _show(slotwise.list_formats(), as_json)


@click.command(epilog="Example: slotwise predictors")
@_json_flag
def predictors(as_json: bool):
    """The look-ahead predictors that a replay can use at widths above 0."""
    _show(slotwise.list_predictors(), as_json)


def _show(rows: list[dict], as_json: bool) -> None:
    """Prints plain rows as JSON, or as a table: wrapped on a terminal, one line a row elsewhere, so that grep works."""
    if as_json:
        click.echo(json.dumps(rows, indent=1, default=str, allow_nan=False))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_words(value)) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = 1000
    console.print(table)


def _words(value) -> str:
    """A cell: parameters as `name=default` pairs, anything else as it is. None is left empty."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name}={default}" for name, default in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
