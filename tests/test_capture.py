"""Capture around a model that runs: whose tokens count, what a step is, and that nothing else changes."""

import gc
import inspect
import weakref
from dataclasses import replace

import numpy as np
import pytest
from capture_cases import BATCH, LONG, MASK, generate, tiny, torch, transformers

import slotwise
from slotwise.traces import capture as capture_module
from slotwise.traces import capture_passes, capture_rows


@pytest.fixture(scope="module")
def model():
    return tiny("qwen3_moe")


def tokens_of(trace, request):
    rows = trace.rows("request", "token_id", "position")
    mine = rows["request"] == request
    assert rows["position"][mine].tolist() == list(range(mine.sum()))
    return rows["token_id"][mine].tolist()


def test_padding_is_not_recorded_and_positions_count_a_requests_own_tokens(model, tmp_path):
    with slotwise.Capture(model, tmp_path / "t.parquet", end_tokens=()):
        out = generate(model, eos_token_id=None).tolist()
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    assert tokens_of(trace, 0) == out[0][2:-1]  # the last token is drawn, and no pass sees it
    assert tokens_of(trace, 1) == out[1][:-1]
    rows = trace.rows("request", "step", "phase")
    assert rows["request"][:10].tolist() == [0] * 3 + [1] * 5 + [0, 1]
    assert rows["step"].tolist() == [0] * 8 + [s for step in range(1, 6) for s in (step, step)]
    assert rows["phase"].tolist() == [0] * 8 + [1] * 10
    assert [r["prompt_tokens"] for r in trace.meta.requests] == [3, 5]


def test_a_sequence_that_has_ended_is_not_recorded_while_others_go_on(model, tmp_path):
    free = generate(model, eos_token_id=None).tolist()
    end = free[0][6]  # the second new token of the first
    assert end not in free[0][5:6] + free[1][5:]
    with slotwise.Capture(model, tmp_path / "t.parquet", end_tokens=[end]):
        assert generate(model, eos_token_id=end)[0].tolist() == free[0][:7] + [0] * 4
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    assert tokens_of(trace, 0) == free[0][2:6]
    assert tokens_of(trace, 1) == free[1][:-1]
    assert trace.rows("step")["step"].max() == 5


def test_tokens_that_end_a_sequence_are_those_of_the_generation_config_unless_said(model, tmp_path):
    free = generate(model, eos_token_id=None).tolist()
    before, model.generation_config.eos_token_id = model.generation_config.eos_token_id, [96, free[1][6]]
    try:
        with slotwise.Capture(model, tmp_path / "t.parquet"):
            generate(model)
    finally:
        model.generation_config.eos_token_id = before
    assert tokens_of(slotwise.open_trace(tmp_path / "t.parquet"), 1) == free[1][:6]


def test_an_end_token_in_a_prompt_ends_nothing_nor_does_one_that_a_lone_sequence_goes_on_after(model, tmp_path):
    free = generate(model, BATCH[1:], MASK[1:], eos_token_id=None).tolist()[0]
    with slotwise.Capture(model, tmp_path / "t.parquet", end_tokens=[LONG[0], free[5]]):
        generate(model, BATCH[1:], MASK[1:], eos_token_id=None)
    assert tokens_of(slotwise.open_trace(tmp_path / "t.parquet"), 0) == free[:-1]


def test_every_prompt_opens_requests_and_labels_name_them_in_order(model, tmp_path):
    with slotwise.Capture(model, tmp_path / "t.parquet", labels=["a", "b", "c"], licence="CC0") as capture:
        generate(model, n=2, eos_token_id=None)
        generate(model, BATCH[1:], MASK[1:], n=2, eos_token_id=None)
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    assert [(r["id"], r["label"], r["prompt_tokens"]) for r in trace.meta.requests] == [
        (0, "a", 3),
        (1, "b", 5),
        (2, "c", 5),
    ]
    assert (capture.n_steps, capture.n_tokens) == (trace.n_steps, trace.n_tokens) == (4, 8 + 2 + 5 + 1)
    assert trace.meta.licence == "CC0"
    assert "torch" in trace.meta.captured_by


def test_a_prompt_in_pieces_is_one_request_of_several_prefill_steps(model, tmp_path):
    cache = transformers.DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad(), slotwise.Capture(model, tmp_path / "t.parquet"):
        for piece in (LONG[:2], LONG[2:4], LONG[4:]):
            model(torch.tensor([piece]), use_cache=True, **{name: cache})
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    rows = trace.rows("request", "step", "phase")
    assert tokens_of(trace, 0) == LONG
    assert rows["step"].tolist() == [0, 0, 1, 1, 2]
    assert rows["phase"].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("name", "value"), [("MOST", 1), ("MOST", 7), ("MOST", 10_000), ("ROOM", 1), ("ROOM", 50_000)])
def test_passes_worked_up_together_or_one_by_one_make_the_same_trace(model, tmp_path, monkeypatch, name, value):
    """Also prompts of 80 tokens, whose predictions are ranked layer by layer if there is no room to keep their inputs.

    Three in a row are worked up together. Prompts of one token are of the kind of the steps around them.
    """
    free = generate(model, eos_token_id=None).tolist()
    prompt = torch.arange(80)[None] % 90 + 3

    def record(path):
        with slotwise.Capture(model, path, width=5, horizons=(1, 2), end_tokens=[free[0][7]]):
            generate(model, eos_token_id=free[0][7])
            generate(model, prompt, torch.ones_like(prompt), eos_token_id=None)
            for _ in range(2):
                generate(model, BATCH[:, -1:], MASK[:, -1:], eos_token_id=free[0][7])
            with torch.no_grad():
                for some in (prompt, prompt + 1, prompt - 1):
                    model(some)
        return slotwise.open_trace(path)

    expected = record(tmp_path / "a.parquet")
    for module in (capture_module, capture_passes):
        monkeypatch.setattr(module, name, value)
    got = record(tmp_path / "b.parquet")
    assert got.content_sha256 == expected.content_sha256
    for column, values in expected.rows("request", "step", "position", "phase", "token_id").items():
        assert got.rows(column)[column].tolist() == values.tolist()


class Late:
    """Stands for the event of a GPU: what it is the end of may be read after it was waited for."""

    def __init__(self):
        self.waited = False

    def synchronize(self):
        self.waited = True


def test_passes_that_are_fetched_while_the_next_ones_run_make_the_same_trace(model, tmp_path, monkeypatch):
    """As from a GPU, which there is not everywhere: each group is written after the next one was laid out."""

    def record(path):
        with slotwise.Capture(model, path, end_tokens=()):
            generate(model, n=20, eos_token_id=None)
            generate(model, BATCH[1:], MASK[1:], n=20, eos_token_id=None)
        return slotwise.open_trace(path)

    monkeypatch.setattr(capture_module, "MOST", 5)
    expected, order, plain = record(tmp_path / "a.parquet"), [], capture_module.fetch

    def late(*args):
        order.append("laid out")
        return replace(plain(*args), event=Late())

    def write(self, *args):
        order.append("written")
        return written(self, *args)

    written = capture_rows.RowWriter.write
    monkeypatch.setattr(capture_module, "fetch", late)
    monkeypatch.setattr(capture_rows.RowWriter, "write", write)
    assert record(tmp_path / "b.parquet").content_sha256 == expected.content_sha256
    assert order[:4] == ["laid out", "laid out", "written", "laid out"]
    assert order.count("written") == order.count("laid out") > 6


def test_without_predictions_ids_and_weights_are_recorded_alone(model, tmp_path):
    with slotwise.Capture(model, tmp_path / "t.parquet", width=0):
        generate(model)
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    assert (trace.horizons, trace.has_weights, trace.meta.predictor) == ((), True, None)


def test_nothing_stays_on_the_model(model, tmp_path):
    def hooks():
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = hooks()
    with slotwise.Capture(model, tmp_path / "t.parquet"):
        generate(model)
        assert hooks() > before
    assert hooks() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_passes_that_wait_hold_neither_a_cache_nor_a_graph_of_gradients(model, tmp_path):
    cache = transformers.DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with slotwise.Capture(model, tmp_path / "t.parquet") as capture:
        assert model(BATCH, use_cache=True, **{name: cache}).logits.requires_grad
        kept = weakref.ref(cache)
        del cache
        gc.collect()
        assert capture.n_steps == 0
        assert kept() is None
        (waiting,) = capture._group
        assert not any(tensor.requires_grad for x, output in waiting.seen for tensor in (x, *output))


def test_gradients_that_a_caller_wants_are_left_alone(model, tmp_path):
    def grads():
        model.zero_grad()
        model(BATCH, attention_mask=MASK).logits.sum().backward()
        return [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]

    alone = grads()
    with slotwise.Capture(model, tmp_path / "t.parquet"):
        captured = grads()
    model.zero_grad()
    assert all(np.array_equal(a, b) for a, b in zip(alone, captured, strict=True))
    assert alone


def test_a_capture_records_one_block(model, tmp_path):
    capture = slotwise.Capture(model, tmp_path / "t.parquet", end_tokens=())
    with capture:
        generate(model)
        with pytest.raises(slotwise.BadTrace, match="one block"), capture:
            pass
    with pytest.raises(slotwise.BadTrace, match="one block"), capture:
        pass
    assert not any(module._forward_hooks for module in model.modules())
    assert slotwise.open_trace(tmp_path / "t.parquet").n_steps == capture.n_steps


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_a_capture_is_writing_is_left_to_it(model, tmp_path, force):
    two = [slotwise.Capture(model, tmp_path / "t.parquet", end_tokens=(), force=force) for _ in range(2)]
    with two[0]:
        generate(model)
        with pytest.raises(slotwise.BadTrace, match="another capture is writing"), two[1]:
            pass
        generate(model)
    assert slotwise.open_trace(tmp_path / "t.parquet").n_steps == two[0].n_steps


def test_weights_that_are_no_numbers_end_the_capture_and_leave_no_file(tmp_path):
    spoilt = tiny("olmoe")
    with torch.no_grad():
        next(spoilt.parameters()).fill_(float("nan"))
    with pytest.raises(slotwise.BadTrace, match="not finite"), slotwise.Capture(spoilt, tmp_path / "t.parquet"):
        generate(spoilt)
    assert not list(tmp_path.iterdir())


def test_labels_that_are_no_text_are_refused_at_once(model, tmp_path):
    with pytest.raises(slotwise.BadTrace, match="labels"):
        slotwise.Capture(model, tmp_path / "t.parquet", labels=[1])
