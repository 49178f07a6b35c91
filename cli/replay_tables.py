"""The printed form of one replay."""

import math

import click

from .screen import columns, pairs, show, wrapped


def print_result(result) -> None:
    """A summary, the counters that are not zero by phase, the rates, and every option that has a value."""
    wrapped(repr(result))
    click.echo("\nCounters (SIMULATED)")
    phases = ("all phases" if result.options["phase"] == "all" else result.options["phase"], "prefill", "decode")
    rows = []
    for name, count in result.counters.items():
        counts = [count, *(result.by_phase[phase][name] for phase in ("prefill", "decode"))]
        if any(counts):
            rows.append([name, *(f"{value:,}" for value in counts)])
    show(columns(("counter", *phases), rows, ("counter",)))
    click.echo()
    pairs("rates: ", (f"{name} {_spelt(value)}" for name, value in result.rates.items()), "  ")
    cycle = result.token_cycle_bytes
    wrapped(f"token cycle T: {f'{cycle:,} bytes' if cycle else 'row size unknown (--row-bytes N)'}")
    if result.plan_sha256:
        click.echo(f"plan sha256: {result.plan_sha256}")
    pairs("start: cold; ", (f"{name}={value}" for name, value in result.options.items() if value is not None), ", ")


def _spelt(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
