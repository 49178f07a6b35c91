"""The one progress bar: on stderr, where a terminal watches, and nowhere else."""

import sys
from contextlib import contextmanager
from pathlib import Path

import click


def beside(line: str) -> None:
    """A line on stderr, on its own: a bar that is there moves down. (click would write past the bar's stderr.)"""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def working(*, by_hand: bool = False):
    """A progress bar on stderr where stderr is a terminal; yields a function of (done, total, what).

    by_hand: drawn by the calls of that function alone, and no thread draws meanwhile: for work that is timed. The text
    may then take several lines.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    said = TextColumn("{task.description}", table_column=Column(no_wrap=not by_hand))
    columns = (BarColumn(10 if by_hand else 40), MofNCompleteColumn(), said)
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=not by_hand) as bar:
        task = bar.add_task("starting", total=None)

        def show(done: int, total: int | None, what: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(what), refresh=by_hand)

        yield show


@contextmanager
def resumable(result):
    """Says on an interrupt or a polite kill what is kept of what goes to the file `result`, and the way on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if any(Path(f"{result}{end}").exists() for end in ("", ".part")):
            said = "what is finished is kept, run the same command to go on"
        else:
            said = "nothing had finished, nothing is kept"
        click.echo(f"slotwise: interrupted; {said}", err=True)
        raise
