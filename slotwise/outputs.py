"""Whether a file can be written, for commands to ask before their work and not after it."""

from slotwise.traces.files import check_target

__all__ = ["check_target"]
