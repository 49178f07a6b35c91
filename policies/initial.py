"""Which rows are there from the start: pins, and the residents of a static policy with a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .profile import Profile, read_profile
from .spelling import PolicySpec


def profiles_of(spec: PolicySpec, n_layers: int, n_experts: int) -> dict[str, Profile]:
    """The profiles that a policy names, by path."""
    return {path: read_profile(path, text, n_layers, n_experts) for path, text in spec.profiles.items()}


def initial_keys(spec: PolicySpec, profiles: dict[str, Profile], layer: int | None) -> tuple[list[int], list[int]]:
    """(pinned keys, keys to load in order) of a layer's pool, or of the global one where layer is None."""
    pin, static = spec.pin, getattr(spec.policy, "profile", "")
    pinned = profiles[pin.profile].ranked(layer)[: pin.n] if pin else []
    more = profiles[static].ranked(layer) if static else []
    return pinned, list(dict.fromkeys([*pinned, *more]))


def fitting(keys: Iterable[int], capacity: int, size_of: Callable[[int], int]) -> set[int]:
    """Those of the keys for which there is room, taken in order."""
    room, found = capacity, set()
    for key in keys:
        if size_of(key) <= room:
            room -= size_of(key)
            found.add(key)
    return found
