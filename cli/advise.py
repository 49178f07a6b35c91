"""`slotwise advise`: what to run in so much VRAM on a machine."""

import json

import click

import slotwise

from .options import numbers
from .progress import working


@click.command(
    "advise",
    epilog="Examples: slotwise machine --preset rtx-3060-x16 --preset ddr4 -o machine.json && "
    "slotwise advise sample --machine machine.json --vram 8GiB --row-bytes 9437184 --dense-us 60",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("trace", metavar="T")
@click.option("--machine", metavar="FILE", required=True, help="Of 'slotwise calibrate', or of 'slotwise machine'.")
@click.option("--vram", required=True, metavar="BYTES", help="VRAM that is free for experts, such as 8GiB.")
@click.option("--headroom", default="900MiB", show_default=True, help="Of that, what is left free.")
@click.option("--policy", "policies", multiple=True, help="A candidate; repeat for more. [default: five usual ones]")
@click.option("--width", "widths", help="Look-ahead widths to try, such as 0,2,4. [default: 0, and 4 if predicted]")
@click.option("--row-bytes", type=click.IntRange(1), help="Bytes of one expert, where the trace does not say.")
@click.option("--dense-us", type=click.FloatRange(0, 1e6), default=0.0, show_default=True,
              help="Microseconds of the GPU a layer that stand for attention.")  # fmt: skip
@click.option("--scope", type=click.Choice(["layer", "global"]), default="layer", show_default=True,
              help="A pool per layer, or one pool for all layers.")  # fmt: skip
@click.option("--verify-tokens", type=click.IntRange(1), default=1, show_default=True, help="Tokens of a verify step.")
@click.option("--accept", type=click.FloatRange(0, 1), default=1.0, show_default=True,
              help="Chance that a drafted token is accepted.")  # fmt: skip
@click.option("--phase", type=click.Choice(["all", "decode", "prefill"]), default="decode", show_default=True,
              help="The steps whose speed is asked for.")  # fmt: skip
@click.option("--steps", type=click.IntRange(0), help="Price the first N steps. [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(trace, machine, vram, policies, widths, as_json, **options):
    """Say which policy and width to run in so much VRAM, what that gives, and what a further GiB would.

    Prices are those of this trace and of our executor; another engine has another overhead.
    """
    given = {"policies": policies} if policies else {}
    with working() as progress:
        found = slotwise.advise(
            trace, machine, vram, widths=None if widths is None else numbers(widths, "width"), progress=progress,
            **given, **options,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
        return
    from .advise_tables import print_advice

    print_advice(found)
