"""`slotwise compare`: from a trace to a report, in one go."""

from pathlib import Path

import click

from .options import Ticks, numbers, priced
from .progress import beside, resumable, working
from .report import show


@click.command(
    name="compare",
    epilog="Examples: slotwise compare sample -o report; "
    "slotwise compare sample --row-bytes 4718592 --machine machine.json -o priced",
)
@click.argument("traces", metavar="T...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder for the report: new, empty, or of a report.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="A policy to compare; may be repeated. lru and the bound opt run too, at width 0.",
)
@click.option(
    "--slots", multiple=True, metavar="LIST", help="Pool sizes: 32, 25%, 8,16,32 or 8:128:8; may be repeated."
)
@click.option("--vram", multiple=True, metavar="SIZE", help="Pool sizes as VRAM: 8GiB, or 4GiB,8GiB; may be repeated.")
@click.option(
    "--width", "widths", metavar="LIST", help="Look-ahead widths, such as 0,4. [default: 0, and 4 if predicted]"
)
@click.option("--predictor", metavar="NAME", help="Who predicts at widths above 0. [default: trace]")
@click.option("--contract", type=click.Choice(["event", "sequential"]), help="When a tick is judged. [default: event]")
@click.option("--scope", type=click.Choice(["layer", "global"]), help="One pool per layer, or one. [default: layer]")
@click.option("--reset", type=click.Choice(["persistent", "request"]), help="When pools empty. [default: persistent]")
@click.option("--prefill", type=click.Choice(["cached", "stream"]), help="How big steps are treated. [default: cached]")
@click.option("--phase", type=click.Choice(["all", "decode", "prefill"]), help="What is reported. [default: all]")
@click.option(
    "--lag-prefetch",
    type=Ticks(),
    metavar="N|auto",
    help="Ticks that a speculative load takes; auto: on the machine. [default: 0]",
)
@click.option("--row-bytes", type=click.IntRange(1), help="Bytes of one expert, where the trace does not say.")
@click.option("--steps", type=click.IntRange(1), help="Replay the first N steps only.")
@priced
@click.option("--workers", type=click.IntRange(1), help="Replays at once. [default: all cores]")
@click.option(
    "--force", is_flag=True, help="Write into a folder of other files (they stay) or another report (it goes)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object and nothing else.")
def command(traces, output, policies, slots, vram, widths, force, as_json, **options):
    """Replay eviction policies and look-ahead widths on traces, and write a report on who wins, where and by how much.

    T is a trace file in any known format, or 'sample'. The rows behind the report stay in DIR as R.parquet; the same
    call goes on where an interrupted one stopped. With a machine the report also says how many tokens per second it is.
    """
    from slotwise.compare import RESULTS, compare

    options = {name: value for name, value in options.items() if value is not None}
    wide = None if widths is None else numbers(widths, "width")
    with resumable(Path(output) / RESULTS), working() as progress:
        page = compare(
            traces, output, policies=policies, slots=slots, vram=vram, widths=wide, force=force,
            progress=progress, skipped=lambda why: beside(f"slotwise: left out: {why}"), **options,
        )[0]  # fmt: skip
    show(page, as_json)
