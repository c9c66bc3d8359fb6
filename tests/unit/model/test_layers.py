import functools

import keras
import layer_weights
import numpy as np
import pytest
import reference
import torch_twins

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
)
from keras_transformer.model.layers import AddNorm

assert_close = functools.partial(layer_weights.assert_close, rtol=5e-5, atol=5e-5)
B, N, D, F, S, T, V = 3, 2, 10, 17, 7, 11, 19
RATES = ["dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"]
HEADS = [{}, {"num_heads": 3, "d_k": 4, "d_v": 5}]
# The rows' lengths; a mask hides what is beyond.
SOURCE_LENGTHS, TARGET_LENGTHS = np.array([7, 3, 5]), np.array([2, 11, 5])


@pytest.fixture(scope="module")
def source():
    return np.random.default_rng(23).normal(size=(B, S, D)).astype("float32")


@pytest.fixture(scope="module")
def target():
    return np.random.default_rng(29).normal(size=(B, T, D)).astype("float32")


def make_encoder(**arguments):
    layer = EncoderLayer(**{"d_model": D, "d_ff": F, "num_heads": N, **arguments})
    layer.build((B, S, D))
    return layer_weights.randomize(layer)


def make_decoder(**arguments):
    layer = DecoderLayer(**{"d_model": D, "d_ff": F, "num_heads": N, **arguments})
    layer.build((B, T, D), (B, S, D))
    return layer_weights.randomize(layer)


def masks():
    """Encoder mask [B, S, S], decoder mask [B, T, T] and cross mask [B, T, S]."""
    source_visible = np.arange(S) < SOURCE_LENGTHS[:, None]  # [B, S]
    target_visible = np.arange(T) < TARGET_LENGTHS[:, None]  # [B, T]
    return (
        np.repeat(source_visible[:, None], S, axis=1),
        target_visible[:, None] & np.tri(T, dtype=bool),
        np.repeat(source_visible[:, None], T, axis=1),
    )


# By hand, against the oracle, and against PyTorch.


def test_feed_forward_with_another_activation():
    layer = FeedForward(1, 1, activation="tanh")
    layer.build((1, 1, 1))
    layer.set_weights([np.array(x) for x in ([[2.0]], [1.0], [[3.0]], [0.5])])
    assert_close(layer(np.full((1, 1, 1), 0.25)), [[[3 * np.tanh(1.5) + 0.5]]])


def test_add_norm_by_hand():
    layer = AddNorm(0.0)
    layer.build((1, 1, 2))
    # Of -0.001 and 0.001 the variance is 1e-6, as epsilon is: the divisor is sqrt(2e-6).
    x = np.array([[[-0.001, 0.001]]])
    assert_close(layer(x, np.zeros_like(x)), [[[-(0.5**0.5), 0.5**0.5]]], rtol=1e-4)
    layer.set_weights([np.array([2.0, 3.0]), np.array([10.0, 20.0])])
    # The sum is 1, 3, normalised -1, 1.
    assert_close(layer(np.array([[[0.5, 1.0]]]), np.array([[[0.5, 2.0]]])), [[[8.0, 23.0]]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_encoder_layer_is_the_oracles(source, heads, masked):
    layer, num_heads = make_encoder(**heads), heads.get("num_heads", N)
    mask = masks()[0] if masked else None
    weights = layer_weights.encoder_layer(layer)
    expected = reference.encoder_layer(source, weights, num_heads, mask)
    assert_close(layer(source, attention_mask=mask), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_decoder_layer_is_the_oracles(source, target, heads, masked):
    layer, num_heads = make_decoder(**heads), heads.get("num_heads", N)
    self_mask, cross_mask = masks()[1:] if masked else (None, None)
    weights = layer_weights.decoder_layer(layer)
    expected = reference.decoder_layer(target, source, weights, num_heads, self_mask, cross_mask)
    assert_close(layer(target, source, self_mask, cross_mask, use_causal_mask=False), expected)


def test_layers_are_torchs():
    twin, layer = torch_twins.load("encoder_layer"), make_encoder()
    layer.set_weights(twin["weights"])
    assert_close(layer(twin["x"], attention_mask=twin["mask"]), twin["output"])
    twin, layer = torch_twins.load("decoder_layer"), make_decoder()
    layer.set_weights(twin["weights"])
    actual = layer(twin["x"], twin["encoder_output"], twin["self_mask"], twin["cross_mask"])
    assert_close(actual, twin["output"])


# Masks that Keras carries, padding masks, and the causal default.


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("way", ["carried", "padding masks", "attention masks"])
def test_padding_reaches_every_attention(source, target, way, norm_first):
    encoder, decoder = make_encoder(norm_first=norm_first), make_decoder(norm_first=norm_first)
    encoder_mask, self_mask, cross_mask = masks()
    expected = decoder(target, encoder(source, encoder_mask), self_mask, cross_mask)
    paddings = source_visible, target_visible = encoder_mask[:, 0], self_mask[:, -1]
    if way == "attention masks":
        actual = decoder(target, encoder(source, source_visible), target_visible, source_visible)
    elif way == "padding masks":
        encoded = encoder(source, padding_mask=source_visible)
        named = {"decoder_padding_mask": target_visible, "encoder_padding_mask": source_visible}
        actual = decoder(target, encoded, **named)
    else:
        # Keras's layer hides rows of zeros.
        x, y = (
            keras.layers.Masking()(np.where(visible[..., None], values, 0))
            for values, visible in zip((source, target), paddings, strict=True)
        )
        actual = decoder(y, encoder(x))
        np.testing.assert_array_equal(actual._keras_mask, target_visible)
    for row, length in enumerate(TARGET_LENGTHS):
        assert_close(actual[row, :length], expected[row, :length])


@pytest.mark.parametrize("name", ["padding_mask", "decoder_padding_mask", "encoder_padding_mask"])
def test_bad_padding_mask_is_named(source, target, name):
    call, length = functools.partial(make_decoder(name="block"), target, source), S
    if name == "padding_mask":
        call = functools.partial(make_encoder(name="block"), source)
    elif name == "decoder_padding_mask":
        length = T
    for mask in (np.ones((B, length)), np.ones((B, length + 2), bool)):
        with pytest.raises(ValueError, match=f"`{name}` of layer 'block'"):
            call(**{name: mask})


# Precision and dropout.


@pytest.mark.parametrize(
    ("dtype", "bits", "values"),
    [
        ("mixed_float16", 11, [1000.0, -900.0, 700.0, -500.0]),  # the squares overflow
        ("mixed_float16", 11, [2048.0, 2050.0, 2048.0, 2048.0]),  # the mean needs 13 bits
        ("mixed_bfloat16", 8, [256.0, 258.0, 256.0, 256.0]),  # the mean needs 10 bits
    ],
)
def test_layer_norm_is_computed_in_float32(dtype, bits, values):
    layer = AddNorm(0.0, dtype=dtype)
    layer.build((1, 1, 4))
    x = np.array([[values]])
    output = layer(x, np.zeros_like(x))
    assert output.dtype == dtype.removeprefix("mixed_")
    expected = reference.layer_norm(x, np.ones(4), np.zeros(4))
    assert_close(keras.ops.cast(output, "float32"), expected, rtol=1.01 * 2.0**-bits, atol=0)


def test_precision_and_dropout_reach_every_sublayer(source, target):
    arguments = {"dtype": "mixed_bfloat16", "dropout_rate": 0.25}
    encoder, decoder = make_encoder(**arguments), make_decoder(**arguments)
    assert encoder(source).dtype == decoder(target, source).dtype == "bfloat16"
    assert {weight.dtype for weight in encoder.weights + decoder.weights} == {"float32"}
    layers = [*encoder._flatten_layers(), *decoder._flatten_layers()]
    assert {layer.dtype_policy.name for layer in layers} == {"mixed_bfloat16"}
    # Section 5.4: on the output of each sub-layer, before it is added.
    rates = [layer.dropout.rate for layer in layers if isinstance(layer, AddNorm)]
    assert rates == [0.25] * (2 + 3)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("make_layer", [make_encoder, make_decoder])
def test_dropout_acts_only_in_training(source, target, make_layer, rate):
    inputs = (source,) if make_layer is make_encoder else (target, source)
    none = dict.fromkeys(RATES, 0.0)
    layer, expected = make_layer(**none | {rate: 0.5}), make_layer(**none)(*inputs, training=True)
    for training in (None, False):
        assert_close(layer(*inputs, training=training), expected, rtol=0, atol=0)
    assert np.abs(layer(*inputs, training=True) - expected).max() > 0.01


def test_add_norm_drops_the_sublayer_and_not_the_residual():
    layer = AddNorm(0.9)
    layer.build((1, 997, 2))
    x = np.tile([1.0, -1.0], (1, 997, 1))
    # Where the sub-layer is dropped, x is left: normalised, it is itself.
    output = layer(x, np.tile([-5.0, 5.0], (1, 997, 1)), training=True).numpy()
    left = np.all(np.isclose(output, x, atol=1e-4), axis=-1)
    assert 0.7 < left.mean() < 0.9  # 0.9^2 is 0.81


# Shapes.


@pytest.mark.parametrize("with_scores", [False, True])
def test_symbolic_outputs_are_those_of_a_call(source, target, with_scores):
    options = {"d_k": 4, "d_v": 5, "dtype": "mixed_bfloat16"}
    scores = {"return_attention_scores": True} if with_scores else {}
    for layer, inputs, arguments in (
        (MultiHeadAttention(8, N, **options), [target, source], scores),
        (MultiHeadAttention(8, N, **options), [source, target, target[:, :, 1:]], scores),
        (EncoderLayer(D, F, N, **options), [source], scores),
        (DecoderLayer(D, F, N, **options), [target, source], scores),
        (FeedForward(8, F), [source[:, None]], {}),
        (PositionalEmbedding(V, D), [np.ones((B, T), "int32")], {}),
    ):
        symbols = [keras.Input(batch_shape=x.shape, dtype=str(x.dtype)) for x in inputs]
        found, expected = (
            [
                (tuple(output.shape), keras.backend.standardize_dtype(output.dtype))
                for output in keras.tree.flatten(layer(*each, **arguments))
            ]
            for each in (symbols, inputs)
        )
        assert found == expected
        assert layer.compute_output_shape(*(x.shape for x in inputs)) == expected[0][0]


def test_time_distributed():
    """Documents of 5 sentences: embedded, encoded, and each as on its own."""
    ids = np.random.default_rng(31).integers(1, V, (B, 5, S))
    layers = [PositionalEmbedding(V, D), EncoderLayer(D, F, N), FeedForward(13, F)]
    model = keras.Sequential([keras.Input((5, S), dtype="int32")])
    for layer in layers:
        model.add(keras.layers.TimeDistributed(layer))
    assert model.output_shape == (None, 5, S, 13)
    expected = layers[2](layers[1](layers[0](ids[:, 2])))
    assert_close(model(ids)[:, 2], expected)


@pytest.mark.parametrize("width", [1, D + 3])
def test_width_that_does_not_fit_the_residual_connection(target, width):
    x = keras.Input((T, width))
    for layer, others in ((EncoderLayer(D, F, N), []), (DecoderLayer(D, F, N), [target])):
        with pytest.raises(ValueError, match=f"`d_model`, {D}"):
            layer.build(x.shape, *(other.shape for other in others))
        layer(keras.Input((T, D)), *others)
        with pytest.raises(ValueError, match=f"value {D}, .*{width}"):  # built already
            layer(x, *others)


def test_sizes_below_1():
    with pytest.raises(ValueError, match="`d_ff` must be at least 1"):
        make_encoder(d_ff=0)


def test_batch_without_rows():
    mask = np.ones((0, S), bool)
    encoded = make_encoder()(np.ones((0, S, D)), padding_mask=mask)
    assert encoded.shape == (0, S, D)
    decoded = make_decoder()(np.ones((0, T, D)), encoded, encoder_padding_mask=mask)
    assert decoded.shape == (0, T, D)


# Configuration and files.


@keras.saving.register_keras_serializable("tests")
def doubled(x):
    return 2 * x


CONFIG = {
    "d_model": D,
    "d_ff": F,
    "num_heads": 3,
    "dropout_rate": 0.25,
    "attention_dropout_rate": 0.125,
    "feed_forward_dropout_rate": 0.0625,
    "d_k": 4,
    "d_v": 5,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-5,
    "scale_attention": False,
    "norm_first": True,
}
EMBEDDING_CONFIG = {
    "vocab_size": V,
    "d_model": D,
    "dropout_rate": 0.25,
    "position_encoding": "learned",
    "first_position": 2,
    "max_length": 13,
    "output_bias": True,
    "mask_zero": True,
    "scale_embeddings": False,
}
ATTENTION_CONFIG = {
    "d_model": D,
    "num_heads": 3,
    "dropout_rate": 0.25,
    "d_k": 5,
    "d_v": 7,
    "use_bias": False,
    "scale_attention": False,
}


@pytest.mark.parametrize(
    ("layer_class", "config"),
    [
        (FeedForward, {"d_model": D, "d_ff": F, "dropout_rate": 0.25, "activation": "gelu"}),
        (AddNorm, {"dropout_rate": 0.25, "epsilon": 1e-5}),
        (MultiHeadAttention, ATTENTION_CONFIG),
        (PositionalEmbedding, EMBEDDING_CONFIG),
        (EncoderLayer, CONFIG),
        (DecoderLayer, CONFIG),
    ],
)
def test_config_round_trip(layer_class, config):
    policy = keras.DTypePolicy("mixed_bfloat16")
    layer = layer_class(**config, name="layer", trainable=False, dtype=policy)
    found = layer.get_config()
    assert found.pop("dtype")["config"] == {"name": "mixed_bfloat16"}
    assert found == {"name": "layer", "trainable": False, **config}
    copy = layer_class.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()


@pytest.mark.parametrize("activation", [doubled, keras.layers.LeakyReLU()])
def test_saved_and_loaded_outputs_are_equal(source, target, tmp_path, activation):
    config = {**CONFIG, "activation": activation}
    x, encoder_input = keras.Input((None, D)), keras.Input((None, D))
    self_mask = keras.Input((None, None), dtype="bool")
    output = DecoderLayer(**config)(x, EncoderLayer(**config)(encoder_input), self_mask)
    output = FeedForward(D, F, activation=activation)(output)
    model = layer_weights.randomize(keras.Model([x, encoder_input, self_mask], output))
    model.save(tmp_path / "layers.keras")
    loaded = keras.models.load_model(tmp_path / "layers.keras")
    inputs = [target, source, np.broadcast_to(np.eye(T, dtype=bool), (B, T, T))]
    assert_close(loaded(inputs), model(inputs), rtol=0, atol=0)
