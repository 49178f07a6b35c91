"""Advice for a person to read: the answer, what it beats, what more memory buys, and what to beware of."""

import click

from .screen import columns, show, wrapped

GIB = 1 << 30
WORDS = {"all_cpu": "all experts on the CPU", "no_cache": "no cache, every row fetched", "bound": "opt, the bound"}


def print_advice(found):
    """A line to act on, then tables."""
    wrapped(
        f"{found['label']}, {found['machine']}: {found['policy']}, width {found['width']}, {found['slots']} slots "
        f"({found['pool_bytes'] / GIB:.2f} GiB = {found['vram'] / GIB:.2f} of VRAM less headroom, at most what all "
        f"experts take): {_speed(found)} tokens/s of {found['phase']} steps, hit rate {100 * found['hit_rate']:.1f} %"
    )
    for warning in found["warnings"]:
        wrapped(f"warning: {warning}")
    click.echo()
    rows = [
        (WORDS[name], _speed(one), _times(one["times"], one["times_interval"]))
        for name, one in found["against"].items()
    ]
    show(columns(("against", "tokens/s", "times as fast"), rows, ("against",)))
    ahead = found["prefetch"]
    if ahead:
        need, had = ("–" if ahead[n] is None else f"{ahead[n]:.2f}" for n in ("break_even_precision", "precision"))
        ceiling = f"; an oracle of that width: {_speed(ahead['ceiling'])} tokens/s" if ahead["ceiling"] else ""
        wrapped(
            f"look-ahead {'pays' if ahead['pays'] else 'does not pay'}: {ahead['policy']}, width {ahead['width']}, is "
            f"{_times(ahead['gain'], ahead['gain_interval'])} times the best without; precision {had}, break-even "
            f"{need}{ceiling}"
        )
    click.echo()
    points = [
        (
            f"{one['pool_bytes'] / GIB:.2f} GiB", "–" if one["slots"] is None else str(one["slots"]), _speed(one),
            "–" if one["per_gib"] is None else f"{one['per_gib']:+.2f} ({100 * one['share_per_gib']:+.1f} %)",
        )
        for one in found["curve"]
    ]  # fmt: skip
    show(columns(("pools", "slots", "tokens/s", "a further GiB"), points))
    if found["flat_from_bytes"] is not None:
        wrapped(f"from {found['flat_from_bytes'] / GIB:.2f} GiB on a further one gives less than 1 %")
    click.echo()
    show(
        columns(
            ("candidate", "width", "tokens/s"),
            [(one["policy"], str(one["width"]), _speed(one)) for one in found["candidates"]],
            ("candidate",),
        )
    )


def _speed(one):
    interval = one["tokens_per_s_interval"]
    between = "" if interval is None else f" ({interval[0]:,.2f} to {interval[1]:,.2f})"
    return f"{one['tokens_per_s']:,.2f}{between}"


def _times(ratio, interval):
    return f"{ratio:.2f}" + ("" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})")
