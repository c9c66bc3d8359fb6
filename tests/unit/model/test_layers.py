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

B, N, D, F, S, T = 3, 2, 10, 17, 7, 11
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


def assert_close(actual, expected, **tolerance):
    actual = keras.ops.convert_to_numpy(actual)
    np.testing.assert_allclose(actual, expected, **{"rtol": 5e-5, "atol": 5e-5, **tolerance})
    assert actual.shape == np.shape(expected)


# Against the oracle.


def test_feed_forward_with_another_activation():
    layer = FeedForward(1, 1, activation="tanh")
    layer.build((1, 1, 1))
    layer.set_weights([np.array(x) for x in ([[2.0]], [1.0], [[3.0]], [0.5])])
    assert_close(layer(np.full((1, 1, 1), 0.25)), [[[3 * np.tanh(1.5) + 0.5]]])


def test_add_norm_by_hand():
    layer = AddNorm(0.0)
    layer.build((1, 1, 2))
    layer.set_weights([np.array([2.0, 3.0]), np.array([10.0, 20.0])])
    # The sum is 1, 3, normalised -1, 1.
    assert_close(layer(np.array([[[0.5, 1.0]]]), np.array([[[0.5, 2.0]]])), [[[8.0, 23.0]]])


def test_epsilon_of_layer_norm_is_small():
    layer = AddNorm(0.0)
    layer.build((1, 1, 2))
    # Of -0.001 and 0.001 the variance is 1e-6, as epsilon is: the divisor is sqrt(2e-6).
    x = np.array([[[-0.001, 0.001]]])
    assert_close(layer(x, np.zeros_like(x)), [[[-(0.5**0.5), 0.5**0.5]]], rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_encoder_layer_is_the_oracles(source, heads, masked):
    layer = make_encoder(**heads)
    mask = masks()[0] if masked else None
    expected = reference.encoder_layer(
        source, layer_weights.encoder_layer(layer), heads.get("num_heads", N), mask
    )
    assert_close(layer(source, attention_mask=mask), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_decoder_layer_is_the_oracles(source, target, heads, masked):
    layer = make_decoder(**heads)
    self_mask, cross_mask = masks()[1:] if masked else (None, None)
    expected = reference.decoder_layer(
        target,
        source,
        layer_weights.decoder_layer(layer),
        heads.get("num_heads", N),
        self_mask,
        cross_mask,
    )
    actual = layer(
        target,
        source,
        self_attention_mask=self_mask,
        cross_attention_mask=cross_mask,
        use_causal_mask=False,
    )
    assert_close(actual, expected)


# Against PyTorch.


def test_encoder_layer_is_torchs():
    twin, layer = torch_twins.load("encoder_layer"), make_encoder()
    layer.set_weights(twin["weights"])
    assert_close(layer(twin["x"], attention_mask=twin["mask"]), twin["output"])


def test_decoder_layer_is_torchs():
    twin, layer = torch_twins.load("decoder_layer"), make_decoder()
    layer.set_weights(twin["weights"])
    actual = layer(twin["x"], twin["encoder_output"], twin["self_mask"], twin["cross_mask"])
    assert_close(actual, twin["output"])


# Masks that Keras carries, padding masks, and the causal default.


@pytest.mark.parametrize("way", ["carried", "padding masks", "attention masks"])
def test_padding_reaches_every_attention(source, target, way):
    encoder, decoder = make_encoder(), make_decoder()
    encoder_mask, self_mask, cross_mask = masks()
    expected = decoder(target, encoder(source, encoder_mask), self_mask, cross_mask)
    paddings = source_visible, target_visible = encoder_mask[:, 0], self_mask[:, -1]
    if way == "attention masks":
        actual = decoder(target, encoder(source, source_visible), target_visible, source_visible)
    elif way == "padding masks":
        encoded = encoder(source, padding_mask=source_visible)
        actual = decoder(
            target,
            encoded,
            decoder_padding_mask=target_visible,
            encoder_padding_mask=source_visible,
        )
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
        with pytest.raises(ValueError, match=f"`{name}` of layer 'block' must"):
            call(**{name: mask})


def test_encoder_may_be_causal(source):
    layer, mask = make_encoder(), np.tri(S, dtype=bool)[None]
    assert_close(layer(source, use_causal_mask=True), layer(source, mask), rtol=0, atol=0)


def test_classifier_ignores_padding(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    x = EncoderLayer(D, F, N)(PositionalEmbedding(19, D, mask_zero=True)(ids))
    outputs = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x))
    layer_weights.randomize(keras.Model(ids, outputs)).save(tmp_path / "classifier.keras")
    model = keras.models.load_model(tmp_path / "classifier.keras")
    rows = np.array([[3, 18, 7], [5, 2, 11]])
    assert_close(model(np.pad(rows, ((0, 0), (0, 4)))), model(rows))
    assert (
        np.abs(model(np.pad(rows, ((0, 0), (0, 4)), constant_values=1)) - model(rows)).max() > 1e-3
    )


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


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_reaches_every_sublayer(source, target, dtype):
    compute_dtype = dtype.removeprefix("mixed_")
    encoder, decoder = make_encoder(dtype=dtype), make_decoder(dtype=dtype)
    assert encoder(source).dtype == decoder(target, source).dtype == compute_dtype
    for layer in [*encoder._flatten_layers(), *decoder._flatten_layers()]:
        assert layer.dtype_policy.name == dtype
    assert {weight.dtype for weight in encoder.weights + decoder.weights} == {"float32"}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("make_layer", [make_encoder, make_decoder])
def test_dropout_acts_only_in_training(source, target, make_layer, rate):
    inputs = (source,) if make_layer is make_encoder else (target, source)
    none = dict.fromkeys(RATES, 0.0)
    layer, expected = make_layer(**none | {rate: 0.5}), make_layer(**none)(*inputs, training=True)
    for training in (None, False):
        assert_close(layer(*inputs, training=training), expected, rtol=0, atol=0)
    assert np.abs(layer(*inputs, training=True) - expected).max() > 0.01


def test_every_sublayer_has_its_dropout():
    """Section 5.4: on the output of each sub-layer, before it is added."""
    encoder, decoder = make_encoder(dropout_rate=0.25), make_decoder(dropout_rate=0.25)
    norms = [layer for layer in encoder._flatten_layers() if isinstance(layer, AddNorm)]
    assert [norm.dropout.rate for norm in norms] == [0.25] * 2
    norms = [layer for layer in decoder._flatten_layers() if isinstance(layer, AddNorm)]
    assert [norm.dropout.rate for norm in norms] == [0.25] * 3


def test_add_norm_drops_the_sublayer_and_not_the_residual():
    layer = AddNorm(0.9)
    layer.build((1, 997, 2))
    x = np.tile([1.0, -1.0], (1, 997, 1))
    # Where the sub-layer is dropped, x is left: normalised, it is itself.
    output = layer(x, np.tile([-5.0, 5.0], (1, 997, 1)), training=True).numpy()
    left = np.all(np.isclose(output, x, atol=1e-4), axis=-1)
    assert 0.7 < left.mean() < 0.9  # 0.9^2 is 0.81


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("with_scores", [False, True])
def test_symbolic_outputs_are_those_of_a_call(source, target, dtype, with_scores):
    options = {"d_k": 4, "d_v": 5, "dtype": dtype}
    for layer, inputs in (
        (MultiHeadAttention(8, N, **options), [target, source]),
        (MultiHeadAttention(8, N, **options), [source, target, target[:, :, 1:]]),
        (EncoderLayer(D, F, N, **options), [source]),
        (DecoderLayer(D, F, N, **options), [target, source]),
    ):
        symbols = [keras.Input(batch_shape=x.shape) for x in inputs]
        found, expected = (
            keras.tree.map_structure(
                lambda output: (tuple(output.shape), keras.backend.standardize_dtype(output.dtype)),
                layer(*each, return_attention_scores=with_scores),
            )
            for each in (symbols, inputs)
        )
        assert found == expected


# As Keras's wrappers and `Sequential` use layers.


@pytest.mark.parametrize(
    ("layer", "shapes", "expected"),
    [
        (FeedForward(D, F), [(B, 5, T, 13)], (B, 5, T, D)),
        (AddNorm(0.1), [(B, T, D)], (B, T, D)),
        (EncoderLayer(D, F, N), [(None, S, D)], (None, S, D)),
        (DecoderLayer(D, F, N), [(B, None, D), (B, S, 13)], (B, None, D)),
        (MultiHeadAttention(D, N), [(B, T, 13), (B, S, 17)], (B, T, D)),
        (PositionalEmbedding(19, D), [(B, None)], (B, None, D)),
    ],
)
def test_output_shapes(layer, shapes, expected):
    assert layer.compute_output_shape(*shapes) == expected


def test_output_shape_of_logits():
    layer, x = PositionalEmbedding(19, D), keras.Input((T, D))
    assert layer.compute_output_shape((B, D), reverse=True) == (B, 19)
    assert layer(x, reverse=True).shape == (None, T, 19)


def test_time_distributed():
    """Documents of 5 sentences: embedded, encoded, and each as on its own."""
    ids = np.random.default_rng(31).integers(1, 19, (B, 5, S))
    layers = [PositionalEmbedding(19, D), EncoderLayer(D, F, N), FeedForward(13, F)]
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
        for call in (layer, lambda x, *others, layer=layer: layer.build(x.shape, *others)):
            with pytest.raises(ValueError, match=rf"(value {D}|`d_model`, {D}).*{width}\)"):
                call(x, *others)
        layer(keras.Input((T, D)), *others)
        with pytest.raises(ValueError, match=f"value {D}, .*{width}"):  # built already
            layer(x, *others)


def test_attention_of_another_rank():
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=4"):
        MultiHeadAttention(D, N)(np.ones((B, 5, T, D)), np.ones((B, S, D)))


def test_batch_without_rows():
    mask = np.ones((0, S), bool)
    encoded = make_encoder()(np.ones((0, S, D)), padding_mask=mask)
    assert encoded.shape == (0, S, D)
    decoded = make_decoder()(np.ones((0, T, D)), encoded, encoder_padding_mask=mask)
    assert decoded.shape == (0, T, D)


# Configuration.


@keras.saving.register_keras_serializable("tests")
def doubled(x):
    return 2 * x


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (keras.activations.gelu, "gelu"),
        (doubled, "tests>doubled"),
        (keras.layers.LeakyReLU(0.25), "LeakyReLU"),
    ],
)
@pytest.mark.parametrize("layer_class", [FeedForward, EncoderLayer, DecoderLayer])
def test_activation_that_is_a_function(tmp_path, layer_class, activation, expected):
    arguments = [4, 7] if layer_class is FeedForward else [4, 7, 2]
    layer = layer_class(*arguments, activation=activation)
    inputs = [keras.Input((5, 4)) for _ in range(1 + (layer_class is DecoderLayer))]
    model = layer_weights.randomize(keras.Model(inputs, layer(*inputs)))
    assert expected in str(layer.get_config()["activation"])
    model.save(tmp_path / "model.keras")
    values = [np.random.default_rng(37).normal(size=(3, 5, 4)) for _ in inputs]
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(values), model(values), rtol=0, atol=0)


def test_function_by_position():
    layer = FeedForward(4, 7, 0.0, keras.activations.gelu)
    assert layer.get_config()["activation"] == "gelu"


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
    "name": "layer",
}
OTHER_CONFIGS = [
    (FeedForward, {"d_model": D, "d_ff": F, "dropout_rate": 0.25, "activation": "gelu"}),
    (MultiHeadAttention, {"d_model": D, "num_heads": 3, "d_k": 5, "d_v": 7, "use_bias": False}),
    (PositionalEmbedding, {"vocab_size": 19, "d_model": D, "position_encoding": "learned"}),
]


@pytest.mark.parametrize(
    ("layer_class", "config"),
    [(EncoderLayer, CONFIG), (DecoderLayer, CONFIG), *OTHER_CONFIGS],
)
def test_config_round_trip(layer_class, config):
    layer = layer_class(**config, dtype=keras.DTypePolicy("mixed_bfloat16"))
    assert layer.get_config().items() >= config.items()
    copy = layer_class.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    assert copy.dtype_policy.name == "mixed_bfloat16"


def test_arguments_reach_the_sublayers():
    layer = DecoderLayer(**CONFIG)
    for attention in (layer.self_attention, layer.cross_attention):
        assert (attention.num_heads, attention.d_k, attention.d_v) == (3, 4, 5)
        assert attention.output_dense.units == D
        assert attention.dropout.rate == 0.125
    assert layer.feed_forward.dropout.rate == 0.0625
    assert layer.feed_forward.inner_dense.activation is keras.activations.gelu


def test_saved_and_loaded_outputs_are_equal(source, target, tmp_path):
    x, encoder_input = keras.Input((None, D)), keras.Input((None, D))
    self_mask = keras.Input((None, None), dtype="bool")
    encoder = EncoderLayer(**CONFIG | {"name": "encoder"})
    decoder = DecoderLayer(**CONFIG | {"name": "decoder"})
    feed_forward = FeedForward(D, F)
    output = decoder(x, encoder(encoder_input), self_attention_mask=self_mask)
    model = keras.Model([x, encoder_input, self_mask], feed_forward(output))
    layer_weights.randomize(model).save(tmp_path / "layers.keras")
    loaded = keras.models.load_model(tmp_path / "layers.keras")
    mask = np.broadcast_to(np.eye(T, dtype=bool), (B, T, T))
    expected = feed_forward(decoder(target, encoder(source), self_attention_mask=mask))
    assert_close(loaded([target, source, mask]), expected, rtol=0, atol=0)
    without_mask = feed_forward(decoder(target, encoder(source)))
    assert np.abs(without_mask - expected).max() > 0.01
