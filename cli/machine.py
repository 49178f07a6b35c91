"""`slotwise machine`: a machine file from a datasheet, for a machine that is not there to be measured."""

import json

import click

import slotwise

from .screen import columns, show


@click.command(
    "machine",
    epilog="Examples: slotwise machine --preset rtx-3060-x4 --preset ddr4 -o machine.json; "
    "slotwise machine --link 12GB/s --host-read 45GB/s --device-read 360GB/s -o machine.json; "
    "slotwise replay sample --row-bytes 4718592 --machine machine.json",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--preset", "presets", multiple=True, help="Parts of a machine, such as rtx-3060-x16 and ddr5.")
@click.option("--list", "listed", is_flag=True, help="List the presets, each with its source.")
@click.option("--link", metavar="RATE", help="What copies into VRAM reach, such as 12GB/s.")
@click.option("--host-read", metavar="RATE", help="What the CPU reads of its memory, all threads together.")
@click.option("--device-read", metavar="RATE", help="What the GPU reads of its memory.")
@click.option("--figure", "figures", multiple=True, metavar="NAME=VALUE", help="Any other figure, such as ids_s=12e-6.")
@click.option(
    "--threads",
    "cpu_threads",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    help="Threads of the cold chain.",
)
@click.option("--name", help="What results call the machine.")
@click.option("-o", "--output", metavar="machine.json", help="The file to write. [default: print it]")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(presets, listed, output, force, as_json, figures, **given):
    """Estimate a machine from a datasheet, to price replays on it. Every result then says ESTIMATED."""
    if listed:
        parts = slotwise.list_machines()
        if as_json:
            click.echo(json.dumps(parts))
        else:
            show(columns(("preset", "what", "source"), [list(part.values())[:3] for part in parts], ("what", "source")))
        return
    machine = slotwise.estimate_machine(presets, figures=dict(map(_figure, figures)), **given)
    if output:
        slotwise.write_machine(machine, output, force=force)
    if as_json or not output:
        click.echo(json.dumps(machine.to_dict(), indent=None if as_json else 1, allow_nan=False))
        return
    click.echo(f"{output}: ESTIMATED, {machine.name}; next: slotwise replay T --machine {output}")


def _figure(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise click.UsageError(f"--figure {text!r}: write NAME=VALUE, such as ids_s=12e-6") from None
