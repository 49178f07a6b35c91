"""The printed form of one replay."""

import math

import click


def print_result(result) -> None:
    """A summary, the counters that are not zero by phase, the rates, and the options that differ from the defaults."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    click.echo(repr(result))
    table = Table(title="Counters (SIMULATED)", title_justify="left")
    table.add_column("counter")
    for name in ("all phases" if result.options["phase"] == "all" else result.options["phase"], "prefill", "decode"):
        table.add_column(name, justify="right")
    for name, count in result.counters.items():
        phases = [result.by_phase[phase][name] for phase in ("prefill", "decode")]
        if count or any(phases):
            table.add_row(name, *(f"{value:,}" for value in (count, *phases)))
    console.print(table)
    rates = "  ".join(f"{name} {_spelt(value)}" for name, value in result.rates.items())
    click.echo(f"rates: {rates}")
    cycle = result.token_cycle_bytes
    click.echo(f"token cycle T: {f'{cycle:,} bytes' if cycle else 'row size unknown (--row-bytes N)'}")
    if result.plan_sha256:
        click.echo(f"plan sha256: {result.plan_sha256}")
    click.echo("start: cold; " + ", ".join(f"{k}={v}" for k, v in result.options.items() if v is not None))


def _spelt(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
