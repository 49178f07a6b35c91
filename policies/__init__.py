"""Decisions: which expert leaves, which may enter. Pools, policies, guard, gate; numpy and numba alone."""

from .errors import BadPolicy, Refused
from .plan import Plan
from .policy import Policy
from .pool import Pool
from .spelling import PolicySpec, list_policies, parse_call, parse_policy

__all__ = [
    "BadPolicy",
    "Plan",
    "Policy",
    "PolicySpec",
    "Pool",
    "Refused",
    "list_policies",
    "parse_call",
    "parse_policy",
]
