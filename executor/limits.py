"""One thread for everybody else: the pools of BLAS, OpenMP and numba would take the cores that the cold chain needs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

_LOCK = threading.RLock()  # an executor may be collected while another opens
_HELD: set[object] = set()
_GIVE_BACK: list[Callable[[], Any]] = []


def one_thread(then: Callable[[], None]) -> Callable[[], None]:
    """Limits the pools of this process to one thread each, until what is returned is called, which then calls `then`.

    Of several limits the last to end gives the threads back. OpenMP and numba keep their numbers by thread: they are
    limited for whoever calls this. Libraries that are loaded later keep theirs, and so does numba if its pool has not
    been started: starting it here would break processes that fork later.
    """
    mine = object()
    with _LOCK:
        if not _HELD:
            _GIVE_BACK[:] = [_limit_libraries(), *_limit_numba()]
        _HELD.add(mine)

    def end() -> None:
        with _LOCK:
            if mine in _HELD:
                _HELD.remove(mine)
                while not _HELD and _GIVE_BACK:
                    _GIVE_BACK.pop()()
        then()

    return end


def _limit_libraries() -> Callable[[], Any]:
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1).restore_original_limits


def _limit_numba() -> list[Callable[[], Any]]:
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is None or not parallel._is_initialized:
        return []
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    return [lambda: numba.set_num_threads(before)]
