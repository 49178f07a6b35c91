"""The options that every command which decides about experts shares, with their defaults in one place."""

from collections.abc import Callable
from functools import wraps

import click


class Ticks(click.ParamType):
    """A number of ticks from 0, or `auto`."""

    name = "ticks"

    def convert(self, value, param, ctx):
        return value if value == "auto" else click.IntRange(0).convert(value, param, ctx)


_GRID: list[Callable] = [
    click.option("--scope", type=click.Choice(["layer", "global"]), default="layer", show_default=True,
                 help="A pool per layer, or one pool for all layers."),
    click.option("--contract", type=click.Choice(["event", "sequential"]), default="event", show_default=True,
                 help="Judge a whole tick at once, or one expert after the other (textbook form)."),
    click.option("--horizon", type=click.IntRange(1), default=1, show_default=True,
                 help="How many layers ahead predictions look."),
    click.option("--predictor", default="trace", show_default=True,
                 help="Who predicts; 'slotwise predictors' lists them."),
    click.option("--lag-demand", type=click.IntRange(0), default=0, show_default=True,
                 help="Ticks (one layer is one tick) that a demand load takes beyond its own."),
    click.option("--lag-prefetch", type=Ticks(), default="0", show_default=True, metavar="N|auto",
                 help="The same for a speculative load; auto: what the copies take on the --machine."),
    click.option("--max-loads", type=click.IntRange(0), help="Loads a tick and pool may start. [default: no cap]"),
    click.option("--overflow", type=click.Choice(["bypass", "exceed"]), default="bypass", show_default=True,
                 help="A tick that demands more than fits: bypass the surplus, or exceed the pool and trim later."),
    click.option("--reset", type=click.Choice(["persistent", "request"]), default="persistent", show_default=True,
                 help="Keep pools and history over requests, or start anew at each."),
    click.option("--prefill", type=click.Choice(["cached", "stream"]), default="cached", show_default=True,
                 help="Steps above the batch gate follow the ordinary rules, or stream past the pool."),
    click.option("--batch-gate", type=click.IntRange(0), default=8, show_default=True,
                 help="Largest step, in tokens, that looks ahead."),
    click.option("--steps", type=click.IntRange(0), help="Replay the first N steps. [default: all]"),
    click.option("--accept", type=click.FloatRange(0, 1), default=1.0, show_default=True,
                 help="Chance that a drafted token is accepted."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the acceptance draws."),
]  # fmt: skip
_DECISIONS: list[Callable] = [
    *_GRID,
    click.option("--verify-tokens", type=click.IntRange(1), default=1, show_default=True,
                 help="Build speculative verify steps of M tokens from a decode trace (optimistic: rejected rows are "
                 "the tokens that follow)."),
    click.option("--plan-hash", is_flag=True, help="Print the SHA-256 of every decision."),
]  # fmt: skip
_REPLAY: list[Callable] = [
    click.option("--miss", type=click.Choice(["cpu", "fetch"]), default="cpu", show_default=True,
                 help="Misses are computed on the CPU, or their rows are fetched."),
    click.option("--phase", type=click.Choice(["all", "decode", "prefill"]), default="all", show_default=True,
                 help="Replay everything, report this phase."),
    click.option("--row-bytes", type=click.IntRange(1), help="Bytes of one expert, where the trace does not say."),
    click.option("--window", type=click.IntRange(1), help="Steps per point along time. [default: 1 % of the trace]"),
    click.option("--pollution", is_flag=True, help="Also run without look-ahead, and count the misses it caused."),
]  # fmt: skip


_PRICE: list[Callable] = [
    click.option("--machine", metavar="FILE", help="Also price it, in seconds of this machine; 'slotwise machine' "
                 "estimates one."),
    click.option("--overlap", type=click.Choice(["on", "off", "auto"]), default="on", show_default=True,
                 help="Priced with both chains at the same time, one after the other, or tick by tick as it pays."),
    click.option("--late", type=click.Choice(["wait", "cold"]), default="wait", show_default=True,
                 help="Priced so that a hit whose copy has not landed waits for it, or is computed on the CPU."),
    click.option("--dense-us", type=click.FloatRange(0, 1e6), default=0.0, show_default=True,
                 help="Microseconds of the GPU a layer that stand for attention."),
    click.option("--cpu-threads", type=click.IntRange(1), help="Threads of the cold chain. [default: the machine's]"),
    click.option("--max-queued", metavar="BYTES", help="Speculative bytes that the link is handed at a time, such as "
                 "64MiB; demand overtakes the rest. [default: all]"),
    click.option("--spec-chunk", type=click.IntRange(1), help="Speculative rows in a batch of copies. [default: all]"),
    click.option("--split-share", type=click.FloatRange(0, 1), help="Share of the misses that is fetched, the rest "
                 "computed on the CPU. [default: as --miss says]"),
]  # fmt: skip


_SIZED: list[Callable] = [
    click.option("--policy", default="lru", show_default=True, help="Policy; 'slotwise policies' lists them."),
    click.option("--slots", help="Slots per pool: a count (32) or a fraction (25%). [default: 25%, unless --vram]"),
    click.option("--vram", help="Pool bytes of all layers together, such as 8GiB, in place of --slots."),
    click.option("--width", type=click.IntRange(0), default=0, show_default=True,
                 help="Predictions per token considered."),
]  # fmt: skip


def one_configuration(command: Callable) -> Callable:
    """Adds policy, size and width of one configuration; the size is a quarter of the experts if nothing is said."""

    @wraps(command)
    def sized(*, slots, vram, **options):
        return command(slots="25%" if slots is None and vram is None else slots, vram=vram, **options)

    return _with(_SIZED, sized)


def decisions(command: Callable) -> Callable:
    """Adds the options that plans depend on; they arrive as keywords of the same names as `slotwise.replay` takes."""
    return _with(_DECISIONS, command)


def grid_decisions(command: Callable) -> Callable:
    """The same without what a grid has its own words for, or always does."""
    return _with(_GRID, command)


def priced(command: Callable) -> Callable:
    """Adds the machine that replays are priced on, and how."""
    return _with(_PRICE, command)


def shared(command: Callable) -> Callable:
    """Adds the decisions, and what only a replay can be asked for, its price among it."""
    return decisions(_with(_REPLAY, priced(command)))


def _with(options: list[Callable], command: Callable) -> Callable:
    for option in reversed(options):
        command = option(command)
    return command


def numbers(text: str, name: str) -> list[int]:
    """`0,4,8` -> [0, 4, 8]."""
    try:
        return [int(part) for part in text.split(",")]  # not what int refuses for its length, either
    except ValueError:
        raise click.UsageError(f"--{name} {text!r}: write whole numbers with commas, such as 0,4") from None
