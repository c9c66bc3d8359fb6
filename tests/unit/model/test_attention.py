import functools

import keras
import layer_weights
import numpy as np
import pytest
import reference
import tensorflow as tf
import torch_twins

from keras_transformer import MultiHeadAttention
from keras_transformer.model.attention import dot_product_attention

assert_close = functools.partial(layer_weights.assert_close, rtol=2e-5, atol=2e-5)
B, N, D, S, T = 3, 2, 10, 7, 11
QUERY_WIDTH, VALUE_WIDTH, KEY_WIDTH = 13, 17, 19
SIZES = [(None, None), (3, None), (None, 4), (4, 3)]  # (d_k, d_v); None: H = 5


@pytest.fixture(scope="module")
def inputs():
    """Query, value and key, float32, of three different widths."""
    rng = np.random.default_rng(23)
    shapes = [(B, T, QUERY_WIDTH), (B, S, VALUE_WIDTH), (B, S, KEY_WIDTH)]
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


@pytest.fixture(scope="module")
def mask():
    """[B, T, S], with two rows that may attend to nothing."""
    mask = np.random.default_rng(29).uniform(size=(B, T, S)) < 0.5
    mask[..., 3] = True
    mask[1, 2] = mask[2, 10] = False
    return mask


def make_layer(*shapes, **arguments):
    layer = MultiHeadAttention(D, N, **arguments)
    layer.build(*shapes)
    return layer_weights.randomize(layer)


def layer_for(inputs, **arguments):
    return make_layer(*(x.shape for x in inputs), **arguments)


# Against the oracle.


def test_dot_product_attention_by_hand():
    # Head size 4, so the products 2 ln 3 and 0 are halved: the weights are 3/4 and 1/4. The third
    # key is hidden from the first query, all keys are hidden from the second.
    query = np.array([[np.log(3), 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])[None, None]
    key = np.array([[2.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]])[None, None]
    value = np.array([[4.0, 0.0], [8.0, -4.0], [100.0, 100.0]])[None, None]
    mask = np.array([[True, True, False], [False, False, False]])[None, None]
    tensors = [tf.constant(x, tf.float32) for x in (query, key, value)]
    output, weights = dot_product_attention(*tensors, mask)
    assert_close(weights, [[[[0.75, 0.25, 0.0], [0.0, 0.0, 0.0]]]])
    assert_close(output, [[[[5.0, -1.0], [0.0, 0.0]]]])
    output, again = dot_product_attention(*tensors, mask, dropout=lambda weights: 2 * weights)
    assert_close(again, weights)
    assert_close(output, [[[[10.0, -2.0], [0.0, 0.0]]]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("d_k", "d_v"), SIZES)
def test_output_and_weights_are_the_oracles(inputs, mask, d_k, d_v, masked):
    layer = layer_for(inputs, d_k=d_k, d_v=d_v)
    mask = mask if masked else None
    output, scores = layer(*inputs, attention_mask=mask, return_attention_scores=True)
    expected, expected_scores = reference.multi_head_attention(
        *inputs, layer_weights.attention(layer), N, mask
    )
    assert_close(output, expected)
    assert_close(scores, expected_scores)
    assert_close(layer(*inputs, attention_mask=mask), output, rtol=0, atol=0)


@pytest.mark.parametrize(
    "arguments", [{}, {"use_bias": False}, {"d_k": 3, "scale_attention": False}]
)
def test_options_are_the_oracles(inputs, arguments):
    query, value, _ = inputs
    layer = make_layer(query.shape, value.shape, **arguments)
    assert len(layer.weights) == (8 if arguments.get("use_bias", True) else 4)
    weights = layer_weights.attention(layer, arguments.get("scale_attention", True))
    expected = reference.multi_head_attention(query, value, value, weights, N)
    for a, e in zip(layer(query, value, return_attention_scores=True), expected, strict=True):
        assert_close(a, e)


def test_masks_of_other_ranks_and_sizes(inputs, mask):
    layer, keys = layer_for(inputs), mask[:, :1]  # [B, 1, S]
    for given, same in [
        (mask[:, None], mask),
        (np.repeat(mask[:, None], N, axis=1), mask),
        (keys[:, 0], np.repeat(keys, T, axis=1)),
        (keys[:, None], np.repeat(keys, T, axis=1)),
        (mask[:1, None], np.repeat(mask[:1], B, axis=0)),
    ]:
        expected = layer(*inputs, attention_mask=same)
        assert_close(layer(*inputs, attention_mask=given), expected)


def test_a_mask_is_of_rows_when_sizes_are_equal():
    x = np.random.default_rng(37).normal(size=(N, N, D))  # B = T = S = N
    layer, mask = make_layer(x.shape, x.shape), np.tri(N, dtype=bool)
    of_queries = np.stack([mask, ~mask | np.eye(N, dtype=bool)])  # one for each row, not head
    weights = layer_weights.attention(layer)
    expected, _ = reference.multi_head_attention(x, x, x, weights, N, of_queries)
    assert_close(layer(x, x, attention_mask=of_queries), expected)


# Against PyTorch.


@pytest.mark.parametrize("case", ["attention", "masked_attention"])
def test_output_and_weights_are_torchs(case):
    twin = torch_twins.load(case)  # with another mask for each head
    query, value, key = inputs = [twin[name] for name in ("query", "value", "key")]
    layer = make_layer(query.shape, value.shape, key.shape)
    layer.set_weights(twin["weights"])
    mask = twin.get("mask")
    output, scores = layer(*inputs, attention_mask=mask, return_attention_scores=True)
    assert_close(output, twin["output"])
    assert_close(scores, twin["scores"])


# Rows that may attend to nothing.


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_masked_weights_are_zero_and_others_sum_to_one(inputs, mask, dtype):
    layer = layer_for(inputs, dtype=dtype)
    output, scores = layer(*inputs, attention_mask=mask, return_attention_scores=True)
    scores = keras.ops.convert_to_numpy(keras.ops.cast(scores, "float32"))
    everywhere = np.broadcast_to(mask[:, None], scores.shape)
    assert np.all(scores[~everywhere] == 0)
    sums = np.broadcast_to(mask.any(-1)[:, None], (B, N, T)).astype(float)
    np.testing.assert_allclose(scores.sum(-1), sums, atol=1e-5 if dtype == "float32" else 1e-2)
    bias = keras.ops.cast(layer.output_dense.bias, output.dtype)
    for row in [(1, 2), (2, 10)]:
        assert_close(output[row], keras.ops.convert_to_numpy(bias), rtol=0, atol=0)


def test_rows_masked_entirely_have_finite_gradients(inputs, mask):
    layer = layer_for(inputs)
    x = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(*x, attention_mask=mask) ** 2)
    by_input, by_weight = tape.gradient(loss, [x, layer.trainable_weights])
    for gradient in [*by_input, *by_weight]:
        assert np.all(np.isfinite(gradient))
        assert np.any(gradient != 0)
    by_query = by_input[0].numpy()
    visible = mask.sum(-1)  # [B, T]
    assert np.all(by_query[visible == 0] == 0)
    assert np.all(np.any(by_query[visible > 1] != 0, axis=-1))


# Precision and dropout.


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "bits"), [("mixed_float16", 11), ("mixed_bfloat16", 8)])
def test_softmax_is_computed_in_float32(dtype, bits, masked):
    # All projections are 1, so the scores are the keys, which 8 bits hold exactly; the weights
    # are then right but for one rounding.
    layer = MultiHeadAttention(1, 1, use_bias=False, dtype=dtype)
    keys = np.random.default_rng(37).integers(-31, 32, size=(1, 401, 1)) / 16
    layer.build((1, 1, 1), keys.shape)
    layer.set_weights([np.ones((1, 1))] * 4)
    mask = np.ones((1, 1, 401), bool) if masked else None
    output, scores = layer(
        np.ones((1, 1, 1)), keys, attention_mask=mask, return_attention_scores=True
    )
    assert output.dtype == scores.dtype == dtype.removeprefix("mixed_")
    scores = keras.ops.convert_to_numpy(keras.ops.cast(scores, "float32"))[0, 0, 0]
    np.testing.assert_allclose(
        scores, reference.softmax(keys[0, :, 0]), rtol=1.01 * 2.0**-bits, atol=2.0**-24
    )


def test_dropout_acts_on_weights_and_only_in_training(inputs):
    layer = layer_for(inputs, dropout_rate=0.5)
    expected, expected_scores = layer_for(inputs)(*inputs, return_attention_scores=True)
    for training in (None, False):
        assert_close(layer(*inputs, training=training), expected, rtol=0, atol=0)
    output, scores = layer(*inputs, return_attention_scores=True, training=True)
    assert_close(scores, expected_scores, rtol=0, atol=0)  # as they are before dropout
    assert np.abs(output - expected).max() > 0.01
    assert np.abs(output - layer(*inputs, training=True)).max() > 0.01


# Configuration.


def test_initial_values():
    """Glorot's limit by hand, sqrt(6 / (fan in + fan out)), of [96, 3 * 96] and [96, 96]."""
    layer = MultiHeadAttention(d_model=96, num_heads=3)
    layer.build((None, None, 96), (None, None, 96))
    for weight in layer.weights:
        _, kind, name = weight.path.rsplit("/", 2)
        values = weight.numpy()
        limit = {"bias": 0.0, "kernel": 0.125 if kind != "output" else 0.03125**0.5}[name]
        assert abs(values).max() == pytest.approx(limit, rel=0.01), weight.path
        assert values.std() == pytest.approx(limit / 3**0.5, rel=0.03), weight.path


@pytest.mark.parametrize(
    ("arguments", "name"), [((10, 3, 0.0, 5), "d_model"), ((10, 0), "num_heads")]
)
def test_wrong_sizes(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        MultiHeadAttention(*arguments)


# Masks.


def test_masks_are_keras_own():
    """Keras's layer of the same weights, on embeddings that carry masks."""
    rng = np.random.default_rng(31)
    query_ids, value_ids, key_ids = (rng.integers(0, 2, (B, n)) * 3 for n in (T, S, S))
    value_ids[:, 0] = key_ids[:, 0] = query_ids[:, :] = 5
    embedding = keras.layers.Embedding(7, D, mask_zero=True)
    for causal, num_inputs in [(False, 3), (True, 3), (True, 2)]:
        arguments = [embedding(ids) for ids in (query_ids, value_ids, key_ids)[:num_inputs]]
        layer, twin = layer_for(arguments), keras.layers.MultiHeadAttention(N, D // N)
        twin.build(*(x.shape for x in arguments))
        for name in ("query", "key", "value", "output"):
            weights, dense = getattr(layer, f"{name}_dense"), getattr(twin, f"_{name}_dense")
            for source, goal in zip(weights.weights, dense.weights, strict=True):
                goal.assign(np.reshape(source, goal.shape))
        actual = layer(*arguments, use_causal_mask=causal)
        without_masks = layer(*(x + 0 for x in arguments), use_causal_mask=causal)
        assert_close(actual, twin(*arguments, use_causal_mask=causal))  # takes the masks away
        np.testing.assert_array_equal(actual._keras_mask, query_ids != 0)
        assert np.abs(without_masks - actual).max() > 1e-3


@pytest.mark.parametrize("name", ["attention_mask", "value_mask", "key_mask"])
def test_bad_masks_are_refused(name):
    layer = MultiHeadAttention(D, N, name="heads")
    shapes = [(S,), (T, S), (B, T), (B, S, T), (B, T, 1), (B, 5, T, S), (1, B, N, T, S)]
    bad = [np.ones((B, S), "int32"), *(np.ones(shape, bool) for shape in shapes)]
    for mask in bad:
        with pytest.raises(ValueError, match=f"`{name}` of layer 'heads' must"):
            layer(np.ones((B, T, D)), np.ones((B, S, D)), **{name: mask})
