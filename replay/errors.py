"""The one error of this folder: an option that cannot be."""


class BadOption(ValueError):
    """The message names the option, its value, the rule and the way out."""


class ReplayWarning(UserWarning):
    """Something about a replay that its reader should know."""
