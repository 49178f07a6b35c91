"""What the executor raises: for what it was asked, and for what the device would not do."""

LESS_HOST = (  # the way out wherever rows find no room
    "fewer rows are stored with --alias-layers N of `run` and `validate`, --quick or a smaller --shape of `calibrate`"
)


class BadExecutor(ValueError):
    """A wrong option or array, or a machine or build that lacks what was asked for: name, value, rule, way out."""


class ExecutorWarning(UserWarning):
    """A run goes on that may not go well."""


class CheckFailed(RuntimeError):
    """What was computed, decided or copied is not what it should be."""


class BrokenOff(RuntimeError):
    """A run cannot go on; the steps that it has finished stand."""


class ContextLost(BrokenOff):
    """The device answers nothing any more, and what was on it is gone."""


class WorkerFailed(BrokenOff):
    """A job of the cold chain failed: its output is not to be used."""


class CopyRefused(RuntimeError):
    """A batch of copies was not taken: nothing of it was started."""


class CopyDoubtful(RuntimeError):
    """A batch of copies failed, and part of it may have been made."""
