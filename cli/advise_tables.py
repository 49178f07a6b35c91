"""Advice for a person to read: the answer in sentences, what more memory buys, and flags to paste."""

import click

from .screen import columns, show, wrapped

RUNNERS_UP = 3


def print_advice(found):
    """Sentences to act on, then tables."""
    from slotwise.advise_words import rate, size

    for sentence in found["answer"]:
        wrapped(sentence)
    others = [
        f"{one['policy']} (width {one['width']}, {one['scope']}, overlap {one['overlap']}) {rate(one)}"
        for one in found["candidates"][1 : 1 + RUNNERS_UP]
    ]
    if others:
        wrapped(f"Next by choice: {'; '.join(others)}.")
    points = [
        (
            size(one["pool_bytes"]), "–" if one["slots"] is None else f"{one['slots']:,}", rate(one),
            "–" if one["per_gib"] is None else f"{rate(one, 'per_gib')}, {100 * one['share_per_gib']:+.1f} %",
        )
        for one in found["curve"]
    ]  # fmt: skip
    show(columns(("pools", "slots", "tokens/s", "a further GiB"), points))
    click.echo("Flags of engines with such a cache, as their sources name them; not run here:")
    rows = [(one["flag"], one["engine"], one["meaning"], one["url"]) for one in found["flags"]]
    show(columns(("flag", "engine", "meaning", "source"), rows, ("flag", "engine", "meaning", "source")))
