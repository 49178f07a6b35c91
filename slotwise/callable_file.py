"""Files that can be called: their name is also that of the function users want, as in `slotwise.compare(...)`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallableFile(ModuleType):
    """Called, it calls the function that has its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


def callable_as_its_function(name: str) -> None:
    """Makes the file of that name callable; it says `callable_as_its_function(__name__)` at its end."""
    sys.modules[name].__class__ = CallableFile
