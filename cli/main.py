"""The `slotwise` command: which subcommands there are, and how every way to end becomes an exit code and one line."""

import errno
import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module

import click

import slotwise

from .memory import give_back_early
from .progress import beside

COMMANDS = {  # name -> where its click command is, and the line about it in `slotwise --help`
    "compare": ("compare:command", "From a trace to a report, in one go. Start here."),
    "replay": ("replay:command", "Replay one configuration and print every counter."),
    "run": ("run:command", "Carry out one configuration: real copies, real computation."),
    "calibrate": ("calibrate:command", "Measure this machine, to price replays on it."),
    "validate": ("validate:command", "Hold prices against measured runs of the same grid."),
    "advise": ("advise:command", "Say what to run in so much VRAM on a machine."),
    "machine": ("machine:command", "Estimate a machine from a datasheet, to price replays on it."),
    "sweep": ("sweep:command", "Replay a grid of configurations into a Parquet file; resumable."),
    "report": ("report:command", "Turn result files into HTML, PNG, CSV and Markdown."),
    "capture": ("capture:command", "Run a Hugging Face MoE model and record its routing."),
    "trace": ("trace:command", "Import, inspect, synthesise, profile, reshape and export traces."),
    "policies": ("listing:policies", "List the eviction policies and their parameters."),
    "formats": ("listing:formats", "List the trace formats that can be read."),
    "predictors": ("listing:predictors", "List the look-ahead predictors for replay."),
    "backends": ("listing:backends", "List the devices that run can use, and what one lacks."),
}
# BadTrace, BadPolicy, BadOption and BadResult live here; recognised by name, as an import would cost a second.
ERROR_HOMES = {f"slotwise.{folder}.errors" for folder in ("traces", "policies", "replay", "executor", "reports")}
OK, FAILED, BAD_INPUT, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
BAD_PATHS = {
    getattr(errno, name) for name in "ENOENT EACCES EPERM EISDIR ENOTDIR EEXIST ENAMETOOLONG ELOOP EROFS".split()
}
LONGEST = 1000  # characters of a message: nobody reads a number of 5000 digits
_SAID: set[str] = set()  # warnings are said once


class _Unread(Exception):
    """The reader of the output went away; under its own name, since click makes exit code 1 of a broken pipe."""


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is asked for by name, so that help and typos cost no heavy import."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _Unread from None

    def list_commands(self, ctx):
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx, cmd_name):
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return getattr(import_module(f"slotwise.cli.{module}"), attribute)

    def resolve_command(self, ctx, args):
        name, known = args[0], self.list_commands(ctx)
        if not name.startswith("-") and name not in known:
            near = get_close_matches(name, known, n=1)
            way_out = f"Did you mean '{near[0]}'?" if near else f"Commands: {', '.join(known)}."
            raise click.UsageError(f"no command named '{name}'. {way_out}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="A trace is a file, or the word 'sample' for the real one that comes with the package. "
    "Example: slotwise compare sample -o report",
)
@click.version_option(slotwise.__version__, prog_name="slotwise", message="%(prog)s %(version)s")
def group():
    """Which experts of a Mixture-of-Experts model to keep in VRAM, under which policy, with how many slots."""


def main(args=None) -> int:
    """Runs one command line (default: the process's own) and returns the exit code.

    0 done; 1 the work failed; 2 wrong usage or bad input, with one line on stderr; 130 interrupted, 143 terminated. A
    result cut short because its reader went away (`| head`) is no error worth a word: 141. Any other exception
    is a bug, and shows.
    """
    give_back_early()
    try:
        with warnings.catch_warnings(), _cleaning_up():
            warnings.showwarning = _warn
            code = group.main(args, prog_name="slotwise", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone can still be answered
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return BAD_INPUT
    except click.Abort as error:
        return INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else _say("aborted", FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.UsageError as error:
        where = f" ({error.ctx.command_path} --help)" if error.ctx else ""
        return _say(error.format_message() + where, BAD_INPUT)
    except click.ClickException as error:
        return _say(error.format_message(), BAD_INPUT if isinstance(error, click.FileError) else FAILED)
    except (_Unread, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the flush at exit finds a reader
        return UNREAD
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        words = error.strerror[:1].lower() + error.strerror[1:] if error.strerror else str(error)
        bad_input = error.errno in BAD_PATHS or isinstance(error, FileNotFoundError)
        return _say(where + words, BAD_INPUT if bad_input else FAILED)
    except MemoryError as error:
        return _say(f"not enough memory for this ({error or 'of unknown size'}); ask for less at a time", FAILED)
    except (ValueError, RuntimeError) as error:
        if not any(ancestor.__module__ in ERROR_HOMES for ancestor in type(error).__mro__):
            raise
        return _say(str(error), BAD_INPUT if isinstance(error, ValueError) else FAILED)
    return code if isinstance(code, int) else OK


@contextmanager
def _cleaning_up():
    """A polite kill ends like any error, with temporary files removed; only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(message: str, code: int) -> int:
    """Puts the message on stderr as one line and hands the exit code back."""
    line = " ".join(message.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - 300]} ... {line[-300:]}"
    click.echo(f"slotwise: {line}", err=True)
    return code


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """Our own warnings are a line for the user; those of libraries keep the place where they arose."""
    if category.__module__ in ERROR_HOMES:
        text = " ".join(str(message).split())
        if text not in _SAID:
            _SAID.add(text)
            beside(f"slotwise: warning: {text}")
    else:
        click.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)
