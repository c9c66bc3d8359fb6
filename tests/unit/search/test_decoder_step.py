"""The fast step of a search, against the decoder on the complete prefix."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_weights import VARIANTS, V, make_model

from keras_transformer.config import DecodingOptions
from keras_transformer.search import decoder_step
from keras_transformer.search.beam_search import search
from keras_transformer.search.decoder_step import DecoderStep

K, STEPS = 3, 5
SOURCE_IDS = np.array([[5, 18, 7, 3, 11, 1, 4], [9, 2, 6, 13, 0, 0, 0]], "int32")
# Another prefix for every hypothesis.
PREFIXES = np.random.default_rng(41).integers(1, V, (2, K, STEPS)).astype("int32")


# As imported Marian models are. The large epsilon shows where a norm is computed without it.
MARIAN = {"position_encoding": "marian", "activation": "swish", "output_bias": True}
MARIAN_VARIANTS = {
    "marian": {**MARIAN, "layer_norm_epsilon": 0.1},
    "untied marian": {**MARIAN, "share_embeddings": False},
}


@pytest.fixture(scope="module", params=VARIANTS | MARIAN_VARIANTS)
def model(request):
    return make_model(**(VARIANTS | MARIAN_VARIANTS)[request.param])


def slow_logits(model, prefixes):
    """The decoder on all prefixes, each with a copy of its source: float [B, K, T, V]."""
    num_beams = prefixes.shape[1]
    ids = {
        "source_ids": np.repeat(SOURCE_IDS, num_beams, axis=0),
        "target_ids": prefixes.reshape(-1, prefixes.shape[2]),
    }
    return model(ids, training=False).numpy().reshape(*prefixes.shape, V)


def fast_logits(model, prefixes):
    """The same, step by step."""
    step, found = DecoderStep(model, prefixes.shape[2]), []
    state = step.initial_state(tf.constant(SOURCE_IDS), prefixes.shape[1])
    for position in range(prefixes.shape[2]):
        logits, *state = step(tf.constant(prefixes[:, :, position]), tf.constant(position), *state)
        assert logits.dtype == tf.float32
        found.append(logits.numpy())
    return np.stack(found, axis=2)


def assert_close(actual, expected, **tolerance):
    np.testing.assert_allclose(actual, expected, **{"rtol": 1e-5, "atol": 1e-5, **tolerance})


@pytest.mark.parametrize("num_beams", [1, K])
@pytest.mark.parametrize("min_size", [0, 2**20], ids=["oneDNN", "no oneDNN"])
def test_steps_are_the_decoder(model, min_size, num_beams, monkeypatch):
    monkeypatch.setattr(decoder_step, "ONEDNN_MIN_MULTIPLICATIONS", min_size)
    prefixes = PREFIXES[:, :num_beams]
    assert_close(fast_logits(model, prefixes), slow_logits(model, prefixes))


@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_float16", 0.02), ("mixed_bfloat16", 0.15), ("float64", 1e-5)]
)
@pytest.mark.parametrize("variant", ["tied", "untied learned"])
def test_steps_in_other_precisions(policy, tolerance, variant):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = make_model(**VARIANTS[variant])
    finally:
        keras.config.set_dtype_policy(before)
    step = DecoderStep(model, STEPS)
    assert step.output.kernel.dtype.name == policy.removeprefix("mixed_")
    assert step.layers[0].self_qkv.kernel.dtype.name == policy.removeprefix("mixed_")
    error = np.abs(fast_logits(model, PREFIXES) - slow_logits(model, PREFIXES))
    assert error.mean() < tolerance


def test_chosen_hypotheses_are_continued(model):
    # The hypotheses that stay live, two times; one of them twice, and one that had died before.
    choices = {1: np.array([[2, 0, 0], [1, 1, 2]]), 2: np.array([[1, 0, 2], [2, 0, 0]])}
    continued = PREFIXES[:, :, :0]
    step = DecoderStep(model, STEPS)
    beams, row_state = step.initial_state(tf.constant(SOURCE_IDS), K)
    for position in range(STEPS):
        ids = PREFIXES[:, :, position]
        continued = np.concatenate([continued, ids[:, :, None]], axis=2)
        logits, beams, row_state = step(tf.constant(ids), tf.constant(position), beams, row_state)
        assert_close(logits, slow_logits(model, continued)[:, :, -1])
        if position in choices:
            chosen = choices[position]
            continued = np.take_along_axis(continued, chosen[:, :, None], axis=1)
            beams = tf.nest.map_structure(
                lambda state, chosen=chosen: tf.gather(state, chosen, batch_dims=1), beams
            )


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


def test_a_step_takes_few_operations():
    model = make_model(num_encoder_layers=1, num_decoder_layers=2)

    def translate(source_ids):
        step = DecoderStep(model, STEPS)
        cache, row_state = step.initial_state(source_ids, K)
        limits = tf.fill([tf.shape(source_ids)[0]], STEPS)
        return search(step, cache, limits, DecodingOptions(beam_size=K), row_state)

    spec = tf.TensorSpec([None, None], tf.int32)
    graph = tf.function(translate, input_signature=[spec], autograph=False)
    functions = graph.get_concrete_function().graph.as_graph_def().library.function
    operations = {  # without constants
        function.signature.name: [node for node in function.node_def if node.op != "Const"]
        for function in functions
    }

    def count(name):
        """With both branches of each condition."""
        branches = [
            node.attr[branch].func.name
            for node in operations[name]
            if node.op in ("If", "StatelessIf")
            for branch in ("then_branch", "else_branch")
        ]
        return len(operations[name]) + sum(map(count, branches))

    # The body of the inner loop is the largest function.
    assert max(map(count, operations)) < 300
