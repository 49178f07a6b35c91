"""Tiny models of every architecture that capture knows, their routers again in plain numpy, and what experts saw."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="captures need torch: pip install '.[capture]'")
transformers = pytest.importorskip("transformers", reason="captures need transformers: pip install '.[capture]'")
torch.set_num_threads(1)

BASE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
QWEN = {"num_experts": 8, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
DEEPSEEK = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 24,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "routed_scaling_factor": 2.5,
}
CONFIGS = {  # name -> (config class, what it has beside BASE)
    "mixtral": ("MixtralConfig", {"num_local_experts": 8}),
    "qwen2_moe": ("Qwen2MoeConfig", {**QWEN, "norm_topk_prob": False, "mlp_only_layers": [1]}),
    "qwen3_moe": ("Qwen3MoeConfig", {**QWEN, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_next": (
        "Qwen3NextConfig",
        {**QWEN, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
    "olmoe": ("OlmoeConfig", {"num_experts": 300, "norm_topk_prob": False}),  # ids of two bytes
    "gpt_oss": ("GptOssConfig", {"num_local_experts": 8, "head_dim": 16}),
    "deepseek_v2": ("DeepseekV2Config", {**DEEPSEEK, "topk_method": "group_limited_greedy"}),
    "deepseek_v2-greedy": ("DeepseekV2Config", {**DEEPSEEK, "topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3Config", DEEPSEEK),
    "granitemoe": ("GraniteMoeConfig", {"num_local_experts": 8}),
    "phimoe": ("PhimoeConfig", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "jamba": (
        "JambaConfig",
        {"num_experts": 8, "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 2}
        | {"attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_d_state": 4, "use_mamba_kernels": False},
    ),
}


def tiny(name: str, **more):
    """A model of random weights, the same each time; biases that only a choice sees are drawn too."""
    kind, rest = CONFIGS[name]
    torch.manual_seed(5)
    config = getattr(transformers, kind)(**{**BASE, **rest, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in [*model.named_parameters(), *model.named_buffers()]:
        if parameter[0].endswith(("gate.e_score_correction_bias", "router.bias")):
            torch.nn.init.normal_(parameter[1], std=0.3)
        elif parameter[0].endswith(("gate.weight", "router.weight")):
            torch.nn.init.normal_(parameter[1], std=0.5)
    return model


def blocks_of(model) -> list[tuple[int, object]]:
    """(number of the layer, its MoE block), found by the class of the experts."""
    return [
        (number, block)
        for number, layer in enumerate(model.get_decoder().layers)
        for block in layer.modules()
        if type(getattr(block, "experts", None)).__name__.endswith("Experts")
    ]


@contextmanager
def watched(model):
    """What the experts of each MoE layer are given: lists of (x, ids, weights) in float64, one a pass."""
    seen, hooks = [], []
    for _, block in blocks_of(model):
        seen.append([])
        hooks.append(
            block.experts.register_forward_pre_hook(
                lambda module, args, mine=seen[-1]: mine.append(
                    tuple(t.detach().double().cpu().numpy().reshape(-1, t.shape[-1]) for t in args)
                )
            )
        )
    yield seen
    for hook in hooks:
        hook.remove()


def slow_scores(model, layer: int, x: np.ndarray) -> np.ndarray:
    """What MoE layer `layer` would choose by for one token's router input `x [hidden]`, in float64; -inf: never."""
    config, block = model.config, blocks_of(model)[layer][1]
    router = block.gate if hasattr(block, "gate") else block.router
    logits = router.weight.detach().double().numpy() @ x
    if config.model_type == "gpt_oss":
        return logits + router.bias.detach().double().numpy()
    if config.model_type in ("granitemoe", "phimoe"):
        return logits
    scores = np.exp(logits - logits.max())
    scores /= scores.sum()
    if config.model_type == "deepseek_v3":
        scores = 1 / (1 + np.exp(-logits)) + router.e_score_correction_bias.double().numpy()
    if config.model_type == "deepseek_v3" or getattr(config, "topk_method", "") == "group_limited_greedy":
        groups = scores.reshape(config.n_group, -1)
        n_best = 2 if config.model_type == "deepseek_v3" else 1
        worth = [sum(sorted(group)[-n_best:]) for group in groups]
        for group in np.argsort(worth)[: -config.topk_group]:
            groups[group] = -np.inf
    return scores


def slow_weights(model, layer: int, x: np.ndarray, ids: list[int]) -> list[float]:
    """The weights of the chosen, in float64."""
    config, scores = model.config, slow_scores(model, layer, x)
    kind, chosen = config.model_type, scores[ids]
    if kind in ("gpt_oss", "granitemoe"):
        return list(np.exp(chosen) / np.exp(chosen).sum())
    if kind == "phimoe":
        weights, left = [], scores.copy()
        for expert in ids:  # softmax over those near the best of what is left
            far = (left.max() - scores) / np.maximum(np.abs(scores), left.max()) > 2 * config.router_jitter_noise
            near = np.where(far, 0, np.exp(left - left.max()))
            weights.append(near[expert] / near.sum())
            left[expert] = -np.inf
        return weights
    if kind == "deepseek_v3":
        block = blocks_of(model)[layer][1]
        chosen = chosen - block.gate.e_score_correction_bias.double().numpy()[ids]
        return list(config.routed_scaling_factor * chosen / chosen.sum())
    if kind == "deepseek_v2":
        return list(config.routed_scaling_factor * chosen)
    return list(chosen / chosen.sum() if kind == "mixtral" or getattr(config, "norm_topk_prob", False) else chosen)


SHORT, LONG = [7, 8, 9], [11, 12, 13, 14, 15]
BATCH = torch.tensor([[0, 0, *SHORT], LONG])
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def generate(model, tokens=BATCH, mask=MASK, n=6, **how):
    """Greedy, of two prompts unless said otherwise, the shorter one padded on the left."""
    return model.generate(tokens, attention_mask=mask, max_new_tokens=n, do_sample=False, pad_token_id=0, **how)
