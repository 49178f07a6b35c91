"""The one error of this folder: a result file that cannot be reported on."""


class BadResult(ValueError):
    """A file that is no result, or a folder that is not ours. One line: what, where, the rule, the way out."""
