"""`slotwise sweep`: a grid of replays into one result file."""

import json

import click

import slotwise

from .options import numbers, shared
from .progress import resumable, working


@click.command(
    "sweep",
    epilog="Example: slotwise sweep sample --policy lru --policy lfru+guard --slots 16:64:16 --width 0,4 -o r.parquet",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("traces", metavar="T...", nargs=-1, required=True)
@click.option("--policy", "policies", multiple=True, required=True, help="Policy; give it once for each.")
@click.option("--slots", help="Slots per pool: counts, fractions, lists and ranges (8,25%,32:128:32).")
@click.option("--vram", multiple=True, help="Pool bytes of all layers together: 8GiB, or 4GiB,8GiB.")
@click.option("--width", default="0", show_default=True, help="Widths, with commas.")
@shared
@click.option("-o", "--output", metavar="R.parquet", required=True, help="Result file; configurations in it are kept.")
@click.option("--workers", type=click.IntRange(1), help="Replays at a time. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(traces, policies, slots, vram, width, output, workers, as_json, **options):
    """Replay every trace x policy x size x width; killed, it goes on where it stopped."""
    skipped: list[str] = []
    counts = {"new": 0, "kept": 0}
    with resumable(output), working() as progress:
        path = slotwise.sweep(
            traces, policies, slots, numbers(width, "width"), out=output, vram=vram, workers=workers,
            progress=progress, skipped=skipped.append,
            counted=lambda new, kept: counts.update(new=new, kept=kept), **options,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"output": str(path), **counts, "skipped": skipped}, allow_nan=False))
        return
    for reason in skipped:
        click.echo(f"slotwise: left out: {reason}", err=True)
    click.echo(f"{path}: {counts['new']} new, {counts['kept']} kept; next: slotwise report {path} -o report")
