"""What a model takes of VRAM, from headers that a writer of others wrote: every byte summed by hand."""

import numpy as np
import pytest

import slotwise
from slotwise.executor.errors import BadExecutor
from slotwise.executor.gguf_header import read_header
from slotwise.executor.gguf_memory import check_header, context_bytes, dense_bytes, expert_rows

gguf = pytest.importorskip("gguf", reason="the extra `test` brings the package gguf")
QKV = {"attn_q.weight": (64, 64), "attn_k.weight": (32, 64), "attn_v.weight": (32, 64)}
KEYS = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2}
EXPERTS = {f"ffn_{part}_exps.weight": (4, 64, 64) for part in ("gate", "up", "down")}


def write(path, keys, layers, arch="qwen3moe", output=True, only=None):
    """layers: for each a dict of tensor name -> shape; all are float16."""
    writer = gguf.GGUFWriter(path, arch)
    for name, value in keys.items():
        key = name if "." in name and name.startswith("split") else f"{arch}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif key.startswith("split"):
            writer.add_uint16(key, value)
        else:
            writer.add_uint32(key, value)
    writer.add_token_list([f"t{i}" for i in range(5000)])
    writer.add_array("tokenizer.ggml.token_type", [1] * 5000)
    shapes = {} if only else {"token_embd.weight": (10, 64)} | ({"output.weight": (10, 64)} if output else {})
    shapes |= {f"blk.{i}.{name}": shape for i, layer in enumerate(layers) for name, shape in layer.items()}
    for name, shape in shapes.items():
        if only is None or name in only:
            writer.add_tensor(name, np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_rows_and_dense_weights_are_summed_without_reading_a_tensor(tmp_path):
    path = write(tmp_path / "m.gguf", KEYS, [QKV | EXPERTS] * 2)
    whole = path.read_bytes()
    data = whole.index(b"blk.1.ffn_down_exps.weight") + 200
    path.write_bytes(whole[:data])  # the tensors are not even there
    header = read_header(path)
    assert header.architecture == "qwen3moe"
    assert header.keys["tokenizer.ggml.tokens"] is None  # too long to be kept
    assert expert_rows(header) == ([0, 1], [3 * 64 * 64 * 2] * 2, 4)
    assert dense_bytes(header) == 2 * (64 * 64 + 2 * 32 * 64) * 2 + 10 * 64 * 2  # attention, and the output
    assert dense_bytes(header, experts=True) == dense_bytes(header) + 2 * 4 * 3 * 64 * 64 * 2


def test_sizes_of_quantised_tensors_are_those_of_the_library_that_reads_them(tmp_path):
    from weights_cases import MIXED, write_gguf

    write_gguf(tmp_path / "m.gguf", layers=MIXED, biases="F32")
    read = {one.name: (tuple(map(int, one.shape)), int(one.n_bytes))
            for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors}  # fmt: skip
    assert {one.name: (one.shape, one.n_bytes) for one in read_header(tmp_path / "m.gguf").tensors} == read


def test_a_token_embedding_that_is_the_output_too_lies_in_vram(tmp_path):
    header = read_header(write(tmp_path / "m.gguf", KEYS, [QKV | EXPERTS] * 2, output=False))
    assert dense_bytes(header) == 2 * (64 * 64 + 2 * 32 * 64) * 2 + 10 * 64 * 2


def test_keys_and_values_of_a_plain_model(tmp_path):
    header = read_header(write(tmp_path / "m.gguf", KEYS, [QKV | EXPERTS] * 2))
    assert context_bytes(header, 1000) == 2 * 1000 * 2 * (2 * 16) * 2  # layers, tokens, k and v, 2 heads of 64/4, f16
    assert context_bytes(header, 1000, "q8_0") == 2 * 1000 * 2 * 34  # 32 elements are one block of 34 bytes
    assert context_bytes(header, 1000, "q4_0") == 2 * 1000 * 2 * 18
    said = KEYS | {"attention.key_length": 24, "attention.value_length": 8}
    header = read_header(write(tmp_path / "n.gguf", said, [QKV | EXPERTS] * 2))
    assert context_bytes(header, 10, "f32") == 2 * 10 * 2 * (24 + 8) * 4
    with pytest.raises(BadExecutor, match="kv_type='q3': it is one of f32, f16, bf16, q8_0"):
        context_bytes(header, 10, "q3")


def test_heads_by_layer_count_by_layer(tmp_path):
    header = read_header(write(tmp_path / "m.gguf", KEYS | {"attention.head_count_kv": [1, 3]}, [QKV | EXPERTS] * 2))
    assert context_bytes(header, 10) == 10 * (1 + 3) * 2 * 16 * 2


@pytest.mark.parametrize(
    ("key", "value"), [("block_count", "two"), ("attention.head_count_kv", [2]), ("attention.head_count", "4")]
)
def test_keys_that_do_not_count_are_named(tmp_path, key, value):
    header = read_header(write(tmp_path / "m.gguf", KEYS | {key: value}, [QKV | EXPERTS] * 2))
    with pytest.raises(BadExecutor, match=f"no key qwen3moe.{key} that counts"):
        context_bytes(header, 10)


def test_layers_that_slide_keep_a_window(tmp_path):
    four = KEYS | {"block_count": 4, "attention.sliding_window": 128}
    told = four | {"attention.sliding_window_pattern": [True, True, True, False]}
    token = 2 * (2 * 16) * 2
    header = read_header(write(tmp_path / "m.gguf", told, [QKV | EXPERTS] * 4))
    assert context_bytes(header, 10_000) == (3 * 768 + 10_000) * token  # 128 + a micro-batch of 512, to 256s
    assert context_bytes(header, 700) == 4 * 700 * token
    header = read_header(write(tmp_path / "n.gguf", four, [QKV | EXPERTS] * 4, arch="gpt-oss"))
    assert context_bytes(header, 10_000) == (2 * 768 + 2 * 10_000) * token  # every other layer, as llama.cpp has it
    header = read_header(write(tmp_path / "o.gguf", four, [QKV | EXPERTS] * 4))
    with pytest.raises(BadExecutor, match=r"no key qwen3moe\.attention\.sliding_window_pattern .*give context_bytes"):
        context_bytes(header, 10_000)


def test_mla_keeps_the_compressed_key_alone(tmp_path):
    mla = {"attn_kv_a_mqa.weight": (48, 64), "attn_k_b.weight": (4, 32, 16), "attn_v_b.weight": (4, 16, 32)}
    keys = KEYS | {"attention.kv_lora_rank": 32, "rope.dimension_count": 16}
    header = read_header(write(tmp_path / "m.gguf", keys, [mla | EXPERTS] * 2, arch="deepseek2"))
    assert context_bytes(header, 100) == 2 * 100 * (32 + 16) * 2
    del keys["attention.kv_lora_rank"]
    header = read_header(write(tmp_path / "n.gguf", keys, [mla | EXPERTS] * 2, arch="deepseek2"))
    with pytest.raises(BadExecutor, match=r"no key deepseek2\.attention\.kv_lora_rank"):
        context_bytes(header, 100)
    old = {"attn_kv_a_mqa.weight": (48, 64), "attn_kv_b.weight": (64, 32)}  # files that are not absorbed keep all heads
    keys |= {"attention.head_count_kv": 4, "attention.key_length": 24, "attention.value_length": 16}
    header = read_header(write(tmp_path / "o.gguf", keys, [old | EXPERTS] * 2, arch="deepseek2"))
    assert context_bytes(header, 100) == 2 * 100 * 4 * (24 + 16) * 2


def test_hybrid_models_keep_a_state_in_layers_that_are_recurrent(tmp_path):
    linear = {"attn_qkv.weight": (96, 64), "ssm_conv1d.weight": (96, 4), "ssm_out.weight": (64, 32)}
    keys = KEYS | {"block_count": 4, "ssm.conv_kernel": 4, "ssm.inner_size": 32, "ssm.state_size": 8}
    layers = [linear | EXPERTS] * 3 + [QKV | EXPERTS]
    header = read_header(write(tmp_path / "m.gguf", keys | {"ssm.group_count": 2}, layers, arch="qwen3next"))
    state = (4 - 1) * (32 + 2 * 2 * 8) + 8 * 32
    assert context_bytes(header, 1000) == 1000 * 2 * 32 * 2 + 3 * 4 * state
    del keys["ssm.state_size"]
    header = read_header(write(tmp_path / "n.gguf", keys, layers, arch="qwen3next"))
    with pytest.raises(BadExecutor, match=r"no key qwen3next\.ssm\.state_size"):
        context_bytes(header, 1000)


@pytest.mark.parametrize("key", ["attention.indexer.key_length", "kda.head_dim"])
def test_what_keeps_more_than_is_counted_is_refused(tmp_path, key):
    header = read_header(write(tmp_path / "m.gguf", KEYS | {key: 8}, [QKV | EXPERTS] * 2))
    with pytest.raises(BadExecutor, match=f"keeps more than keys and values .{key}., which is not counted here"):
        context_bytes(header, 10)


def test_a_kind_of_attention_that_only_its_tensors_tell_is_refused_too(tmp_path):
    layer = QKV | EXPERTS | {"attn_compressor_k.weight": (8, 64)}
    header = read_header(write(tmp_path / "m.gguf", KEYS, [layer] * 2, arch="deepseek4"))
    with pytest.raises(BadExecutor, match=r"deepseek4 keeps more than keys and values .attn_compressor_k\.weight"):
        context_bytes(header, 10)


def test_layers_for_multi_token_prediction_are_left_out(tmp_path):
    keys = KEYS | {"block_count": 3, "nextn_predict_layers": 1}
    header = read_header(write(tmp_path / "m.gguf", keys, [QKV | EXPERTS] * 3))
    plain = read_header(write(tmp_path / "n.gguf", KEYS, [QKV | EXPERTS] * 2))
    for measure in (expert_rows, dense_bytes, lambda one: context_bytes(one, 100)):
        assert measure(header) == measure(plain)


def test_shards_are_one_model(tmp_path):
    layers = [QKV | EXPERTS] * 2
    names = [f"blk.{i}.{name}" for i in range(2) for name in QKV | EXPERTS]
    for i, only in enumerate((names[:5], names[5:]), 1):
        write(tmp_path / f"m-0000{i}-of-00002.gguf", KEYS | {"split.count": 2}, layers, only=only)
    header = read_header(tmp_path / "m-00002-of-00002.gguf")
    assert expert_rows(header) == ([0, 1], [3 * 64 * 64 * 2] * 2, 4)
    (tmp_path / "m-00001-of-00002.gguf").rename(tmp_path / "m.gguf")
    with pytest.raises(BadExecutor, match=r"one of 2 shards, and its name does not end in -00001-of-00002.gguf"):
        read_header(tmp_path / "m.gguf")
    with pytest.raises(FileNotFoundError, match="m-00001-of-00002"):
        read_header(tmp_path / "m-00002-of-00002.gguf")


def test_every_cut_and_every_wild_count_of_a_header_is_an_error_of_a_line(tmp_path):
    path = write(tmp_path / "m.gguf", KEYS, [QKV | EXPERTS] * 2)
    whole = path.read_bytes()
    end = whole.index(b"blk.1.ffn_down_exps.weight")
    for at in [0, 3, 4, 8, 16, 23, 24, 40, *range(100, end, 4001), end]:
        path.write_bytes(whole[:at])
        with pytest.raises(BadExecutor, match="damaged or truncated GGUF header"):
            read_header(path)
    for at in (8, 16, 24):  # counts of tensors and keys, length of a name
        path.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
        with pytest.raises(BadExecutor):
            read_header(path)
    path.write_bytes(b"PK" + whole)
    with pytest.raises(BadExecutor, match="not a GGUF file"):
        read_header(path)
    path.write_bytes(whole[:4] + b"\x00\x00\x00\x03" + whole[8:])
    with pytest.raises(BadExecutor, match="GGUF version 50331648; read are 2 and 3, little endian"):
        read_header(path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("block_count", 2**32 - 1, "block_count says 4294967295 layers, and its tensors are of 2"),
        ("block_count", 0, "block_count says 0 layers"),
        ("nextn_predict_layers", 5, "block_count says -3 layers"),
        *[("expert_count", n, f"expert_count is {n}, but the tensors have 4 experts") for n in (0, 7, 2**32 - 1)],
        *[("expert_used_count", n, f"expert_used_count is {n}, but it is 1 to 4 experts") for n in (0, 5)],
        ("expert_used_count", [1, 0], "expert_used_count is 0, but it is 1 to 4"),
        *[("embedding_length", n, f"embedding_length is {n}, but token_embd.weight is 64 wide") for n in (0, 63)],
    ],
)
def test_keys_that_are_not_of_the_tensors_are_refused(tmp_path, key, value, said):
    check_header(read_header(write(tmp_path / "right.gguf", KEYS | {"expert_count": 4}, [QKV | EXPERTS] * 2)))
    header = read_header(write(tmp_path / "m.gguf", KEYS | {key: value}, [QKV | EXPERTS] * 2))
    with pytest.raises(BadExecutor, match=said):
        check_header(header)


def test_tensors_that_cannot_be_are_called_damage_of_this_file(tmp_path):
    path = write(tmp_path / "m.gguf", KEYS, [QKV | EXPERTS] * 2)
    whole, name = path.read_bytes(), b"blk.0.ffn_gate_exps.weight"
    at = whole.index(name) + len(name)  # then dimensions (uint32), each (uint64), dtype (uint32)
    for offset, value, said in [
        (0, (5).to_bytes(4, "little"), "'blk.0.ffn_gate_exps.weight' has 5 dimensions"),
        (4, bytes(8), "has the shape 0x64x4"),
        (4, (2**61).to_bytes(8, "little"), "has the shape 2305843009213693952x64x4"),
        (28, (999).to_bytes(4, "little"), "has dtype 999: the header is damaged, or newer than the package gguf"),
    ]:
        path.write_bytes(whole[: at + offset] + value + whole[at + offset + len(value) :])
        with pytest.raises(BadExecutor, match=said):
            read_header(path)
    path.write_bytes(whole[: at + 4] + (2**30).to_bytes(8, "little") + whole[at + 12 :])
    with pytest.raises(BadExecutor, match=r"an expert of [0-9,]{15,} bytes: damaged GGUF header"):
        expert_rows(read_header(path))
    path.write_bytes(whole.replace(name, name.replace(b"gate", b"down")))
    with pytest.raises(BadExecutor, match=r"two tensors are named 'blk\.0\.ffn_down_exps\.weight'"):
        read_header(path)


@pytest.fixture(scope="module")
def machine():
    return slotwise.estimate_machine(["rtx-3060-x16", "ddr4"])


def test_advice_takes_rows_and_sum_from_the_file(tmp_path, machine):
    trace = slotwise.synthesise(n_tokens=300, n_layers=2, n_experts=4, top_k=1)
    path = write(tmp_path / "m.gguf", KEYS, [QKV | EXPERTS] * 2)
    draft = write(tmp_path / "d.gguf", KEYS | {"block_count": 1}, [QKV])
    row, attention, head = 3 * 64 * 64 * 2, (64 * 64 + 2 * 32 * 64) * 2, 10 * 64 * 2
    taken = [("dense weights", 2 * attention + head), ("context of 100 tokens", 2 * 100 * 2 * 34)]
    taken += [("draft model", attention + head), ("draft's context", 100 * 2 * 34), ("headroom", 1000)]
    vram = sum(n for _, n in taken) + 5 * row + 17
    asked = {"headroom": 1000, "gguf": path, "ctx": 100, "kv_type": "q8_0", "draft": draft, "policies": ["lru"]}
    found = slotwise.advise(trace, machine, vram, **asked, scopes=["layer"])
    assert [(one["what"], -one["bytes"]) for one in found["memory"][1:]] == taken
    assert (found["pool_bytes"], found["row_bytes"], found["slots"]) == (5 * row + 17, [row, row], 2)
    other = slotwise.synthesise(n_tokens=300, n_layers=3, n_experts=4, top_k=1)
    with pytest.raises(slotwise.BadOption, match="2 MoE layers of 4 experts, and the trace synth has 3 of 4"):
        slotwise.advise(other, machine, vram, **asked)
    assert not any("experts a token" in warning for warning in found["warnings"])
    two = write(tmp_path / "two.gguf", KEYS | {"expert_used_count": 2}, [QKV | EXPERTS] * 2)
    found = slotwise.advise(trace, machine, vram, **asked | {"gguf": two}, scopes=["layer"])
    assert "uses 2 experts a token, and the trace synth is of top-1" in found["warnings"][0]
    for more, said in [
        ({"row_bytes": 5}, "row_bytes=5: the header of gguf says"),
        ({"context_bytes": "1MiB"}, "context_bytes says what ctx and kv_type would"),
        ({"ctx": None}, "kv_type='q8_0': it is the type of the context's keys and values; give ctx"),
        ({"ctx": 0}, "ctx=0: tokens of the context, from 1 to 1,073,741,824"),
        ({"ctx": 2**30 + 1}, "ctx=1073741825: tokens of the context, from 1 to 1,073,741,824; give"),
    ]:
        with pytest.raises(slotwise.BadOption, match=said):
            slotwise.advise(trace, machine, vram, **asked | more)
