"""The one error that the executor raises for what it was asked."""


class BadExecutor(ValueError):
    """A wrong option or array, or a machine or build that lacks what was asked for."""
