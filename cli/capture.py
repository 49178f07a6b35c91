"""`slotwise capture`: a trace from a model that really runs."""

import json
from pathlib import Path

import click

import slotwise

from .options import numbers
from .progress import working
from .trace_output import check_output, force_option, json_option


@click.command(
    "capture", epilog="Example: slotwise capture allenai/OLMoE-1B-7B-0924 --prompts prompts.txt -o T.parquet"
)
@click.argument("model", metavar="MODEL")
@click.option("--prompts", metavar="FILE", help="Prompts to continue: one a line, or .jsonl with 'prompt' and 'label'.")
@click.option("--text", metavar="FILE", help="A text to read instead, token by given token.")
@click.option("-o", "--output", metavar="T.parquet", required=True, help="Where to write the trace.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Most tokens a prompt is continued by.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Of the draws; 0: the likeliest token.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the draws.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Prompts at a time.")
@click.option(
    "--window", type=click.IntRange(1), default=1024, show_default=True, help="Tokens of the text that are one request."
)
@click.option(
    "--chunk",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Tokens of the text in one pass, a prefill step; 1: each is a decode step.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option(
    "--dtype", default="auto", show_default=True, help="float32, bfloat16, float16, or auto: as it is stored."
)
@click.option("--revision", help="Of the model on the hub.")
@click.option(
    "--width", type=click.IntRange(0), help="Predictions to record per token and layer. [default: top-k of the model]"
)
@click.option(
    "--horizon", default="1", show_default=True, help="How many layers ahead predictions look; several with commas."
)
@click.option("--check", is_flag=True, help="Hold every choice against what its router computes from its own input.")
@force_option
@json_option
def command(model, output, horizon, force, as_json, **options):
    """Run a Mixture-of-Experts MODEL (a Hugging Face folder or hub id) and record what its routers choose.

    Needs `pip install "slotwise[capture]"`. Recorded are ids in router order, weights, and look-ahead predictions: what
    layer l's router says to the router input of the layer before. Interrupted, it keeps every complete step.
    """
    check_output(output, force)
    horizons = numbers(horizon, "horizon")
    try:
        with working() as progress:
            progress(0, None, "loading the model")
            result = slotwise.capture(model, output, horizons=horizons, force=force, progress=progress, **options)
    except (KeyboardInterrupt, SystemExit):
        part = Path(f"{output}.part")
        if part.exists():
            said = (
                f"complete steps are kept in {part}; `slotwise trace import {part} -o {output}` makes a trace of them"
            )
        else:
            said = f"complete steps are kept in {output}" if Path(output).exists() else "no step was complete"
        click.echo(f"slotwise: interrupted; {said}", err=True)
        raise
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
        return
    click.echo(f"{output}: {slotwise.open_trace(output)!r}")
    click.echo(f"{result['n_steps']:,} steps, {result['n_requests']:,} requests, {result['tokens_per_s']:.1f} tokens/s")
    if result["recall"] is not None:
        click.echo(f"control: {result['recall']:.6f} of all choices are what the router computes from its own input")
