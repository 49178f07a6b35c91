"""The printed form of one replay."""

import math

import click

from .screen import columns, pairs, show, wrapped

PARTS = {"late_s": "awaited_copies"}  # `late` is the counter of demands that the plan holds to be misses


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
    if result.price:
        _print_price(result.price.to_dict(), result.rates["hit_rate"], result.options)
    cycle = result.token_cycle_bytes
    wrapped(f"token cycle T: {_bytes(cycle) if cycle else 'row size unknown (--row-bytes N)'}")
    if result.plan_sha256:
        click.echo(f"plan sha256: {result.plan_sha256}")
    pairs("start: cold; ", (f"{name}={value}" for name, value in result.options.items() if value is not None), ", ")


def _print_price(price, hit_rate, options) -> None:
    """Tokens per second and latency, where the time goes, and whether look-ahead pays: what the machine makes of it."""
    label = price["label"]
    click.echo(f"\nPrice ({label}; {price['machine']}, {price['machine_label']} {price['machine_date']})")
    rows = [["tokens/s", _figure(price["tokens_per_s"]), _between(price["tokens_per_s_interval"])]]
    rows += [
        [f"tokens/s, {phase}", _figure(each["tokens_per_s"]), ""]
        for phase, each in price["by_phase"].items()
        if each["tokens"]
    ]
    rows += [[f"seconds per output token, p{rank}", _figure(price[f"tpot_p{rank}_s"]), ""] for rank in (50, 95, 99)]
    rows.append(["hit rate", _figure(hit_rate), _between(price["hit_rate_interval"])])
    rows.append(
        ["bytes per token", _bytes(price["bytes_per_token"] or 0), _between(price["bytes_per_token_interval"], _bytes)]
    )
    for name, title in (("without", "tokens/s at width 0"), ("ceiling", "tokens/s with an oracle, the ceiling")):
        if price[name]:
            rows.append([title, _figure(price[name]["tokens_per_s"]), _between(price[name]["tokens_per_s_interval"])])
    if price["gain"] is not None:
        rows.append(["gain of look-ahead, times", _figure(price["gain"]), _between(price["gain_interval"])])
        rows.append(["precision on non-resident experts", _figure(price["precision"]), ""])
        rows.append(["break-even precision here", _figure(price["break_even_precision"]), ""])
    show(columns(("", label, "95 % interval"), rows, ("",)))
    click.echo()
    total = price["seconds"] or 1.0
    parts = {PARTS.get(name, name.removesuffix("_s")): value for name, value in price["parts"].items() if value}
    pairs("time: ", (f"{name} {100 * value / total:.1f} %" for name, value in parts.items()), "  ")
    pairs("busy: ", (f"{name} {100 * (value or 0):.0f} %" for name, value in price["busy"].items()), "  ")
    if price["policy_cost_of"] == "lru" != options["policy"]:
        wrapped(f"the host decides as fast as for lru: the machine file has no figures of {options['policy']}")
    if price["lag_auto"]:
        wrapped(f"lag_prefetch {options['lag_prefetch']} follows from the machine")
    if price["overlap"] == "auto":
        wrapped(
            f"overlap: of the ticks with work for both chains {price['ticks_overlapped']:,} overlap, "
            f"{price['ticks_serial']:,} do not"
        )
    if price["late_hits"]:
        wrapped(
            f"awaited copies: of {price['late_hits']:,} hits, in {price['late_ticks']:,} ticks, which waited "
            f"{_figure(price['lateness_mean_s'])} s, at worst {_figure(price['lateness_worst_s'])} s"
        )
    if price["miss_s"] is not None:
        wrapped(
            f"step = {_figure(price['base_s'])} s + {_figure(price['miss_s'])} s per miss explains "
            f"{100 * (price['explained'] or 0):.0f} % of what decode steps differ by"
        )


def _figure(value) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _between(interval, write=_figure) -> str:
    return "" if interval is None else " to ".join(map(write, interval))


def _spelt(name: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    return _bytes(value) if name.startswith("bytes_") else f"{value:.4g}"


def _bytes(value: float) -> str:
    from slotwise.compare import written

    return written(value, "B")
