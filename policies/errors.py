"""The one error of this folder, so that a caller can tell a wrong request from a bug."""


class BadPolicy(ValueError):
    """A policy, a pool or a live call that cannot be: the message names the value, the rule and the way out."""


def not_compiled(spec: object, error: Exception) -> BadPolicy:
    """What numba says about a policy of one's own, cut down to the line that helps."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = (
        "Unknown attribute",
        "NameError",
        "Untyped",
        "Cannot unify",
        "Use of unsupported",
        "Invalid use",
        "No impl",
    )
    line = next((text for text in lines if any(word in text for word in telling)), lines[0])
    return BadPolicy(f"{spec} does not compile (its priority and hooks are compiled by numba): {line}")


class Refused(BadPolicy):
    """Each part is right, but not together: a sweep leaves such a configuration out."""
