"""How captures end: broken off, killed, refused, or held against a control that fails; and what is left then."""

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from capture_cases import BATCH, MASK, generate, tiny, torch, transformers
from conftest import ROOT

import slotwise
from slotwise.traces import capture as capture_module
from slotwise.traces import capture_passes, capture_rows


@pytest.fixture(scope="module")
def model():
    return tiny("qwen3_moe")


def test_a_block_that_never_calls_the_model_is_an_error_and_leaves_no_file(model, tmp_path):
    with (
        pytest.raises(slotwise.BadTrace, match="no forward pass was captured"),
        slotwise.Capture(model, tmp_path / "t"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_or_an_interrupt_in_the_middle_of_a_pass_keeps_the_passes_before(model, tmp_path, error):
    """It strikes in the third layer of the eighth pass."""
    passes = []

    def strike(*_):
        passes.append(1)
        if len(passes) == 8:
            raise error

    hook = model.get_decoder().layers[2].register_forward_pre_hook(strike)
    with pytest.raises(error), slotwise.Capture(model, tmp_path / "t.parquet", end_tokens=()):
        generate(model, n=20, eos_token_id=None)
    hook.remove()
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    assert (trace.n_steps, trace.n_tokens) == (7, 8 + 6 * 2)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert trace.digest() == trace.sha256


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from capture_cases import tiny, torch
import slotwise
model, passes = tiny("qwen3_moe"), []
def strike(*_):
    passes.append(1)
    if len(passes) == 150:
        os.kill(os.getpid(), 9)
model.get_decoder().layers[2].register_forward_pre_hook(strike)
with slotwise.Capture(model, sys.argv[2]):
    model.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=120, do_sample=False, eos_token_id=None, pad_token_id=0)
    model.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=120, do_sample=False, eos_token_id=None, pad_token_id=0)
"""


def test_after_a_kill_what_was_written_is_a_trace_and_the_next_capture_does_not_overwrite_it(model, tmp_path):
    path = tmp_path / "t.parquet"
    done = subprocess.run([sys.executable, "-c", KILLED, ROOT / "tests", path], env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert [found.name for found in tmp_path.iterdir()] == ["t.parquet.part"]
    with pytest.raises(slotwise.BadTrace, match=r"is what a capture left .*`slotwise trace import"):
        slotwise.Capture(model, path)
    trace = slotwise.open_trace(f"{path}.part")
    assert 149 - capture_passes.MOST <= trace.n_steps <= 149  # the rest was on its way
    assert [r["prompt_tokens"] for r in trace.meta.requests] == [3, 3]
    assert slotwise.replay(trace, policy="lru", slots=4, width=2).counters["hits"] > 0


def test_a_file_that_is_there_is_not_replaced_unasked(model, tmp_path):
    path = tmp_path / "t.parquet"
    path.write_text("days of work")
    with pytest.raises(slotwise.BadTrace, match=r"exists; choose another name, or replace it \(--force"):
        slotwise.Capture(model, path)
    with slotwise.Capture(model, path, force=True):
        generate(model)
    assert slotwise.open_trace(path).n_requests == 2


def test_a_batch_that_changes_over_a_cache_is_refused(model, tmp_path):
    def double(module, args, call):
        name = "cache" if "cache" in call else "past_key_values"
        if call[name].get_seq_length():
            call[name].batch_repeat_interleave(2)
            call["input_ids"] = call["input_ids"].repeat(2, 1)
            call["position_ids"] = None
            call["attention_mask"] = None
        return args, call

    hook = model.get_decoder().register_forward_pre_hook(double, with_kwargs=True)
    told = pytest.raises(slotwise.BadTrace, match=r"pass of 2 sequences over a cache of 5 tokens, but .* had 1")
    with told, slotwise.Capture(model, tmp_path / "t.parquet"):
        generate(model, BATCH[1:], MASK[1:], n=3, eos_token_id=None)
    hook.remove()


def test_beams_are_refused_and_the_cache_is_left_as_it_was(model, tmp_path):
    with (
        pytest.raises(slotwise.BadTrace, match=r"beam search .* is not captured; generate with num_beams=1"),
        slotwise.Capture(model, tmp_path / "t.parquet"),
    ):
        generate(model, num_beams=2)
    cache = transformers.DynamicCache(config=model.config)
    with slotwise.Capture(model, tmp_path / "u.parquet"):
        model(torch.tensor([[7, 8]]), past_key_values=cache)
    cache.reorder_cache(torch.tensor([0]))


def test_two_threads_at_once_are_refused_and_one_after_the_other_are_not(model, tmp_path):
    def call(within=None):
        hook = within and model.get_decoder().layers[1].register_forward_pre_hook(lambda *_: within())
        try:
            model(torch.tensor([[7, 8]]))
        finally:
            if hook:
                hook.remove()

    with ThreadPoolExecutor(2) as pool, slotwise.Capture(model, tmp_path / "t.parquet") as capture:
        pool.submit(call).result()
        call()
        with pytest.raises(slotwise.BadTrace, match="two threads call the model at once"):
            call(within=lambda: pool.submit(model, torch.tensor([[7, 8]])).result())
    assert capture.n_steps == 2


def test_what_a_full_disk_leaves_is_kept_and_named(model, tmp_path):
    path, usual = tmp_path / "t.parquet", resource.getrlimit(resource.RLIMIT_FSIZE)
    capture = slotwise.Capture(model, path).__enter__()
    generate(model)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, usual[1]))  # no larger file can be written from here on
        with pytest.raises(
            OSError, match=rf"the \d+ steps captured are kept: `slotwise trace import {path}.part -o {path}"
        ):
            capture.__exit__(None, None, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert [each.name for each in tmp_path.iterdir()] == ["t.parquet.part"]
    assert slotwise.open_trace(f"{path}.part").n_steps == capture.n_steps


def test_what_cannot_be_captured_is_said_with_what_is_lacking(model, tmp_path):
    base = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    small = {**base, "num_attention_heads": 1, "num_key_value_heads": 1}
    dense = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)).eval()
    with pytest.raises(slotwise.BadTrace, match=r"type 'llama' has no layer with `experts`.* deepseek_v2, "):
        slotwise.Capture(dense, tmp_path / "t")
    other = transformers.FlexOlmoForCausalLM(
        transformers.FlexOlmoConfig(**small, num_experts=4, pad_token_id=0, eos_token_id=1)
    ).eval()
    with pytest.raises(slotwise.BadTrace, match=r"no adapter for models of type 'flex_olmo': its 2 MoE layers have a "):
        slotwise.Capture(other, tmp_path / "t")
    with pytest.raises(slotwise.BadTrace, match="horizon=4, but it must be a whole number from 1 to 3"):
        slotwise.Capture(model, tmp_path / "t", horizons=(1, 4))
    with pytest.raises(slotwise.BadTrace, match="width=9, but it must be a whole number from 0 to 8"):
        slotwise.Capture(model, tmp_path / "t", width=9)
    with pytest.raises(slotwise.BadTrace, match="training mode"):
        slotwise.Capture(tiny("olmoe").train(), tmp_path / "t")


def test_a_router_that_is_bypassed_is_an_error_with_the_models_layer_numbers(tmp_path):
    model = tiny("qwen2_moe")  # its layer 1 is dense
    gate = model.get_decoder().layers[2].mlp.gate
    gate.__class__ = type("Quiet", (type(gate),), {"__call__": lambda self, x: self.forward(x)})
    told = pytest.raises(slotwise.BadTrace, match=r"routers of layers \[2\] were not called")
    with told, slotwise.Capture(model, tmp_path / "t.parquet"):
        generate(model)


def test_a_control_that_fails_ends_with_the_count_and_keeps_the_trace(tmp_path):
    model = tiny("olmoe")
    gate = model.get_decoder().layers[1].mlp.gate
    plain = type(gate).forward
    gate.forward = lambda x: plain(gate, -x)
    capture = slotwise.Capture(model, tmp_path / "t.parquet", check=True)
    with pytest.raises(RuntimeError, match="of 144 choices are not what the router computes") as caught, capture:
        generate(model, n=2, eos_token_id=None)
    assert type(caught.value).__name__ == "CaptureFailed"
    assert 0 < capture.recall < 1
    assert slotwise.open_trace(tmp_path / "t.parquet").n_tokens == 10


def test_an_interrupt_anywhere_in_the_capture_itself_loses_no_complete_pass_and_doubles_none(
    model, tmp_path, monkeypatch
):
    """One is raised at the nth line that is run of the capture's own code; passes are worked up in fours."""
    for module in (capture_module, capture_passes):
        monkeypatch.setattr(module, "MOST", 4)
    files = tuple(str(module.__file__) for module in (capture_module, capture_passes, capture_rows))
    done, seen, at = [], [0], [0]

    def line(frame, event, arg):
        if event == "line":
            seen[0] += 1
            if seen[0] == at[0]:
                raise KeyboardInterrupt
        return line

    def strike(frame, event, arg):
        return line if frame.f_code.co_filename in files and frame.f_code.co_name != "__exit__" else None

    hook = model.lm_head.register_forward_hook(lambda *_: done.append(1))

    def record(path):
        done.clear()
        seen[0] = 0
        capture = slotwise.Capture(model, path, end_tokens=())
        try:
            with capture:
                sys.settrace(strike)
                try:
                    generate(model, n=9, eos_token_id=None)
                finally:
                    sys.settrace(None)
        except KeyboardInterrupt:
            return True
        return False

    assert not record(tmp_path / "whole.parquet")
    whole, lines = slotwise.open_trace(tmp_path / "whole.parquet"), seen[0]
    assert lines > 1000
    for at[0] in range(150, lines, 61):
        path = tmp_path / f"{at[0]}.parquet"
        assert record(path)
        trace = slotwise.open_trace(path)
        assert len(done) <= trace.n_steps <= len(done) + 1
        rows = trace.n_tokens
        assert rows == (8 + 2 * (trace.n_steps - 1))
        assert trace.read("experts", 0, rows).tobytes() == whole.read("experts", 0, rows).tobytes()
        assert trace.read("predicted.h1", 0, rows).tobytes() == whole.read("predicted.h1", 0, rows).tobytes()
    hook.remove()
