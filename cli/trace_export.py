"""Traces for other tools: `slotwise trace export`."""

import json

import click

import slotwise

from .trace_output import advancing, check_output, force_option, json_option


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: slotwise trace export sample -o sample.csv",
)
@click.argument("trace", metavar="T")
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write it.")
@click.option("--format", "name", metavar="NAME", help="tidy (.parquet), csv (.csv), npz (.npz), oracleGeneral "
              "(.oracleGeneral, for libCacheSim) or moe-cache-lab (.jsonl). [default: by the suffix]")  # fmt: skip
@json_option
@force_option
def export(trace, output, force, as_json, name):
    """Write a trace in a format of other tools, and say what that format does not hold."""
    check_output(output, force)
    source = slotwise.open_trace(trace)
    with advancing(source.n_tokens) as advance:
        name = slotwise.export(source, output, name, advance=advance)
    loses = next(row["loses"] for row in slotwise.list_exports() if row["name"] == name)
    if as_json:
        click.echo(json.dumps({"output": output, "format": name, "n_tokens": source.n_tokens, "loses": loses}))
    else:
        click.echo(f"{output}: {name} of {source!r}\nnot in it: {loses}")
