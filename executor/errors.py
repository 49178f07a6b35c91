"""What the executor raises: for what it was asked, and for what the device would not do."""


class BadExecutor(ValueError):
    """A wrong option or array, or a machine or build that lacks what was asked for: name, value, rule, way out."""


class ExecutorWarning(UserWarning):
    """A run goes on that may not go well."""


class CopyRefused(RuntimeError):
    """A batch of copies was not taken: nothing of it was started."""


class CopyDoubtful(RuntimeError):
    """A batch of copies failed, and part of it may have been made."""
