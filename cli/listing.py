"""What is installed: `slotwise policies | formats | predictors | backends`, one line each with its source."""

import difflib
import json
import textwrap

import click

import slotwise

_json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON array and nothing else.")


@click.command(epilog="Example: slotwise policies --json")
@_json_flag
def policies(as_json: bool):
    """The eviction policies, with the parameters that their spelling takes: `lfru(half_life=16)`."""
    _show(slotwise.list_policies(), as_json)


@click.command(epilog="Example: slotwise formats npz")
@click.argument("name", required=False)
@_json_flag
def formats(name: str | None, as_json: bool):
    """The trace formats that every command reads, sniffed from the content of a file; with NAME, what is in one."""
    rows = slotwise.list_formats()
    if name is None:
        _show(rows, as_json)
        return
    known = {row["name"]: row for row in rows}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f". Did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"no trace format named {name!r}; known: {', '.join(known)}{meant}")
    if as_json:
        click.echo(json.dumps(known[name]))
    else:
        row = known[name]
        click.echo(f"{name}: {row['layout']}\n\nSource: {row['source']}")
        for each in filter(None, row["export_loses"].split(" | ")):
            click.echo(textwrap.fill(f"Not in an export as {each}", 80, subsequent_indent="  "))


@click.command(epilog="Example: slotwise predictors")
@_json_flag
def predictors(as_json: bool):
    """The look-ahead predictors that a replay can use at widths above 0."""
    _show(slotwise.list_predictors(), as_json)


@click.command(epilog="Example: slotwise backends")
@_json_flag
def backends(as_json: bool):
    """The devices that `slotwise run` can compute on, and why one cannot be used here."""
    _show(slotwise.list_backends(), as_json)


def _show(rows: list[dict], as_json: bool) -> None:
    """Prints plain rows as JSON; as an entry each on a terminal; as a line each elsewhere, so that grep works."""
    if as_json:
        click.echo(json.dumps(rows, indent=1, default=str, allow_nan=False))
        return
    from .screen import columns, console, show, wrapped

    names = [name for name in rows[0] if name != "layout"]
    if not console().is_terminal:
        show(columns(names, [[_words(row[name]) for name in names] for row in rows], names))
        return
    for row in rows:
        parameters = _words(row.get("parameters"))
        click.echo(click.style(row["name"], bold=True) + (f"({parameters})" if parameters else ""))
        wrapped(row["description"], "    ")
        wrapped(f"Source: {row['source']}" + ("; knows the future" if row.get("needs_future") else ""), "    ")
        if row.get("export_loses"):
            wrapped(f"Not in our export: {row['export_loses']}", "    ")


def _words(value) -> str:
    """A cell: parameters as `name=default` pairs, yes for True, anything else as it is. None and False are empty."""
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict):
        return ", ".join(f"{name}={default}" for name, default in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
