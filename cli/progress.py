"""The one progress bar: on stderr, where a terminal watches, and nowhere else."""

import sys
from contextlib import contextmanager


@contextmanager
def working():
    """A progress bar on stderr where stderr is a terminal; yields a function of (done, total, what)."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=escape(what))
