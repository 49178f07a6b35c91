"""Workloads in other shapes: `slotwise trace split | merge | cut | regroup`."""

import json
from pathlib import Path

import click

import slotwise

from .trace_output import check_output, force_option, json_option, save, told

_output = click.option("-o", "--output", metavar="T.parquet", required=True, help="Where to write the trace.")
_HELP = {"help_option_names": ["-h", "--help"]}


def _write(trace, output, as_json):
    save(trace, output, quiet=as_json)
    if as_json:
        click.echo(json.dumps(told(output)))


def _span(text, name):
    """`10:20`, `10:` or `:20` as a slice; None if nothing was said."""
    if text is None:
        return None
    start, colon, stop = text.partition(":")
    try:
        if colon:
            return slice(*(int(part) if part.strip() else None for part in (start, stop)))
    except ValueError:
        pass
    raise click.UsageError(f"--{name} {text!r}: write START:STOP in whole numbers, such as 0:100 or 50:")


@click.command(
    context_settings=_HELP, epilog="Example: slotwise trace split sample --train train.parquet --held-out test.parquet"
)
@click.argument("trace", metavar="T")
@click.option("--train", metavar="T.parquet", required=True, help="Where to write the requests to train on.")
@click.option("--held-out", metavar="T.parquet", required=True, help="Where to write the others.")
@click.option("--share", type=float, help="Part of the requests to train on. [default: 0.8]")
@click.option("--seed", default=0, show_default=True, help="Seed of the draw.")
@click.option("--id", "ids", type=int, multiple=True, help="Hold out this request instead of a share; repeatable.")
@click.option("--label", "labels", multiple=True, help="Hold out the requests of this label; repeatable.")
@json_option
@force_option
def split(trace, train, held_out, force, as_json, **options):
    """Divide a trace into a file to train on and a file to test on, request by request."""
    outputs = {"train": train, "held_out": held_out}
    for output in outputs.values():
        check_output(output, force)
    if Path(train).resolve() == Path(held_out).resolve():
        raise click.UsageError(f"--train and --held-out are both {train}; name two files")
    parts = slotwise.split(slotwise.open_trace(trace), **options)
    for part, output in zip(parts, outputs.values(), strict=True):
        save(part, output, quiet=as_json)
    if as_json:
        click.echo(json.dumps({role: told(output) for role, output in outputs.items()}))


@click.command(context_settings=_HELP, epilog="Example: slotwise trace merge a.parquet b.parquet -o both.parquet")
@click.argument("traces", metavar="T...", nargs=-1, required=True)
@_output
@click.option("--order", type=click.Choice(["sequence", "interleaved"]), default="sequence", show_default=True,
              help="One trace after the other, or a step of each in turn.")  # fmt: skip
@click.option("--model", help="The model's name, where traces of one model call it differently.")
@json_option
@force_option
def merge(traces, output, force, as_json, **options):
    """Make one workload of several traces of one model; requests stay apart and are numbered anew."""
    check_output(output, force)
    _write(slotwise.merge([slotwise.open_trace(trace) for trace in traces], **options), output, as_json)


@click.command(
    context_settings=_HELP, epilog="Example: slotwise trace cut sample -o code.parquet --label python --phase decode"
)
@click.argument("trace", metavar="T")
@_output
@click.option("--steps", metavar="A:B", help="Steps A to B - 1, counted from 0.")
@click.option("--id", "ids", type=int, multiple=True, help="This request; repeatable.")
@click.option("--label", "labels", multiple=True, help="The requests of this label; repeatable.")
@click.option("--layers", metavar="A:B", help="MoE layers A to B - 1, counted from 0.")
@click.option("--phase", type=click.Choice(["prefill", "decode"]), help="Rows of this phase.")
@click.option("--without", type=click.Choice(["weights", "predictions", "token-ids"]), multiple=True,
              help="Leave these out; repeatable.")  # fmt: skip
@json_option
@force_option
def cut(trace, output, force, as_json, steps, layers, **options):
    """Keep a part of a trace: what all of the conditions leave."""
    check_output(output, force)
    spans = {"steps": _span(steps, "steps"), "layers": _span(layers, "layers")}
    _write(slotwise.cut(slotwise.open_trace(trace), **spans, **options), output, as_json)


@click.command(context_settings=_HELP, epilog="Example: slotwise trace regroup sample -o verify.parquet --tokens 4")
@click.argument("trace", metavar="T")
@_output
@click.option("--tokens", type=click.IntRange(1), help="Tokens of a request to a step, as verify batches have them.")
@click.option("--requests", type=click.IntRange(1), help="Requests to a step, as batch decoding has them.")
@json_option
@force_option
def regroup(trace, output, force, as_json, **options):
    """Put decode steps together anew, of several tokens or several requests; prefill steps stay."""
    check_output(output, force)
    _write(slotwise.regroup(slotwise.open_trace(trace), **options), output, as_json)
