"""Capture on a GPU: the same tokens and logits, what the experts were given, and hooks that wait for nothing."""

from contextlib import contextmanager

import numpy as np
import pytest
from capture_cases import CONFIGS, tiny, torch, watched

import slotwise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_capture_changes_nothing_and_records_what_the_experts_were_given(name, dtype, tmp_path):
    model = tiny(name).to("cuda", getattr(torch, dtype))
    prompts = torch.tensor([[0, 0, 7, 8, 9], [11, 12, 13, 14, 15]], device="cuda")
    mask = (prompts > 0).long()

    def generate():
        how = {"max_new_tokens": 90, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        out = model.generate(prompts, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **how)
        return out.sequences.cpu(), torch.stack(out.logits).float().cpu()

    alone = generate()
    with watched(model) as seen, slotwise.Capture(model, tmp_path / "t.parquet", check=True, end_tokens=()) as capture:
        captured = generate()
    assert all(torch.equal(a, b) for a, b in zip(alone, captured, strict=True))
    assert capture.recall == 1.0
    trace = slotwise.open_trace(tmp_path / "t.parquet")
    rows = trace.rows("request", "token_id")
    for request, skipped in ((0, 2), (1, 0)):
        assert rows["token_id"][rows["request"] == request].tolist() == alone[0][request, skipped:-1].tolist()
    for layer, passes in enumerate(seen):
        given = np.concatenate([p[1] for p in passes])[2:].astype(int)  # the first two are padding
        assert np.sort(trace.layer(layer)).tolist() == np.sort(given).tolist()


class Impatient(slotwise.Capture):
    """Its hooks run in the mode in which torch refuses every operation that waits for the GPU."""

    def _before(self, *args):
        with refusing_to_wait():
            super()._before(*args)

    def _route(self, *args):
        with refusing_to_wait():
            return super()._route(*args)

    def _after(self, *args):
        with refusing_to_wait():
            return super()._after(*args)


@contextmanager
def refusing_to_wait():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CONFIGS)
def test_no_hook_waits_for_the_gpu(name, tmp_path):
    model = tiny(name).to("cuda")
    with pytest.raises(RuntimeError, match="synchronizing"), refusing_to_wait():
        torch.ones(1, device="cuda").item()
    with Impatient(model, tmp_path / "t.parquet", check=True, end_tokens=()):
        prompts = torch.tensor([[0, 7, 8], [5, 6, 7]], device="cuda")
        model.generate(
            prompts, attention_mask=(prompts > 0).long(), max_new_tokens=80, eos_token_id=None, pad_token_id=0
        )
    assert slotwise.open_trace(tmp_path / "t.parquet").n_steps == 80
