"""What a model takes of VRAM beside its experts, from the header of its GGUF file: dense weights and the context.

The context is counted as llama.cpp keeps it: keys and values of each attention layer, a window's worth where attention
slides, the compressed key of MLA, and the state of recurrent layers. What a header does not tell is refused by name.
"""

from __future__ import annotations

import re

from .errors import BadExecutor
from .gguf_header import GgufHeader, element_bytes

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")  # of llama.cpp's --cache-type-k
UBATCH, PAD = 512, 256  # llama.cpp's default micro-batch, by which a window's cells grow, and what they are padded to
PERIODS = {"gpt-oss": 2}  # architectures whose sliding layers llama.cpp knows by itself: all but each Nth
_BEYOND = ("attention.indexer.key_length", "attention.indexer.head_count", "kda.head_dim", "wkv.head_size")
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.(weight|bias)")
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


MOST_ROW_BYTES = 2**36  # as in a trace


def check_header(header: GgufHeader) -> None:
    """Raises BadExecutor where keys say other layers, another width or other experts than the tensors."""
    shown = 1 + max(_parts(header), default=-1)
    if not 1 <= _blocks(header) <= shown:
        raise BadExecutor(
            f"{header.path}: {header.architecture}.block_count says {_blocks(header)} layers, and its tensors are of "
            f"{shown}: the header is damaged, or shards of the model are missing"
        )
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    embedded = shapes.get("token_embd.weight")
    width = header.get("embedding_length")
    if embedded and width is not None and width != embedded[0]:
        raise _differs(header, "embedding_length", width, f"token_embd.weight is {embedded[0]} wide")
    counts = {shape[-1] for name, shape in shapes.items() if _EXPERTS.fullmatch(name)}
    said = header.get("expert_count")
    if len(counts) == 1 and said is not None and said not in counts:
        raise _differs(header, "expert_count", said, f"the tensors have {max(counts)} experts")
    if used := used_experts(header):
        low, high = min(used), max(used)
        if counts and not 1 <= low <= high <= max(counts):
            raise _differs(header, "expert_used_count", high if low else low, f"it is 1 to {max(counts)} experts")


def used_experts(header: GgufHeader) -> list[int]:
    """Experts of a token, of each layer or of all alike; empty where the header does not say."""
    found = header.get("expert_used_count")
    return [n for n in (found if isinstance(found, list) else [found]) if isinstance(n, int)]


def _differs(header: GgufHeader, key: str, value: object, but: str) -> BadExecutor:
    return BadExecutor(f"{header.path}: {header.architecture}.{key} is {value}, but {but}: the header is damaged")


def expert_rows(header: GgufHeader) -> tuple[list[int], list[int], int]:
    """(the model's layer numbers, bytes of a row by MoE layer, experts of a layer). Raises BadExecutor."""
    rows: dict[int, int] = {}
    counts = set()
    for tensor in header.tensors:
        found = _EXPERTS.fullmatch(tensor.name)
        if found and int(found[1]) < _blocks(header):
            rows[int(found[1])] = rows.get(int(found[1]), 0) + tensor.n_bytes
            counts.add(tensor.shape[-1])
    if len(counts) != 1:
        what = "no tensor named like blk.0.ffn_gate_exps.weight"
        if counts:
            what = f"layers of {', '.join(map(str, sorted(counts)))} experts"
        raise BadExecutor(f"{header.path}: {what}; needed is a Mixture-of-Experts model with as many in each layer")
    n_experts = counts.pop()
    layers = sorted(rows)
    if max(rows.values()) // n_experts > MOST_ROW_BYTES:
        raise BadExecutor(f"{header.path}: an expert of {max(rows.values()) // n_experts:,} bytes: damaged GGUF header")
    return layers, [rows[layer] // n_experts for layer in layers], n_experts


def dense_bytes(header: GgufHeader, experts: bool = False) -> int:
    """Bytes of the weights that lie in VRAM beside the cached experts (with them for a draft model).

    The token embedding stays with the CPU, unless it is the output layer too. Layers for multi-token prediction at the
    end of the model are not loaded, and not counted.
    """
    names = {tensor.name for tensor in header.tensors}
    total = 0
    for tensor in header.tensors:
        layer = _LAYER.match(tensor.name)
        if layer and int(layer[1]) >= _blocks(header):
            continue
        on_host = tensor.name == "token_embd.weight" and "output.weight" in names
        on_host |= tensor.name == "per_layer_token_embd.weight"
        if not on_host and (experts or not _EXPERTS.fullmatch(tensor.name)):
            total += tensor.n_bytes
    return total


def context_bytes(header: GgufHeader, n_ctx: int, kv_type: str = "f16") -> int:
    """Bytes of the context of one sequence of n_ctx tokens, keys and values stored as kv_type. Raises BadExecutor."""
    if kv_type not in KV_TYPES:
        raise BadExecutor(f"kv_type={kv_type!r}: it is one of {', '.join(KV_TYPES)}")
    parts = _parts(header)
    told = [key for key in _BEYOND if header.get(key) is not None]
    told += [name for has in parts.values() for name in has if re.search("indexer|compress", name)]
    if told:
        raise BadExecutor(
            f"{header.path}: {header.architecture} keeps more than keys and values ({min(told)}), which is not counted "
            "here; give context_bytes in place of ctx"
        )
    total = 0
    for layer in range(_blocks(header)):
        has = parts.get(layer, set())
        recurrent = any(name.startswith("ssm_") for name in has)
        latent = "attn_kv_a_mqa.weight" in has and "attn_k_b.weight" in has
        if latent:
            width = header.number("attention.kv_lora_rank") + header.number("rope.dimension_count")
            total += _cells(header, layer, n_ctx) * element_bytes(kv_type, width)
        elif "attn_k.weight" in has or "attn_kv_a_mqa.weight" in has or ("attn_qkv.weight" in has and not recurrent):
            total += _cells(header, layer, n_ctx) * sum(
                element_bytes(kv_type, width) for width in _widths(header, layer)
            )
        if recurrent:
            total += 4 * _state(header)
        if any(name.startswith("shortconv.") for name in has):
            total += 4 * header.number("embedding_length") * (header.number("shortconv.l_cache") - 1)
    if not total:
        raise BadExecutor(
            f"{header.path}: no layer of {header.architecture} has tensors of a known kind of attention; give "
            "context_bytes in place of ctx"
        )
    return total


def _parts(header: GgufHeader) -> dict[int, set[str]]:
    """Names of the tensors of each layer."""
    out: dict[int, set[str]] = {}
    for tensor in header.tensors:
        found = _LAYER.match(tensor.name)
        if found:
            out.setdefault(int(found[1]), set()).add(found[2])
    return out


def _blocks(header: GgufHeader) -> int:
    """Layers without those for multi-token prediction."""
    return header.number("block_count") - header.number("nextn_predict_layers", default=0)


def _widths(header: GgufHeader, layer: int) -> tuple[int, int]:
    """Elements of a token's keys and values."""
    heads = header.number("attention.head_count", layer)
    kv_heads = header.number("attention.head_count_kv", layer, default=heads)
    sliding = "_swa" if _slides(header, layer) and header.get("attention.key_length_swa") is not None else ""
    usual = header.number("embedding_length") // heads if heads else None
    key, value = (header.number(f"attention.{name}{sliding}", layer, usual) for name in ("key_length", "value_length"))
    return kv_heads * key, kv_heads * value


def _slides(header: GgufHeader, layer: int) -> bool:
    name = "attention.sliding_window_pattern"
    if not header.number("attention.sliding_window", layer, default=0):
        return False
    pattern = header.number(name, layer, default=PERIODS.get(header.architecture))
    return bool(pattern) if isinstance(header.get(name), list) else layer % max(1, pattern) < pattern - 1


def _cells(header: GgufHeader, layer: int, n_ctx: int) -> int:
    """Tokens that a layer keeps."""
    if not _slides(header, layer):
        return n_ctx
    window = header.number("attention.sliding_window", layer) + UBATCH
    return min(n_ctx, -(-window // PAD) * PAD)


def _state(header: GgufHeader) -> int:
    """Elements (float32) of a recurrent layer's state: the convolution's, and the state proper."""
    inner, size = header.number("ssm.inner_size"), header.number("ssm.state_size")
    groups = header.number("ssm.group_count", default=0)
    return (header.number("ssm.conv_kernel") - 1) * (inner + 2 * groups * size) + size * inner
