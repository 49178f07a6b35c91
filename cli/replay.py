"""`slotwise replay`: one configuration, every counter."""

import json

import click

import slotwise

from .options import shared
from .progress import working


@click.command(
    "replay",
    epilog="Example: slotwise replay sample --policy 'lfru(half_life=16)+guard' --slots 25% --width 4",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("trace", metavar="T")
@click.option("--policy", default="lru", show_default=True, help="Policy; 'slotwise policies' lists them.")
@click.option("--slots", help="Slots per pool: a count (32) or a fraction (25%). [default: 25%, unless --vram]")
@click.option("--vram", help="Pool bytes of all layers together, such as 8GiB, in place of --slots.")
@click.option("--width", type=click.IntRange(0), default=0, show_default=True, help="Predictions per token considered.")
@shared
@click.option("--failures", metavar="FILE", help="Repeat copies that failed: the JSON of a 'slotwise run', or a list.")
@click.option("--threads", type=click.IntRange(1), help="Threads. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(trace, slots, vram, as_json, failures, **options):
    """Replay one configuration of a trace T (a file, or 'sample') and print its counters."""
    if slots is None and vram is None:
        slots = "25%"
    with working() as progress:
        result = slotwise.replay(trace, slots=slots, vram=vram, progress=progress, failures=failures or (), **options)
    if as_json:
        click.echo(json.dumps(result.to_dict(), allow_nan=False))
        return
    from .replay_tables import print_result

    print_result(result)
