import functools

import keras
import layer_weights
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_transformer import PositionalEmbedding
from keras_transformer.model.embedding import sinusoidal_encoding

assert_close = functools.partial(layer_weights.assert_close, rtol=1e-5, atol=1e-5)
B, T, V = 3, 11, 19
WIDTHS = [1, 2, 5, 10]
IDS = np.random.default_rng(23).integers(0, V, size=(B, T))


def make_layer(d_model, **arguments):
    layer = PositionalEmbedding(V, d_model, **{"dropout_rate": 0.0, **arguments})
    layer.build(IDS.shape)
    return layer_weights.randomize(layer)


# Sinusoids.


@pytest.mark.parametrize(
    ("d_model", "expected"),
    [
        # The angles of position 1 are 1 and 1 / 10000^(2/4), i.e. 1/100; those of 2 are twice that.
        (4, [[0.841471, 0.540302, 0.0099998, 0.99995], [0.909297, -0.416147, 0.0199987, 0.9998]]),
        (3, [[0.841471, 0.540302, 0.0021544], [0.909297, -0.416147, 0.0043089]]),  # 10000^(-2/3)
    ],
)
def test_sinusoids_by_hand(d_model, expected):
    assert_close(sinusoidal_encoding(np.array([1, 2]), d_model), expected, atol=1e-6)
    assert_close(reference.positional_encoding(3, d_model)[1:], expected, atol=1e-6)


def test_marians_sinusoids_are_the_formula():
    encoding = make_layer(10, position_encoding="marian").encoding(np.array([53, 0, 7]))
    angles = np.array([[53], [0], [7]]) / 10_000 ** (np.arange(5) / 4)
    assert_close(encoding[:, 0::2], np.sin(angles))
    assert_close(encoding[:, 1::2], np.cos(angles))


@pytest.mark.parametrize("start", [0, 5])
def test_first_position(start):
    layer = make_layer(10, first_position=2)
    table = layer.token_embedding.embeddings.numpy()
    assert_close(
        layer(IDS, start=start), reference.positional_embedding(IDS, table, start=start + 2)
    )


def test_sinusoids_far_beyond_any_table():
    # float32 angles are off by up to 2003 * 2^-23, about 2.4e-4.
    layer = make_layer(5, max_length=2)
    table = layer.token_embedding.embeddings.numpy()
    expected = reference.positional_embedding(np.zeros((1, 2003), int), table)
    assert_close(layer(np.zeros((1, 2003), int)), expected, atol=5e-4)


# The layer.


@pytest.mark.parametrize("start", [0, 1, 13])
@pytest.mark.parametrize("d_model", WIDTHS)
def test_embedding_is_the_oracles(d_model, start):
    layer = make_layer(d_model)
    expected = reference.positional_embedding(IDS, layer.token_embedding.embeddings.numpy(), start)
    assert_close(layer(IDS, start=start), expected)


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
@pytest.mark.parametrize("start", [np.int64(2), np.int32(2), tf.constant(2, tf.int64)])
def test_start_of_any_integer_type(position_encoding, start):
    layer = make_layer(5, position_encoding=position_encoding)
    assert_close(layer(IDS, start=start), layer(IDS, start=2), rtol=0, atol=0)


@pytest.mark.parametrize("start", [0, 2])
def test_learned_positions(start):
    layer = make_layer(5, position_encoding="learned", max_length=13)
    tokens, positions = layer.get_weights()
    assert (tokens.shape, positions.shape) == ((V, 5), (13, 5))
    assert_close(layer(IDS, start=start), tokens[IDS] * 5**0.5 + positions[start : start + T])


def test_embeddings_that_are_not_scaled():
    layer = make_layer(5, scale_embeddings=False)
    table = layer.token_embedding.embeddings.numpy()
    assert_close(layer(IDS), table[IDS] + reference.positional_encoding(T, 5))


def test_embeddings_and_logits_start_with_unit_variance():
    layer = PositionalEmbedding(701, 101, dropout_rate=0.0)
    layer.build((None, None))
    table = layer.token_embedding.embeddings.numpy()  # 70801 entries
    assert (table * 101**0.5).std() == pytest.approx(1.0, abs=0.02)
    normalised = np.random.default_rng(29).normal(size=(1, 103, 101)).astype("float32")
    logits = layer(normalised, reverse=True)
    assert_close(logits, normalised @ table.T, atol=1e-4)
    assert np.std(logits) == pytest.approx(1.0, abs=0.05)


def test_output_bias():
    layer, without = make_layer(5, output_bias=True), make_layer(5)
    bias, *others = layer.get_weights()
    without.set_weights(others)
    x = np.random.default_rng(5).normal(size=(B, T, 5)).astype("float32")
    assert bias.shape == (V,)
    assert_close(layer(x, reverse=True), without(x, reverse=True).numpy() + bias)


def test_dropout_acts_on_the_sum_and_only_in_training():
    layer = make_layer(101, dropout_rate=0.5)
    expected = make_layer(101)(IDS).numpy()
    for training in (None, False):
        assert_close(layer(IDS, training=training), expected, rtol=0, atol=0)
    dropped = layer(IDS, training=True).numpy()
    kept = dropped != 0
    assert 0.4 < kept.mean() < 0.6
    assert_close(dropped[kept], 2 * expected[kept])


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
@pytest.mark.parametrize(("dtype", "bits"), [("mixed_float16", 11), ("mixed_bfloat16", 8)])
def test_mixed_precision(dtype, bits, position_encoding):
    # Angles beyond 256 need more than the 8 bits of bfloat16.
    arguments = {"position_encoding": position_encoding, "max_length": 500}
    output = make_layer(10, dtype=dtype, **arguments)(IDS, start=401)
    assert output.dtype == dtype.removeprefix("mixed_")
    expected = make_layer(10, **arguments)(IDS, start=401)
    # A handful of roundings of numbers below 8.
    assert_close(keras.ops.cast(output, "float32"), expected, rtol=0, atol=3 * 8 * 2.0**-bits)


# Masks, and inputs that do not fit.


@pytest.mark.parametrize("mask_zero", [False, True])
def test_mask_of_logits_is_the_one_that_their_input_carries(mask_zero):
    layer = make_layer(10, mask_zero=mask_zero)
    rows = np.random.default_rng(41).normal(size=(B, 10)) * [[1], [0], [1]]
    assert getattr(layer(rows, reverse=True), "_keras_mask", None) is None
    rows = np.repeat(rows[:, None], 2, axis=1)
    logits = layer(keras.layers.Masking()(rows), reverse=True)  # a warning would be an error
    np.testing.assert_array_equal(logits._keras_mask, [[True] * 2, [False] * 2, [True] * 2])


def test_mask_of_ids():
    np.testing.assert_array_equal(make_layer(10, mask_zero=True)(IDS)._keras_mask, IDS != 0)
    assert getattr(make_layer(10)(IDS), "_keras_mask", None) is None


def test_shape_of_logits():
    layer = PositionalEmbedding(V, 10)
    assert layer.compute_output_shape((B, 10), reverse=True) == (B, V)
    assert layer(keras.Input((T, 10)), reverse=True).shape == (None, T, V)


@pytest.mark.parametrize(
    ("inputs", "reverse"),
    [
        (IDS.astype("float32"), False),
        (IDS[0], False),
        (IDS[None], False),
        (np.ones((B, T, 9)), True),
    ],
)
def test_inputs_that_do_not_fit(inputs, reverse):
    symbol = keras.Input(batch_shape=inputs.shape, dtype=str(inputs.dtype))
    for each in (inputs, symbol):
        with pytest.raises(ValueError, match="`inputs` of layer 'tokens'"):
            PositionalEmbedding(V, 10, name="tokens")(each, reverse=reverse)


@pytest.mark.parametrize(("length", "start"), [(14, 0), (11, 3), (11, -1)])
def test_learned_positions_end(length, start):
    layer = make_layer(5, position_encoding="learned", max_length=13)
    for inputs in (np.ones((B, length), int), keras.Input((length,), dtype="int32")):
        with pytest.raises(ValueError, match=f"positions {start} to {start + length - 1}"):
            layer(inputs, start=start)
    assert layer(np.ones((B, 11), int), start=2).shape == (B, 11, 5)


def test_learned_positions_of_a_length_that_the_graph_does_not_know():
    layer = make_layer(5, position_encoding="learned", max_length=13)
    spec = tf.TensorSpec((None, None), tf.int32)
    embed = tf.function(layer.__call__, input_signature=[spec], jit_compile=True, autograph=False)
    encoding = embed(tf.zeros((1, 17), tf.int32))[0]
    np.testing.assert_array_equal(np.isnan(encoding).all(axis=1), np.arange(17) >= 13)
    assert not np.isnan(encoding[:13]).any()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_length": 0}, "max_length"),
        ({"d_model": 5, "position_encoding": "marian"}, "d_model"),
        ({"position_encoding": "rotary"}, "position_encoding"),
    ],
)
def test_arguments_out_of_range(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        PositionalEmbedding(**{"vocab_size": 7, "d_model": 5, **arguments})
