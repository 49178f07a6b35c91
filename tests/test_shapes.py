"""The presets against what their models are published to hold, and the time that their dense weights stand for."""

import pytest

import slotwise
from slotwise.executor.errors import BadExecutor
from slotwise.executor.shapes import PRESETS

# model -> layers, experts, words of the vocabulary, weights elsewhere, billions of weights in all (model cards)
MODELS = {
    "Qwen3-30B-A3B": (48, 128, 151_936, 0, 30.5),
    "Qwen3-235B-A22B": (94, 128, 151_936, 0, 235),
    "OLMoE-1B-7B": (16, 64, 50_304, 0, 6.92),
    "Mixtral-8x7B": (32, 8, 32_000, 0, 46.7),
    "gpt-oss-20b": (24, 32, 201_088, 0, 20.9),
    "gpt-oss-120b": (36, 128, 201_088, 0, 116.8),
    "DeepSeek-V2-Lite": (27, 64, 102_400, 3 * 2048 * 10_944 - 64 * 3 * 2048 * 1408, 15.7),  # one layer has no experts
}


@pytest.mark.parametrize("name", MODELS)
def test_experts_dense_weights_and_words_add_up_to_the_model(name):
    layers, experts, words, elsewhere, billions = MODELS[name]
    shape = PRESETS[name]
    layer = experts * 3 * shape.hidden * shape.inner + shape.dense
    total = layers * layer + 2 * words * shape.hidden + elsewhere
    assert total / 1e9 == pytest.approx(billions, rel=0.004)


def test_every_model_among_the_presets_says_what_is_dense():
    assert set(MODELS) == {name for name, shape in PRESETS.items() if shape.dense} == set(PRESETS) - {"tiny"}


def test_dense_time_is_bytes_over_the_rate():
    assert PRESETS["OLMoE-1B-7B"].dense_us(1e12) == pytest.approx(33.816576)


@pytest.mark.once
def test_automatic_dense_time_is_that_of_the_measured_device():
    """The preset's own weights, though the rows computed are small ones."""
    asked = {"shape": "OLMoE-1B-7B", "intermediate": 16, "slots": 8, "steps": 2, "alias_layers": 1}
    (run,) = slotwise.run("sample", dense_us="auto", **asked)["runs"]
    assert run["dense_us"] == pytest.approx(
        PRESETS["OLMoE-1B-7B"].dense_us(run["ceilings"]["device_read_per_s"]), rel=2
    )
    assert run["timing"]["seconds"] >= 2 * 24 * run["dense_us"] * 1e-6


@pytest.mark.parametrize(("given", "said"), [("auto", "no preset says"), ("soon", "or 'auto'"), (-1.0, "from 0 to")])
def test_what_cannot_be_is_refused_with_the_way_out(given, said):
    with pytest.raises(BadExecutor, match=said):
        slotwise.run("sample", shape="tiny", slots=8, steps=1, dense_us=given)


def test_automatic_dense_time_of_another_hidden_size_is_refused():
    with pytest.raises(BadExecutor, match="hidden=2048, not of hidden=64"):
        slotwise.run("sample", shape="OLMoE-1B-7B", hidden=64, intermediate=64, slots=8, steps=1, dense_us="auto")
