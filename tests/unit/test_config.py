"""Checked settings, and the paper's table of sizes."""

import dataclasses
import json

import numpy as np
import pytest

from keras_transformer import DecodingOptions, InputError, TransformerConfig
from keras_transformer.model.transformer import Transformer

V = 19


def test_presets():
    tiny = TransformerConfig.from_preset("tiny", vocab_size=V, num_heads=2)  # overrides win
    assert (tiny.d_model, tiny.d_ff, tiny.num_heads, tiny.num_decoder_layers) == (128, 256, 2, 4)
    big = TransformerConfig.from_preset("big", vocab_size=V)
    assert (big.d_model, big.d_ff, big.num_heads, big.dropout_rate) == (1024, 4096, 16, 0.3)
    base = TransformerConfig.from_preset("base", vocab_size=V)
    assert base == TransformerConfig(vocab_size=V)
    assert TransformerConfig.from_preset("big", vocab_size=V, norm_first=True).norm_first


def test_survives_json():
    config = TransformerConfig(
        vocab_size=V,
        d_model=10,
        num_heads=3,
        d_k=5,
        d_v=7,
        dropout_rate=0,
        share_embeddings=False,
        position_encoding="learned",
        scale_embeddings=False,
        scale_attention=False,
        activation="gelu",
        norm_first=True,
    )
    saved = json.loads(json.dumps(config.to_dict()))
    assert TransformerConfig(**saved) == config


def test_numbers_of_numpy():
    options = DecodingOptions(beam_size=np.int64(3), length_penalty=np.float32(0.5))
    assert json.loads(json.dumps(dataclasses.asdict(options)))["beam_size"] == 3
    assert (type(options.beam_size), type(options.length_penalty)) == (int, float)


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        (TransformerConfig, "vocab_size", 0),
        (TransformerConfig, "num_encoder_layers", 2**20),
        (TransformerConfig, "d_v", True),
        (TransformerConfig, "feed_forward_dropout_rate", float("nan")),
        (TransformerConfig, "position_encoding", "rotary"),
        (DecodingOptions, "beam_size", 1_001),
    ],
)
def test_wrong_values(record, name, value):
    values = {"vocab_size": V} if record is TransformerConfig else {}
    with pytest.raises(InputError, match=rf"^`{name}`: .*Received: {name}={value!r}$"):
        record(**{**values, name: value})


def test_unknown_and_missing_settings():
    with pytest.raises(
        InputError, match=r"^Unknown setting depth, cls\. .*: vocab_size, target_vocab_size, "
    ):
        TransformerConfig.from_preset("tiny", vocab_size=V, depth=2, **{"cls": 1})
    with pytest.raises(InputError, match=r"^`vocab_size`: "):
        TransformerConfig(d_model=10)
    with pytest.raises(InputError, match=r"^`preset` must be one of tiny, .*preset='huge'$"):
        TransformerConfig.from_preset("huge", vocab_size=V)


@pytest.mark.parametrize("given", [{}, {"d_k": 5}, {"d_v": 7}])
def test_heads_must_divide_d_model_unless_their_sizes_are_given(given):
    sizes = {"vocab_size": V, "d_model": 10, "num_heads": 3}
    assert TransformerConfig(**sizes, d_k=5, d_v=7).d_v == 7
    with pytest.raises(InputError, match=r"`d_model` must be a multiple.*d_model=10, num_heads=3"):
        TransformerConfig(**sizes, **given)


@pytest.mark.parametrize("d_model", [2, 9])
def test_marians_positions_need_an_even_width(d_model):
    with pytest.raises(InputError, match=f"`d_model` must be an even.*d_model={d_model}"):
        TransformerConfig(vocab_size=V, d_model=d_model, num_heads=1, position_encoding="marian")


# Table 3. No single vocabulary gives all of its counts: with 37,000 subwords base has 63 million,
# not 65; with the 41,000 that base needs, big has 218, not 213.

MILLIONS = {
    "base": 65,
    "A-1-head": 65,
    "A-4-heads": 65,
    "A-16-heads": 65,
    "A-32-heads": 65,
    "B-d_k-16": 58,
    "B-d_k-32": 60,
    "C-2-layers": 36,
    "C-4-layers": 50,
    "C-8-layers": 80,
    "C-d_model-256": 28,
    "C-d_model-1024": 168,
    "C-d_ff-1024": 53,
    "C-d_ff-4096": 90,
}


def num_parameters(config):
    """Weights and biases of all matrices, scales and offsets of layer normalization."""
    d_model, d_ff, heads = config.d_model, config.d_ff, config.num_heads
    d_k, d_v = (size or d_model // heads for size in (config.d_k, config.d_v))
    attention = heads * ((d_model + 1) * (2 * d_k + d_v) + d_v * d_model) + d_model
    feed_forward = (d_model + 1) * d_ff + (d_ff + 1) * d_model
    encoder_layer = attention + feed_forward + 2 * 2 * d_model
    decoder_layer = 2 * attention + feed_forward + 3 * 2 * d_model
    return (
        config.vocab_size * d_model
        + config.num_encoder_layers * encoder_layer
        + config.num_decoder_layers * decoder_layer
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"d_model": 10, "d_ff": 17, "num_heads": 5},
        {"d_model": 7, "d_ff": 11, "num_heads": 3, "d_k": 2, "d_v": 5},
    ],
)
def test_number_of_parameters(sizes):
    config = TransformerConfig(vocab_size=V, num_encoder_layers=1, num_decoder_layers=2, **sizes)
    assert Transformer(config).count_params() == num_parameters(config)
    norms = 2 * 2 * config.d_model
    pre_norm = dataclasses.replace(config, norm_first=True)
    assert Transformer(pre_norm).count_params() == num_parameters(config) + norms


@pytest.mark.parametrize(("row", "millions"), MILLIONS.items())
def test_table_3_counts(row, millions):
    config = TransformerConfig.from_preset(row, vocab_size=41_000)
    assert num_parameters(config) / 1e6 == pytest.approx(millions, abs=0.6)
