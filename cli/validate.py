"""`slotwise validate`: a grid on the executor against its prices."""

import json
from contextlib import nullcontext

import click

import slotwise

from .options import grid_decisions, numbers
from .progress import resumable, working


def _words(text):
    return [part.strip() for part in text.split(",")]


@click.command(
    "validate",
    epilog="Examples: slotwise validate sample --machine machine.json --steps 200 --policy lru --policy lfru+guard "
    "--slots 25%,50% --width 0,4 --overlap on,off -o validation",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("trace", metavar="T")
@click.option("--machine", metavar="FILE", required=True, help="A file of 'slotwise calibrate'; the runs are set up as "
              "it was measured.")  # fmt: skip
@click.option(
    "--policy", "policies", multiple=True, default=("lru", "lfru"), show_default=True, help="Repeat for more."
)
@click.option("--slots", default="25%,50%", show_default=True, help="Sizes of a pool, such as 16,25%.")
@click.option("--width", "widths", default="0", show_default=True, help="Predictions per token, such as 0,2,4.")
@click.option("--overlap", "overlaps", default="on", show_default=True, help="on, off, auto, or several: on,off.")
@click.option("--verify", "verify", default="1", show_default=True, help="Tokens of verify steps, such as 1,4.")
@click.option("--miss", "misses", default="cpu", show_default=True, help="cpu, fetch or cpu,fetch.")
@click.option("--draw", type=click.IntRange(1), metavar="N", help="N settings of all but the policy in place of every "
              "combination, drawn such that each resource bounds some.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(1), default=7, show_default=True,
              help="Times that everything runs; fewer than 7 are never conclusive.")  # fmt: skip
@click.option("--dense-us", type=click.FloatRange(0, 1e6), default=0.0, show_default=True,
              help="Microseconds of device time a layer that stand for attention.")  # fmt: skip
@click.option("--alias-layers", type=click.IntRange(1), help="Store the rows of N layers only; others are aliases.")
@click.option("--headroom", default="900MiB", show_default=True, help="Device memory to leave free.")
@click.option("--again/--not-again", default=True, show_default=True,
              help="Calibrate once more at the end; without, nothing is conclusive.")  # fmt: skip
@grid_decisions
@click.option("-o", "--output", "out", metavar="DIR", help="Folder for the result, validation.json, and a report on "
              "it; or a new V.json for the result alone. Finished blocks are kept beside the result, and the same "
              "command goes on with them.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(trace, machine, policies, slots, widths, overlaps, verify, misses, as_json, out, **options):
    """Run a grid of a trace T for real, in interleaved blocks, and hold it against the prices of the same grid.

    Plans must be equal tick for tick, or the exit code is 1. Errors of predicted tokens/s are given by what bounds a
    configuration; the verdict is passed, failed, or inconclusive where the machine was too restless to tell.
    """
    from slotwise.report import validation_in, write_report

    folder = None if out is None or out.endswith(".json") else out
    with (
        validation_in(folder) if folder else nullcontext(out) as file,
        resumable(file) if file else nullcontext(),
        working(by_hand=True) as progress,
    ):
        result = slotwise.validate(
            trace, machine, policies=policies, slots=_words(slots), widths=numbers(widths, "width"),
            overlaps=_words(overlaps), verify_tokens=numbers(verify, "verify"), misses=_words(misses),
            progress=progress, out=file, **options,
        )  # fmt: skip
    page = write_report([file], folder)[0] if file and folder else None
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
        return
    from .validate_tables import print_validation

    print_validation(result)
    if out:
        click.echo(f"Report: {page}" if page else f"{out}: {len(result['configurations'])} configurations")
