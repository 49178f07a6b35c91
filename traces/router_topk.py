"""Routers that choose the largest logits, and weigh the chosen ones alone: gpt-oss (with a bias), Phi-MoE."""

from __future__ import annotations

from .routers import Router


class TopK(Router):
    """The largest logits. Phi-MoE takes the largest, then the largest of the rest: the same two in the same order."""

    name = "topk-softmax"
    model_types = ("gpt_oss", "phimoe")
