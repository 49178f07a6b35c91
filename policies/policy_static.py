"""A fixed set of experts: what "pin the hot ones" buys, and the floor for every policy that adapts."""

from dataclasses import dataclass
from typing import ClassVar

from .errors import BadPolicy
from .layout import NONE
from .policy import Policy, check_at_least


@dataclass(frozen=True)
class Static(Policy):
    """Keeps the most demanded experts of a profile (profile=FILE) or of N first steps (warmup=N); nothing leaves."""

    name: ClassVar[str] = "static"
    source: ClassVar[str] = "offline placement, as in KTransformers and MoE-Infinity"
    stack: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True

    profile: str = ""
    warmup: int = 0

    def check(self) -> None:
        check_at_least(self, "warmup", 0)
        if bool(self.profile) == bool(self.warmup):
            raise BadPolicy(
                "static needs either a profile or a warm-up: static(profile=FILE) with a file from "
                "'slotwise trace profile', or static(warmup=N)"
            )

    @staticmethod
    def oldest(p, at):
        return NONE
