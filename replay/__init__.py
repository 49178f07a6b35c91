"""What plans would cost. The package is also the function: `slotwise.replay(trace, policy="lru", slots=32)`."""

import sys
from types import ModuleType
from typing import Any

from .errors import BadOption
from .options import Options
from .result import Result
from .run import replay
from .sweep import list_sizes, sweep

__all__ = ["BadOption", "Options", "Result", "list_sizes", "replay", "sweep"]


class _Callable(ModuleType):
    """A folder that can be called, since its name is also that of the function users want."""

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        return replay(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
