"""A list of keys from oldest to newest, as links inside the pool's buffer: constant time in place of a scan."""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from numba import njit

from .layout import NONE


@njit(forceinline=True)
def append(p, key):
    """Makes the key the newest, wherever it was."""
    end = p.newer.shape[0] - 1
    if p.newer[key] != NONE:
        unlink(p, key)
    newest = p.older[end]
    p.newer[newest] = key
    p.older[key] = newest
    p.newer[key] = end
    p.older[end] = key


@njit(forceinline=True)
def unlink(p, key):
    """Takes the key out of the list, if it is in it."""
    newer = p.newer[key]
    if newer != NONE:
        older = p.older[key]
        p.newer[older] = newer
        p.older[newer] = older
        p.newer[key] = NONE


@njit(forceinline=True)
def first_free(p, at):
    """The oldest key in a slot that may leave now, or NONE."""
    end = p.newer.shape[0] - 1
    key = p.newer[end]
    while key != end and (p.busy[key] >= at.tick or p.slot[key] == NONE):
        key = p.newer[key]
    return NONE if key == end else key
