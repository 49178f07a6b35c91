"""Traces from the command line: `slotwise trace import | info | synth | profile`, and the group of all its commands."""

import json
import warnings

import click

import slotwise

from .trace_edit import cut, merge, regroup, split
from .trace_export import export
from .trace_output import advancing, check_output, force_option, read_bytes, save


@click.group(
    name="trace",
    epilog="Example: slotwise trace info sample",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command():
    """Import, inspect, synthesise, profile, reshape and export traces."""


for _command in (split, merge, cut, regroup, export):
    command.add_command(_command)


@command.command("import", epilog="Example: slotwise trace import expert_weights_*.txt -o law.parquet --n-experts 64")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="T.parquet", required=True, help="Where to write the trace.")
@click.option("--format", "name", metavar="NAME", help="Read SRC as this format instead of sniffing it.")
@click.option("--n-experts", type=int, help="Experts per layer, where the capture does not say.")
@click.option("--top-k", type=int, help="Experts per token, where the capture does not say.")
@click.option("--row-bytes", type=click.IntRange(1), help="Bytes of one expert, where the capture does not say.")
@click.option("--model", help="The model's name, where the capture does not say.")
@click.option(
    "--max-size",
    metavar="GIB",
    type=click.FloatRange(0, min_open=True),
    default=16.0,
    show_default=True,
    help="Refuse a file that declares more GiB than that when decoded.",
)
@force_option
def import_(sources, output, force, name, max_size, **hints):
    """Turn a foreign capture into a trace file.

    Several SRC are one capture kept in several files: one per layer, or one per request.
    """
    check_output(output, force)
    with advancing(read_bytes(sources), "reading") as advance:
        trace = slotwise.open_trace(sources, name, advance=advance, max_size=int(max_size * 2**30), **hints)
    save(trace, output)


@command.command(epilog="Example: slotwise trace info sample")
@click.argument("trace", metavar="T")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--seed", default=0, show_default=True, help="Seed of the shuffled control.")
@click.option("--plot", metavar="FILE.png", help="Draw recall and precision of the predictions by layer and horizon.")
@force_option
def info(trace, as_json, seed, plot, force):
    """Say what is in a trace: shape, provenance, skew, locality, working set, quality of predictions."""
    if plot:
        check_output(plot, force)
    facts = slotwise.open_trace(trace).describe(seed)
    if plot:
        slotwise.plot_predictions(facts, plot)
    if as_json:
        click.echo(json.dumps(facts, allow_nan=False))
        return
    from .trace_tables import print_facts

    print_facts(facts)
    for text in facts["warnings"]:
        warnings.warn(text, slotwise.TraceWarning, stacklevel=1)


@command.command(epilog="Example: slotwise trace synth -o t.parquet --tokens 100000 --experts 512 --width 4")
@click.option("-o", "--output", metavar="T.parquet", required=True, help="Where to write the trace.")
@click.option("--tokens", "n_tokens", default=10000, show_default=True, help="Rows of the trace.")
@click.option("--layers", "n_layers", default=24, show_default=True, help="MoE layers.")
@click.option("--experts", "n_experts", default=128, show_default=True, help="Experts per layer.")
@click.option("--top-k", default=8, show_default=True, help="Experts per token and layer.")
@click.option("--skew", default=0.6, show_default=True, help="Popularity falls as 1 / rank ** skew; 0: all alike.")
@click.option("--reuse", default=0.25, show_default=True, help="Chance that an expert is one of the token before.")
@click.option("--correlation", default=0.1, show_default=True, help="Chance that it follows from the layer before.")
@click.option("--topics", default=4, show_default=True, help="Topics that the text changes between.")
@click.option("--topic-tokens", default=500, show_default=True, help="Tokens until the topic changes, on average.")
@click.option("--drift", default=0.5, show_default=True, help="Share of the popularity order that a topic reorders.")
@click.option("--width", default=0, show_default=True, help="Predictions to record per token and layer.")
@click.option("--recall", default=0.85, show_default=True, help="Chance that each of the first top-k is right.")
@click.option("--requests", default=1, show_default=True, help="Requests that the tokens are divided among.")
@click.option("--prompt-tokens", default=0, show_default=True, help="Rows of the prefill step that opens a request.")
@click.option("--row-bytes", type=int, help="Bytes of one expert; without it, they are unknown.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same bytes.")
@force_option
def synth(output, force, **options):
    """Make a seeded synthetic trace."""
    check_output(output, force)
    save(slotwise.Trace.synthesise(**options), output)


@command.command(epilog="Example: slotwise trace profile sample -o profile.json")
@click.argument("traces", metavar="T...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="P.json", required=True, help="Where to write the profile.")
@click.option("--format", "name", metavar="NAME", help="Read T as this format; `counts` for files of counts.")
@click.option("--phase", type=click.Choice(["decode", "prefill", "all"]), default="decode", show_default=True)
@force_option
def profile(traces, output, force, name, phase):
    """Count demands per expert, merged over traces, for `static(profile=P.json)` and pins.

    T may be a file of counts (`slotwise formats counts`): they are added as they are, whatever phase they are of.
    """
    check_output(output, force)
    record = slotwise.write_profile([slotwise.open_counted(trace, name) for trace in traces], output, phase)
    what = "counts" if record["phase"] == "unknown" else f"{phase} demands"
    click.echo(f"{output}: {what} of {len(traces)} {'file' if what == 'counts' else 'trace'}{'s' * (len(traces) > 1)}")
