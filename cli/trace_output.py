"""How the commands of `slotwise trace` write files: nothing is replaced unasked, a bar moves, the result is said."""

from contextlib import contextmanager
from pathlib import Path

import click

import slotwise

from .progress import working

force_option = click.option("--force", is_flag=True, help="Replace the output file if it exists.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def check_output(output, force):
    """A capture may have taken days: nothing that exists is replaced unless asked for."""
    path = Path(output)
    if not path.name or (path.exists() and not path.is_file()):
        raise click.UsageError(f"cannot write to {output!r}: name a file")
    if not path.parent.is_dir():
        raise click.UsageError(f"cannot write to {output!r}: there is no folder {str(path.parent)!r}")
    if path.exists() and not force:
        raise click.UsageError(f"{output} exists; choose another name, or replace it with --force")
    from slotwise.outputs import check_target

    check_target(path)


def save(trace, output, *, quiet=False):
    """Writes the trace, and says so unless `quiet`."""
    with advancing(trace.n_tokens) as advance:
        trace.save(output, advance=advance)
    if not quiet:
        click.echo(f"{output}: {trace!r}")


@contextmanager
def advancing(total, doing="writing"):
    """A bar for work over `total` rows, or bytes; yields the function that is told of every few more."""
    done = 0

    def advance(more):
        nonlocal done
        done += more
        show(done, total, doing)

    with working() as show:
        show(0, total, doing)
        yield advance


def read_bytes(sources):
    """How many bytes these files have; a name that is no file counts nothing, and is told of by who opens it."""
    return sum(path.stat().st_size for path in map(Path, sources) if path.is_file())


def told(output):
    """What `--json` says of a trace that was written."""
    trace = slotwise.open_trace(output)
    names = ("n_tokens", "n_steps", "n_requests", "n_layers", "sha256")
    return {"output": str(output), **{name: getattr(trace, name) for name in names}, "source": trace.meta.source}
