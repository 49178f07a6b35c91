"""`slotwise advise`: what to run in so much VRAM on a machine."""

import json

import click

import slotwise

from .options import numbers
from .progress import beside, working


@click.command(
    "advise",
    epilog="Examples: slotwise machine --preset rtx-3060-x16 --preset ddr4 -o machine.json && "
    "slotwise advise sample --machine machine.json --vram 8GiB --row-bytes 9437184 --dense-us 60 -o advice.html; "
    "slotwise advise T --machine machine.json --vram 11.5GiB --gguf M.gguf --ctx 16384 --kv-type q8_0 "
    "--anchor slots=0,tps=42.3 --anchor slots=124,tps=51.3",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("trace", metavar="T")
@click.option("--machine", metavar="FILE", required=True, help="Of 'slotwise calibrate', or of 'slotwise machine'.")
@click.option("--vram", required=True, metavar="BYTES", help="Free VRAM, such as 8GiB: for experts, or with --gguf for "
              "the whole model.")  # fmt: skip
@click.option("--headroom", default="900MiB", show_default=True, help="Of that, what is left free.")
@click.option("--context-bytes", metavar="BYTES", help="Of that, what the context takes, such as 1.5GiB.")
@click.option("--gguf", metavar="M.gguf", help="The model: its header says how large rows, dense weights and context "
              "are.")  # fmt: skip
@click.option("--ctx", type=click.IntRange(1), metavar="N", help="With --gguf: tokens of the context.")
@click.option("--kv-type", metavar="TYPE", help="With --ctx: type of its keys and values, such as q8_0. [default: f16]")
@click.option("--draft", metavar="D.gguf", help="With --gguf: a draft model in the same VRAM.")
@click.option("--anchor", "anchors", multiple=True, metavar="slots=N,tps=X", help="A run of your engine: slots in each "
              "layer, tokens/s. Two or more set what a step and a miss cost.")  # fmt: skip
@click.option("--anchor-policy", help="With --anchor: the policy that your engine runs. [default: lru]")
@click.option("--policy", "policies", multiple=True, help="A candidate; repeat for more. [default: five usual ones]")
@click.option("--width", "widths", help="Look-ahead widths to try, such as 0,2,4. [default: 0, and 4 if predicted]")
@click.option("--scope", type=click.Choice(["layer", "global", "both"]), default="both", show_default=True,
              help="A pool per layer, one pool for all layers, or try both.")  # fmt: skip
@click.option("--overlap", type=click.Choice(["on", "off", "both"]), default="both", show_default=True,
              help="Both chains at the same time, one after the other, or try both.")  # fmt: skip
@click.option("--row-bytes", type=click.IntRange(1), help="Bytes of one expert, where the trace does not say.")
@click.option("--dense-us", type=click.FloatRange(0, 1e6), default=0.0, show_default=True,
              help="Microseconds of the GPU a layer that stand for attention.")  # fmt: skip
@click.option("--predictor", default="trace", show_default=True, help="Who predicts; 'slotwise predictors' lists them.")
@click.option("--reset", type=click.Choice(["persistent", "request"]), default="persistent", show_default=True,
              help="Keep pools over requests, or start anew at each.")  # fmt: skip
@click.option("--verify-tokens", type=click.IntRange(1), default=1, show_default=True, help="Tokens of a verify step.")
@click.option("--accept", type=click.FloatRange(0, 1), default=1.0, show_default=True,
              help="Chance that a drafted token is accepted.")  # fmt: skip
@click.option("--phase", type=click.Choice(["all", "decode", "prefill"]), default="decode", show_default=True,
              help="The steps whose speed is asked for.")  # fmt: skip
@click.option("--steps", type=click.IntRange(0), help="Price the first N steps. [default: all]")
@click.option("-o", "--output", metavar="PAGE.html", help="Also write a page.")
@click.option("--force", is_flag=True, help="Replace the page if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(trace, machine, vram, policies, widths, scope, overlap, as_json, **options):
    """Say which policy, pools and width to run in so much VRAM, what that gives, and what a further GiB would.

    It is chosen on the first part of T and judged on the rest. Prices are those of our executor, or with --anchor of
    your engine. Flags for the engines that have such a cache are listed with their sources.
    """
    given = {"policies": policies} if policies else {}
    given |= {} if scope == "both" else {"scopes": (scope,)}
    given |= {} if overlap == "both" else {"overlaps": (overlap,)}
    with working() as progress:
        found = slotwise.advise(
            trace, machine, vram, widths=None if widths is None else numbers(widths, "width"), progress=progress,
            **given, **options,
        )  # fmt: skip
    for warning in found["warnings"]:
        beside(f"slotwise: warning: {warning}")
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
        return
    from .advise_tables import print_advice

    print_advice(found)
    if options["output"]:
        click.echo(f"Page: {options['output']}")
