"""Names for positions: H.now is the word `now` of the shared head. Generated kernels hold the numbers themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .layout import COUNTERS, POOL, SHARED, VERBS

H: Any = SimpleNamespace(**{name: i for i, name in enumerate(SHARED)})
P: Any = SimpleNamespace(**{name: i for i, name in enumerate(POOL)})
C: Any = SimpleNamespace(**{name: i for i, name in enumerate(COUNTERS)})
V: Any = SimpleNamespace(**{name: i for i, name in enumerate(VERBS)})
C.n = len(COUNTERS)
