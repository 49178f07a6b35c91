"""`slotwise calibrate`: a machine file by measuring, for prices that are SIMULATED and not ESTIMATED."""

import json

import click

import slotwise

from .progress import working
from .trace_output import check_output


@click.command(
    "calibrate",
    epilog="Examples: slotwise calibrate -o machine.json --shape OLMoE-1B-7B; "
    "slotwise calibrate -o machine.json --backend cupy --shape Qwen3-30B-A3B --cpu-threads 13; "
    "slotwise replay T --machine machine.json",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-o", "--output", metavar="machine.json", required=True, help="The file to write.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("--backend", default="numpy", show_default=True, help="Device; 'slotwise backends' lists them.")
@click.option("--shape", metavar="NAME", help="Shape of an expert by a model's name. [default: Qwen3-30B-A3B]")
@click.option("--hidden", type=click.IntRange(1), help="Hidden size, in place of the shape's.")
@click.option("--intermediate", type=click.IntRange(1), help="Intermediate size of an expert, in place of the shape's.")
@click.option("--dtype", help="Stored dtype of all projections, in place of the shape's: f32, f16, bf16, Q8_0, ...")
@click.option("--experts", type=click.IntRange(8, 4096), default=64, show_default=True, help="Experts of a layer.")
@click.option("--top-k", type=click.IntRange(2, 64), default=8, show_default=True, help="Experts that a token takes.")
@click.option(
    "--cpu-threads",
    type=click.IntRange(1),
    help="Threads of the cold chain. [default: seven of eight physical cores, less one]",
)
@click.option(
    "--spin-us", type=click.FloatRange(0, 1e6), default=1000.0, show_default=True,
    help="Microseconds that idle threads of the cold chain watch memory before they sleep.",
)  # fmt: skip
@click.option("--activations", type=click.Choice(["float32", "int8"]), default="float32", show_default=True,
              help="int8: the cold chain rounds what meets block dtypes.")  # fmt: skip
@click.option("--cold", default="native", show_default=True, help="Cold chain, 'native' or 'numba'.")
@click.option("--host", type=click.Choice(["pinned", "registered", "staged"]), default="pinned", show_default=True,
              help="Memory that rows are copied from.")  # fmt: skip
@click.option("--device", type=click.IntRange(0), help="Number of the GPU. [default: 0]")
@click.option("--sms", type=click.IntRange(1), help="SMs that the hot chain may use: imitates a smaller GPU.")
@click.option("--link-pad", type=click.IntRange(0), default=0, show_default=True,
              help="Copies more of every row: imitates a slower link.")  # fmt: skip
@click.option("--policy", "policies", multiple=True, help="Also measure what this policy takes of the host, beside the "
              "usual ones; repeat for more.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Seconds in place of minutes, with rough figures: for a trial.")
@click.option("--name", help="What results call the machine. [default: its device and processor]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, the file's, and nothing else.")
def command(output, force, as_json, **options):
    """Measure this machine: copies, hot chain, cold chain, what the host does, and all of them beside each other.

    Takes one to three minutes on an idle machine. Prices then hold for rows of this size and this many CPU threads.
    """
    check_output(output, force)  # now, not after the minutes
    with working() as progress:
        machine = slotwise.calibrate(progress=progress, **options)
    slotwise.write_machine(machine, output, force=force)
    if as_json:
        click.echo(json.dumps(machine.to_dict(), allow_nan=False))
        return
    from .calibrate_tables import print_machine

    print_machine(machine)
    click.echo(f"{output}: MEASURED, {machine.name}; next: slotwise replay T --machine {output}")
