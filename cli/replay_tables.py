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
            write = _bytes if name.startswith("bytes_") else "{:,}".format
            rows.append([name, *map(write, counts)])
    show(columns(("counter", *phases), rows, ("counter",)))
    click.echo()
    pairs("rates: ", (f"{name} {_spelt(name, value)}" for name, value in result.rates.items()), "  ")
    cycle = result.token_cycle_bytes
    wrapped(f"token cycle T: {_bytes(cycle) if cycle else 'row size unknown (--row-bytes N)'}")
    if result.plan_sha256:
        click.echo(f"plan sha256: {result.plan_sha256}")
    pairs("start: cold; ", (f"{name}={value}" for name, value in result.options.items() if value is not None), ", ")


def _spelt(name: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    return _bytes(value) if name.startswith("bytes_") else f"{value:.4g}"


def _bytes(value: float) -> str:
    from slotwise.compare import written

    return written(value, "B")
