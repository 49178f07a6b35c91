"""Capture of every architecture: what is recorded is what the experts were given, and nothing else changes."""

import numpy as np
import pytest
from capture_cases import CONFIGS, blocks_of, slow_scores, slow_weights, tiny, torch, watched

import slotwise

PROMPT = torch.tensor([[5, 17, 80, 3, 44, 21]])
WIDTH = 4


@pytest.fixture(scope="module", params=CONFIGS)
def taken(request, tmp_path_factory):
    """(model, its trace, what the experts saw, (tokens, logits) with capture and without)."""
    model, path = tiny(request.param), tmp_path_factory.mktemp(request.param) / "t.parquet"
    ahead = [h for h in (1, 2) if h < len(blocks_of(model))]

    def generate():
        how = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "output_logits": True}
        out = model.generate(PROMPT, return_dict_in_generate=True, **how)
        return out.sequences.numpy().tobytes(), [logits.numpy().tobytes() for logits in out.logits]

    alone = generate()
    with watched(model) as seen, slotwise.Capture(model, path, width=WIDTH, horizons=ahead, check=True) as capture:
        captured = generate()
    assert capture.recall == 1.0
    return model, slotwise.open_trace(path), seen, (captured, alone)


def test_tokens_and_logits_are_the_same_bytes_with_and_without(taken):
    captured, alone = taken[3]
    assert captured == alone


def test_the_record_says_what_the_model_is(taken):
    model, trace, _, _ = taken
    blocks = blocks_of(model)
    assert trace.meta.model_layers == tuple(number for number, _ in blocks)
    assert (trace.n_layers, trace.top_k) == (len(blocks), model.config.num_experts_per_tok)
    assert trace.n_experts == blocks[0][1].experts.num_experts
    n_bytes = 4 * sum(p.numel() for p in blocks[0][1].experts.parameters())
    assert trace.row_bytes == (n_bytes // trace.n_experts,) * trace.n_layers
    assert trace.meta.router == {"deepseek_v3": "sigmoid"}.get(model.config.model_type, trace.meta.router)


def test_a_prompt_is_one_prefill_step_and_every_token_after_it_a_decode_step(taken):
    rows = taken[1].rows("request", "step", "position", "phase", "token_id")
    tokens = np.frombuffer(taken[3][0][0], np.int64)
    assert rows["step"].tolist() == [0] * 6 + [1, 2, 3, 4]
    assert rows["phase"].tolist() == [0] * 6 + [1] * 4
    assert rows["position"].tolist() == list(range(10))
    assert rows["token_id"].tolist() == tokens[:10].tolist()
    assert not rows["request"].any()


def test_ids_and_weights_are_those_that_the_experts_were_given(taken):
    _, trace, seen, _ = taken
    weights = trace.read("weights", 0, trace.n_tokens)
    for layer, passes in enumerate(seen):
        given = np.concatenate([p[1] for p in passes]).astype(int)
        heavy = np.concatenate([p[2] for p in passes])
        assert np.sort(trace.layer(layer)).tolist() == np.sort(given).tolist()
        for row, ids in enumerate(trace.layer(layer)):
            expected = [heavy[row, given[row].tolist().index(expert)] for expert in ids]
            np.testing.assert_allclose(weights[layer, row], expected, rtol=2**-10)


def test_ids_come_in_the_order_in_which_a_slow_router_ranks_them(taken):
    model, trace, seen, _ = taken
    weights = trace.read("weights", 0, trace.n_tokens)
    for layer, passes in enumerate(seen):
        for row, x in enumerate(np.concatenate([p[0] for p in passes])):
            best = np.argsort(-slow_scores(model, layer, x))[: trace.top_k].tolist()
            assert trace.layer(layer)[row].tolist() == best
            np.testing.assert_allclose(weights[layer, row], slow_weights(model, layer, x, best), rtol=2e-3)


def test_predictions_are_what_a_slow_router_says_to_the_router_input_of_a_layer_before(taken):
    model, trace, seen, _ = taken
    none = np.iinfo(trace.dtype).max
    assert trace.horizons
    for horizon in trace.horizons:
        ahead = trace.read(f"predicted.h{horizon}", 0, trace.n_tokens)
        assert (ahead[:horizon] == none).all()
        for layer in range(horizon, trace.n_layers):
            for row, x in enumerate(np.concatenate([p[0] for p in seen[layer - horizon]])):
                scores = slow_scores(model, layer, x)
                best = [e if scores[e] > -np.inf else none for e in np.argsort(-scores)[:WIDTH]]
                assert ahead[layer, row].tolist() == best
