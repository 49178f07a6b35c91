"""`slotwise run`: a trace through the real executor."""

import json

import click

import slotwise

from .options import decisions, one_configuration
from .progress import working


class DenseTime(click.ParamType):
    """Microseconds, or `auto`."""

    name = "microseconds"

    def convert(self, value, param, ctx):
        try:
            return value if value == "auto" else float(value)
        except ValueError:
            self.fail(f"{value!r}: a number of microseconds, or 'auto'", param, ctx)


@click.command(
    "run", epilog="Example: slotwise run sample --shape tiny --policy lfru+guard --slots 25% --width 4 --check"
)
@click.argument("trace", metavar="T")
@one_configuration
@click.option("--backend", default="numpy", show_default=True, help="Device; 'slotwise backends' lists them.")
@click.option("--weights", metavar="PATH", help="A Hugging Face checkpoint or GGUF file. [default: random rows]")
@click.option("--shape", metavar="NAME", help="Shape of an expert by a model's name. [default: the trace's model]")
@click.option("--hidden", type=click.IntRange(1), help="Hidden size, in place of the shape's.")
@click.option("--intermediate", type=click.IntRange(1), help="Intermediate size of an expert, in place of the shape's.")
@click.option(
    "--dtype",
    help="Stored dtype of all projections, in place of the shape's: f32, f16, bf16, Q8_0, Q4_K, "
    "..., or Q4_K_M, which differs by layer.",
)
@click.option(
    "--overlap",
    type=click.Choice(["on", "off", "both", "auto"]),
    default="on",
    show_default=True,
    help="Hot and cold chain at the same time, one after the other, runs of both by turns, or tick by tick as the "
    "--machine expects a gain.",
)
@click.option(
    "--miss",
    type=click.Choice(["cpu", "fetch", "split"]),
    default="cpu",
    show_default=True,
    help="Misses are computed on the CPU; their rows are fetched; or a share of them is.",
)
@click.option(
    "--split-share",
    type=click.FloatRange(0, 1),
    help="Share that split fetches. [default: the link's of link and CPU]",
)
@click.option(
    "--late",
    type=click.Choice(["wait", "cold"]),
    default="wait",
    show_default=True,
    help="A hit whose copy has not landed waits for it, or is computed on the CPU.",
)
@click.option("--spec-chunk", type=click.IntRange(1), help="Speculative rows in one batch of copies. [default: all]")
@click.option(
    "--max-queued",
    metavar="BYTES",
    help="Speculative bytes in the driver at a time, such as 64MiB; the rest "
    "waits on the host, and demand overtakes it. [default: all]",
)
@click.option(
    "--host",
    type=click.Choice(["pinned", "registered", "staged"]),
    default="pinned",
    show_default=True,
    help="Memory that rows are copied from: page-locked; huge pages that are registered; or ordinary, through "
    "a small page-locked ring.",
)
@click.option("--force", is_flag=True, help="Go on where the rows seem to need more host memory than there is.")
@click.option(
    "--merge",
    type=click.Choice(["cpu", "gpu"]),
    default="gpu",
    show_default=True,
    help="Where the outputs of both chains are summed.",
)
@click.option(
    "--link-pad",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Copies more of every row: imitates a slower link.",
)
@click.option("--staging", type=click.IntRange(1), help="Rows for steps that are streamed. [default: 2 * top_k]")
@click.option("--headroom", default="900MiB", show_default=True, help="Device memory to leave free.")
@click.option("--device-bytes", help="Memory of the numpy backend's device, such as 2GiB. [default: what there is]")
@click.option("--device", type=click.IntRange(0), help="Number of the GPU. [default: 0]")
@click.option("--sms", type=click.IntRange(1), help="SMs that the hot chain may use: imitates a smaller GPU.")
@click.option("--alias-layers", type=click.IntRange(1), help="Store the rows of N layers only; others are aliases.")
@click.option(
    "--cpu-threads",
    type=click.IntRange(1),
    help="Threads of the cold chain. [default: seven of eight physical cores, less one]",
)
@click.option(
    "--spin-us",
    type=click.FloatRange(0, 1e6),
    default=1000.0,
    show_default=True,
    help="Microseconds that idle threads of the cold chain watch memory before they sleep.",
)
@click.option(
    "--activations",
    type=click.Choice(["float32", "int8"]),
    default="float32",
    show_default=True,
    help="int8: the cold chain rounds what meets block dtypes, for speed; the error is about a hundredth.",
)
@click.option(
    "--cold", default="native", show_default=True, help="Cold chain; 'numba' needs no C compiler and is slower."
)
@click.option("--dense-us", type=DenseTime(), default="0", show_default=True, metavar="US|auto",
              help="Microseconds of device time a layer that stand for attention; auto: of the shape's dense weights.",
)  # fmt: skip
@click.option("--machine", metavar="FILE", help="A file of 'slotwise calibrate' or 'slotwise machine', for "
              "--overlap auto and --lag-prefetch auto.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each side.")
@click.option("--timeline", metavar="FILE", help="Write the timed run for Perfetto, in the Chrome trace format.")
@click.option("--check", is_flag=True, help="Hold plans against a replay, outputs against float64, slots against rows.")
@decisions
@click.option("-o", "--output", "out", metavar="R.parquet",
              help="Result file, new: what --json prints, for 'slotwise report'.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(trace, as_json, **options):
    """Carry out a trace T (a file, or 'sample') with real copies and real computation, and measure it.

    A terminal shows step, tokens/s so far, hit rate, loads, drops by reason and what came late while it works.
    """
    with working(by_hand=True) as progress:
        result = slotwise.run(trace, progress=progress, **options)
    if as_json:
        click.echo(json.dumps(result, allow_nan=False))
    else:
        from .run_tables import print_run

        for run in result["runs"]:
            print_run(run, len(result["runs"]))
        if options["out"]:
            kept = f"{len(result['runs'])} row{'s' * (len(result['runs']) > 1)}"
            click.echo(f"{options['out']}: {kept}; next: slotwise report {options['out']} -o report")
    broken = [run["incomplete"] for run in result["runs"] if run["incomplete"]]
    if broken:
        steps, error = broken[0]["steps"], broken[0]["error"]
        raise click.ClickException(f"broke off after {steps} finished steps, whose figures are above: {error}")
