"""The recurrent model, and its step function, against plain loops and complete prefixes."""

import json

import jaxtyping
import keras
import numpy as np
import pytest
import recurrent_reference
import reference
import tensorflow as tf
from beartype import beartype
from layer_weights import V, dense, randomize
from step_twins import assert_chosen_are_continued

from keras_transformer import (
    InputError,
    LabelSmoothedCrossEntropy,
    Recurrent,
    RecurrentConfig,
    beam_search,
)
from keras_transformer.config import EOS_ID, DecodingOptions
from keras_transformer.registry import step_of

K = 3
SIZES = {"vocab_size": V, "d_model": 6, "units": 5}
VARIANTS = {
    "gru luong": {"num_decoder_layers": 1},
    "lstm additive": {"cell": "lstm", "attention": "additive", "num_decoder_layers": 2},
    "gru additive": {
        "attention": "additive",
        "share_embeddings": False,
        "target_vocab_size": 23,
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
    },
    "lstm luong, not scaled": {
        "cell": "lstm",
        "scale_attention": False,
        "share_embeddings": False,
        "num_encoder_layers": 2,
    },
}
# Sources of 7, 4 and 1 tokens, and targets of 4, 2 and 3.
SOURCE_IDS = np.array([[5, 18, 7, 3, 11, 1, 4], [9, 2, 6, 13, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0]])
TARGET_IDS = np.array([[2, 9, 7, 17], [2, 4, 0, 0], [2, 12, 5, 0]])
INPUTS = {"source_ids": SOURCE_IDS.astype("int32"), "target_ids": TARGET_IDS.astype("int32")}


def make_model(**settings):
    return randomize(Recurrent(RecurrentConfig(**SIZES | settings)))


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    return make_model(**VARIANTS[request.param])


def assert_close(actual, expected, tolerance=1e-5):
    actual = keras.ops.convert_to_numpy(actual)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    assert actual.shape == np.shape(expected)


# The mathematics.


def reference_outputs(model, source_ids, target_ids):
    """Logits, [T, V], and attention weights, [T, S], of a sentence without padding."""
    config = model.config
    step, num_states = recurrent_reference.STEPS[config.cell], 1 + (config.cell == "lstm")
    source_table, target_table = (
        layer.embeddings.numpy() for layer in (model.source_embedding, model.target_embedding)
    )
    layers = [
        (layer.forward_layer.get_weights(), layer.backward_layer.get_weights())
        for layer in model.encoder_layers
    ]
    sources = source_table[source_ids] * config.d_model**0.5
    encoded = recurrent_reference.encode(step, num_states, sources, layers)
    kernel, bias = dense(model.initial_dense)
    states = np.split(
        np.tanh(encoded[0, config.units :] @ kernel + bias), num_states * config.num_decoder_layers
    )
    weights = {"key": model.key_dense.kernel.numpy()}
    if config.attention == "additive":
        weights |= {"query": model.query_dense.kernel.numpy(), "v": model.attention.scale.numpy()}
    x = target_table[target_ids] * config.d_model**0.5
    for i, layer in enumerate(model.decoder_layers):
        # All first states of the layers, then all second states.
        state = tuple(states[i :: config.num_decoder_layers])
        x = recurrent_reference.run(step, x, state, layer.get_weights())
        if i == 0:
            score = recurrent_reference.SCORES[config.attention]
            is_scaled = config.attention == "luong" and config.scale_attention
            queries = x * config.units**-0.5 if is_scaled else x
            attended, attention = recurrent_reference.attend(score, encoded, queries, weights)
        if i < config.num_decoder_layers - 1:
            x = np.concatenate([attended, x], axis=1)
    x = recurrent_reference.combine(attended, x, *dense(model.combine_dense))
    tied = config.share_embeddings
    return x @ (target_table.T if tied else model.output_dense.kernel.numpy()), attention


def test_logits_and_attention_are_the_oracles(model):
    logits, scores = model(INPUTS), model.attention_scores(**INPUTS)
    assert logits.dtype == "float32"
    assert (scores.encoder, scores.decoder, len(scores.cross)) == ((), (), 1)
    assert model.num_cross_attentions == 1
    for row, (source_ids, target_ids) in enumerate(zip(SOURCE_IDS, TARGET_IDS, strict=True)):
        source_ids, target_ids = np.trim_zeros(source_ids), np.trim_zeros(target_ids)
        expected, attention = reference_outputs(model, source_ids, target_ids)
        assert_close(logits[row, : len(target_ids)], expected)
        attention = np.pad(attention, [(0, 0), (0, 7 - len(source_ids))])
        assert_close(scores.cross[0][row, 0, : len(target_ids)], attention)


def test_gradients_reach_every_weight(model):
    with tf.GradientTape() as tape:
        loss = LabelSmoothedCrossEntropy()(INPUTS["target_ids"], model(INPUTS))
    gradients = tape.gradient(loss, model.trainable_weights)
    for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 1e-5, weight.path


def test_dropout_acts_only_in_training():
    model, expected = make_model(dropout_rate=0.5), make_model(dropout_rate=0.0)(INPUTS)
    for training in (None, False):
        assert_close(model(INPUTS, training=training), expected)
    assert np.abs(model(INPUTS, training=True) - expected).max() > 0.1


def test_mixed_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make_model()
    finally:
        keras.config.set_dtype_policy(before)
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert model.encode(INPUTS["source_ids"]).dtype == "bfloat16"
    assert model(INPUTS).dtype == "float32"
    assert_close(model(INPUTS)[0], reference_outputs(model, SOURCE_IDS[0], TARGET_IDS[0])[0], 0.1)


# The search.


def test_steps_are_the_decoder(model):
    prefixes = np.random.default_rng(41).integers(1, V, (2, K, 4)).astype("int32")
    assert_chosen_are_continued(model, prefixes)


def test_a_wide_beam_is_an_exhaustive_search():
    model = randomize(Recurrent(RecurrentConfig(**SIZES | {"vocab_size": 6})))
    source_ids, max_lengths = np.array([[4, 5, 4, 3], [5, 3, 0, 0]], "int32"), [3, 2]
    beam_size = 15
    options = DecodingOptions(beam_size=beam_size, length_penalty=0.7)

    @tf.function(autograph=False)
    def search(source_ids):
        step = step_of(model, 3, 1)
        cache, rows = step.initial_state(source_ids, beam_size)
        return beam_search(step, cache, tf.constant(max_lengths), options, rows)

    found = search(tf.constant(source_ids))
    for row, max_length in enumerate(max_lengths):

        def log_probs(prefix, row=row):
            ids = {"source_ids": source_ids[row : row + 1], "target_ids": np.array([[2, *prefix]])}
            return np.log(reference.softmax(model(ids)[0, -1]))

        expected = reference.exhaustive_search(
            log_probs, EOS_ID, [3, 4, 5], max_length, 0.7, beam_size
        )
        assert len(expected) == {3: 15, 2: 7}[max_length]
        ids = [tuple(np.trim_zeros(each)) for each in found.ids[row].numpy()][: len(expected)]
        assert ids == [tokens for tokens, _ in expected]
        assert_close(found.scores[row, : len(expected)], [score for _, score in expected])


# Configuration and files.


def test_saved_and_loaded_outputs_are_equal(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Recurrent)
    assert loaded.config == model.config
    assert_close(loaded(INPUTS), model(INPUTS).numpy(), 0)


def test_presets():
    tiny = RecurrentConfig.from_preset("tiny", vocab_size=V, units=7)  # overrides win
    assert (tiny.d_model, tiny.units) == (128, 7)
    assert RecurrentConfig.from_preset("base", vocab_size=V) == RecurrentConfig(vocab_size=V)
    assert Recurrent.from_preset("tiny", vocab_size=V, units=7).config == tiny
    assert RecurrentConfig(**json.loads(json.dumps(tiny.to_dict()))) == tiny


def test_config_errors():
    with pytest.raises(InputError, match=r"`cell`: .*cell='rnn'"):
        RecurrentConfig.from_preset("tiny", vocab_size=V, cell="rnn")
    with pytest.raises(InputError, match=r"^Unknown setting d_ff\. .* units"):
        RecurrentConfig.from_preset("tiny", vocab_size=V, d_ff=7)


@pytest.mark.parametrize("settings", [{}, {"cell": "lstm", "attention": "additive"}])
def test_shapes_are_the_annotated_ones(settings, monkeypatch):
    for name in ("encode", "decode", "embed", "initial_states", "attend", "project"):
        checked = jaxtyping.jaxtyped(typechecker=beartype)(getattr(Recurrent, name))
        monkeypatch.setattr(Recurrent, name, checked)
    make_model(**settings)(INPUTS)
