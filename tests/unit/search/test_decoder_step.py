"""The fast step of a search, against the decoder on the complete prefix."""

import keras
import numpy as np
import pytest
from layer_weights import VARIANTS, V, make_model
from step_twins import assert_chosen_are_continued, assert_close, fast_logits, slow_logits

from keras_transformer.search import decoder_step
from keras_transformer.search.decoder_step import DecoderStep

K, STEPS = 3, 5
# Another prefix for every hypothesis.
PREFIXES = np.random.default_rng(41).integers(1, V, (2, K, STEPS)).astype("int32")


# As imported Marian models are. The large epsilon shows where a norm is computed without it.
MARIAN = {"position_encoding": "marian", "activation": "swish", "output_bias": True}
MARIAN_VARIANTS = {
    "marian": {**MARIAN, "layer_norm_epsilon": 0.1},
    "M2M-100": {**MARIAN, "norm_first": True, "first_position": 2},
    "untied marian": {**MARIAN, "share_embeddings": False},
}


@pytest.fixture(scope="module", params=VARIANTS | MARIAN_VARIANTS)
def model(request):
    return make_model(**(VARIANTS | MARIAN_VARIANTS)[request.param])


@pytest.mark.parametrize("num_beams", [1, K])
@pytest.mark.parametrize("min_size", [0, 2**20], ids=["oneDNN", "no oneDNN"])
def test_steps_are_the_decoder(model, min_size, num_beams, monkeypatch):
    monkeypatch.setattr(decoder_step, "ONEDNN_MIN_MULTIPLICATIONS", min_size)
    prefixes = PREFIXES[:, :num_beams]
    assert_close(fast_logits(model, prefixes), slow_logits(model, prefixes))


def model_of_policy(policy, **settings):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return make_model(**settings)
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_float16", 0.02), ("mixed_bfloat16", 0.15), ("float64", 1e-5)]
)
@pytest.mark.parametrize("variant", ["tied", "untied learned", "pre-norm"])
def test_steps_in_other_precisions(policy, tolerance, variant):
    model = model_of_policy(policy, **VARIANTS[variant])
    step = DecoderStep(model, STEPS)
    assert step.output.kernel.dtype.name == policy.removeprefix("mixed_")
    assert step.layers[0].self_qkv.kernel.dtype.name == policy.removeprefix("mixed_")
    error = np.abs(fast_logits(model, PREFIXES) - slow_logits(model, PREFIXES))
    assert error.mean() < tolerance


@pytest.mark.parametrize("max_rows", [2 * K, 2 * K - 1], ids=["blocks", "no blocks"])
@pytest.mark.parametrize("variant", ["tied", "untied learned"])
@pytest.mark.parametrize("dtype", ["float32", "float64"], ids=["moved", "transposed"])
@pytest.mark.parametrize("size", [4, 32])  # five blocks of 4 words and 3 words, or 23 and no block
def test_steps_with_kernels_in_blocks(size, dtype, variant, max_rows, monkeypatch):
    model = model_of_policy(dtype, **{**VARIANTS[variant], "vocab_size": 23})
    monkeypatch.setattr(decoder_step, "MIN_BLOCKED_SIZE", 0)
    monkeypatch.setattr(decoder_step, "BLOCK_OUTPUTS", size)
    monkeypatch.setattr(decoder_step, "MAX_BLOCKED_ROWS", max_rows)
    assert_close(fast_logits(model, PREFIXES), slow_logits(model, PREFIXES))


def test_chosen_hypotheses_are_continued(model):
    assert_chosen_are_continued(model, PREFIXES)


def test_steps_have_no_dropout():
    rates = dict.fromkeys(
        ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"), 0.5
    )
    model = make_model(**rates)
    assert_close(fast_logits(model, PREFIXES), slow_logits(model, PREFIXES))


def test_steps_add_what_lora_has_learned():
    model = make_model()
    before = slow_logits(model, PREFIXES)
    layer = model.decoder_layers[0]
    cross = layer.cross_attention
    for dense in (layer.self_attention.query_dense, cross.output_dense):
        dense.enable_lora(rank=2)
        dense.lora_kernel_b.assign(np.full(dense.lora_kernel_b.shape, 0.5))
    expected = slow_logits(model, PREFIXES)
    assert np.abs(expected - before).max() > 0.01
    assert_close(fast_logits(model, PREFIXES), expected)
