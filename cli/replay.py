"""`slotwise replay`: one configuration, every counter."""

import json

import click

import slotwise

from .options import one_configuration, shared
from .progress import working


@click.command(
    "replay",
    epilog="Examples: slotwise replay sample --policy 'lfru(half_life=16)+guard' --slots 25% --width 4; "
    "slotwise replay sample --width 4 --row-bytes 4718592 --machine machine.json --dense-us 60",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("trace", metavar="T")
@one_configuration
@shared
@click.option("--failures", metavar="FILE", help="Repeat copies that failed: the JSON of a 'slotwise run', or a list.")
@click.option("--threads", type=click.IntRange(1), help="Threads. [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(trace, as_json, failures, **options):
    """Replay one configuration of a trace T (a file, or 'sample') and print its counters."""
    with working() as progress:
        result = slotwise.replay(trace, progress=progress, failures=failures or (), **options)
    if as_json:
        click.echo(json.dumps(result.to_dict(), allow_nan=False))
        return
    from .replay_tables import print_result

    print_result(result)
