"""What goes wrong with a trace: one error class and one warning class."""


class BadTrace(ValueError):
    """A trace breaks a rule. The message is one line: file, row, layer, value, rule, and the way out."""


class TraceWarning(UserWarning):
    """A trace is readable, but looks like a capture that is known to be broken."""
