"""Printing for people: as wide as the terminal, and without a limit where no terminal reads, so that nothing is cut."""

import textwrap
from collections.abc import Iterable, Sequence

import click

ENDLESS = 100_000  # columns
WHOLE = 60  # letters up to which an item of a list stays on one line


def console():
    """A console that knows how wide it may be."""
    from rich.console import Console

    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = ENDLESS
    return made


def show(thing) -> None:
    """Prints a table or a text of rich, without blanks at the ends of lines."""
    to = console()
    with to.capture() as said:
        to.print(thing)
    click.echo("\n".join(line.rstrip() for line in said.get().splitlines()))


def wrapped(text: str, indent: str = "") -> None:
    """Prints a text, its lines broken between words where they are longer than the terminal."""
    width = console().width
    for line in text.splitlines():
        margin = indent + line[: len(line) - len(line.lstrip())]
        lines = textwrap.wrap(
            line.strip(), width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
        )
        click.echo("\n".join(lines).replace("\xa0", " "))


def pairs(title: str, items: Iterable[str], separator: str) -> None:
    """Prints `title item item ...` in lines that break between items only."""
    wrapped(title + separator.join(item if len(item) > WHOLE else item.replace(" ", "\xa0") for item in items))


def columns(names: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = (), gap: int = 2):
    """A plain table: numbers to the right; the columns in `words` to the left, folded where the line is too short."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for name in names:
        left = name in words
        table.add_column(Text(name), justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
