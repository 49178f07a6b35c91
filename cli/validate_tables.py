"""A validation for a person to read: every configuration, errors by what bounds it, terms, pairs, and the verdict."""

import click

from .screen import columns, show, wrapped


def print_validation(result):
    """Tables and a verdict with its reasons."""
    rows = [
        (
            one["policy"], one["slots"], str(one["width"]), one["overlap"], str(one["verify_tokens"]), one["miss"],
            one["stratum"], f"{one['predicted']:,.2f}", f"{one['measured']:,.2f}", _range(one["measured_interval"]),
            f"{100 * one['error']:+.1f} %", f"{100 * (one['baseline'] / one['measured'] - 1):+.1f} %",
        )
        for one in result["configurations"]
    ]  # fmt: skip
    labels = "/".join(sorted({one["label"] for one in result["configurations"]}))
    names = (
        "policy", "slots", "width", "overlap", "verify", "miss", "bound by", f"tokens/s {labels}", "MEASURED",
        "95 % interval", "error", "of the line",
    )  # fmt: skip
    show(columns(names, rows, ("policy",)))
    if result["left_out"]:
        click.echo(f"Left out at width 0, with nothing to guard there: {', '.join(result['left_out'])}")
    click.echo()
    strata = [("all", result["all"]), *result["strata"].items()]
    show(
        columns(
            ("bound by", "configurations", "median error", "p95", "worst", "line: median", "p95", "worst"),
            [
                (name, str(each["configurations"]), *map(_share, _three(each)), *map(_share, _three(each["baseline"])))
                for name, each in strata
            ],
            ("bound by",),
        )
    )
    click.echo()
    terms = ", ".join(f"{name.removesuffix('_s')} {100 * value:+.1f} %" for name, value in result["terms"].items())
    wrapped(f"predicted less measured, of the run's seconds, median: {terms}")
    pairs = result["pairs"]
    wrapped(
        f"policies against each other: {_count(pairs['of'], 'pair')}, {pairs['decided']} of which the blocks decide; "
        f"wrong sign {pairs['wrong_sign']}, wrong size {pairs['wrong_size']}; "
        f"Kendall's tau {_tau(result['kendall_tau'])}"
    )
    drift = result["drift"]
    again = "not calibrated again" if drift is None else f"prices of two calibrations differ by {_share(drift)}"
    wrapped(
        f"plans equal, tick for tick; {_count(result['blocks'], 'block')}, {result['blocks_dropped']} dropped as their "
        f"sentinel was off; noise floor {_share(result['noise_floor'])}; {again}"
    )
    wrapped(_conditions([block["load"] for block in result["each_block"]]))
    wrapped(f"verdict: {result['verdict']}" + "".join(f"; {reason}" for reason in result["reasons"]))


def _conditions(loads):
    """What the machine did meanwhile, over all blocks."""
    stolen, switches = (sum(load[name] for load in loads) for name in ("steal_s", "involuntary_switches"))
    said = f"meanwhile: {stolen:.2f} s of CPU stolen, {switches:,} involuntary switches"
    said += f", {max(load['most_rss_bytes'] for load in loads) / 2**30:.2f} GiB of memory at most"
    told = [load["device"] for load in loads if load["device"]]
    names = dict.fromkeys(name for each in told for name in each)
    ranges = {name: [bound for each in told for bound in each.get(name, ())] for name in names}
    return said + (
        "".join(f", {name} {min(each):g} to {max(each):g}" for name, each in ranges.items())
        or "; clocks and temperature are not told by this backend"
    )


def _count(number, of):
    return f"{number} {of}{'s' * (number != 1)}"


def _three(each):
    return each["median"], each["p95"], each["worst"]


def _share(value):
    return f"{100 * value:.1f} %"


def _tau(value):
    return "–" if value is None else f"{value:.2f}"


def _range(interval):
    return " to ".join(f"{value:,.2f}" for value in interval) if interval else "–"
