"""The one error of this folder, so that a caller can tell a wrong request from a bug."""


class BadPolicy(ValueError):
    """A policy, a pool or a live call that cannot be: the message names the value, the rule and the way out."""


class Refused(BadPolicy):
    """Each part is right, but not together: a sweep leaves such a configuration out."""


class PolicyWarning(UserWarning):
    """Something about a pool that its maker should know."""
