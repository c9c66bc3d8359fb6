import dataclasses
import json
import re

import pytest

from keras_transformer import InputError, TransformerConfig
from keras_transformer.config import TABLE_3
from keras_transformer.model import Transformer

V = 19


def test_defaults_are_the_base_row_of_table_3():
    config = TransformerConfig(vocab_size=37_000)
    assert config == TransformerConfig.from_preset("base", vocab_size=37_000)
    assert config.to_dict() == {
        "vocab_size": 37_000,
        "d_model": 512,
        "d_ff": 2048,
        "num_heads": 8,
        "num_encoder_layers": 6,
        "num_decoder_layers": 6,
        "d_k": None,
        "d_v": None,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.0,
        "feed_forward_dropout_rate": 0.0,
        "share_embeddings": True,
        "position_encoding": "sinusoidal",
        "max_length": 1024,
    }


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("tiny", (128, 256, 4, 4, 4, 0.1)), ("big", (1024, 4096, 16, 6, 6, 0.3))],
)
def test_presets(preset, sizes):
    config = TransformerConfig.from_preset(preset, vocab_size=V)
    assert config.vocab_size == V
    assert sizes == (
        config.d_model,
        config.d_ff,
        config.num_heads,
        config.num_encoder_layers,
        config.num_decoder_layers,
        config.dropout_rate,
    )


def test_overrides_win_over_the_preset():
    config = TransformerConfig.from_preset("tiny", vocab_size=V, num_heads=2, dropout_rate=0.25)
    assert (config.num_heads, config.dropout_rate, config.d_model) == (2, 0.25, 128)


def test_survives_json():
    config = TransformerConfig(
        vocab_size=V,
        d_model=10,
        d_ff=17,
        num_heads=3,
        d_k=5,
        d_v=7,
        dropout_rate=0,
        share_embeddings=False,
        position_encoding="learned",
        max_length=13,
    )
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig(vocab_size=V).d_model = 10


def test_unknown_preset_says_what_there_is():
    rows = [row for row in TABLE_3 if row not in ("base", "big")]
    message = f"`preset` must be one of tiny, base, big, {', '.join(rows)}. Received: preset='huge'"
    with pytest.raises(InputError, match=re.escape(message)):
        TransformerConfig.from_preset("huge", vocab_size=V)


def test_unknown_settings_say_what_there_is():
    with pytest.raises(InputError) as error:
        TransformerConfig.from_preset("tiny", vocab_size=V, depth=2, d_modle=10)
    message = str(error.value)
    unknown, known = message.split(". There are: ")
    assert unknown == "Unknown model setting d_modle, depth"
    assert known.split(", ") == list(TransformerConfig(vocab_size=V).to_dict())


def test_missing_vocab_size():
    with pytest.raises(InputError, match="`vocab_size` is missing"):
        TransformerConfig.from_dict({"d_model": 10})


@pytest.mark.parametrize("free_size", [None, "d_k", "d_v"])
def test_heads_must_divide_d_model_unless_their_sizes_are_given(free_size):
    sizes = {"vocab_size": V, "d_model": 10, "num_heads": 3}
    given = {"d_k": 5, "d_v": 7}
    assert TransformerConfig(**sizes, **given).d_v == 7
    partly_given = {name: size for name, size in given.items() if name == free_size}
    message = "`d_model` must be a multiple of `num_heads`.*d_model=10, num_heads=3"
    with pytest.raises(InputError, match=message):
        TransformerConfig(**sizes, **partly_given)


SIZES = ["vocab_size", "d_model", "d_ff", "num_heads", "num_encoder_layers", "d_k", "max_length"]
RATES = ["dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *((name, 0, "at least 1 and below 2**20") for name in SIZES),
        ("num_encoder_layers", 2**20, "at least 1 and below 2**20"),
        *((name, 2.0, "an integer") for name in SIZES),
        ("num_decoder_layers", -1, "at least 1 and below 2**20"),
        ("d_v", True, "an integer"),
        ("d_model", "512", "an integer"),
        ("d_ff", None, "an integer"),
        *((name, 1.0, "at least 0 and below 1") for name in RATES),
        *((name, -0.1, "at least 0 and below 1") for name in RATES),
        ("dropout_rate", float("nan"), "at least 0 and below 1"),
        ("dropout_rate", "0.1", "a number"),
        ("dropout_rate", None, "a number"),
        ("attention_dropout_rate", False, "a number"),
        ("share_embeddings", 1, "True or False"),
        ("share_embeddings", None, "True or False"),
        ("position_encoding", "rotary", "'sinusoidal' or 'learned'"),
        ("position_encoding", None, "'sinusoidal' or 'learned'"),
    ],
)
def test_values_of_the_wrong_type_or_out_of_range(name, value, expected):
    message = f"`{name}` must be {expected}. Received: {name}={value!r}"
    with pytest.raises(InputError, match=re.escape(message)):
        TransformerConfig(**{"vocab_size": V, name: value})


# Table 3.

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
    """Weights and biases of all matrices, scales and offsets of layer normalisation."""
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


# No single vocabulary gives the whole table: with 37,000 subwords base has 63 million, which is not
# 65; with the 41,000 that base needs, big has 218, which is not 213.


@pytest.mark.parametrize(("row", "millions"), MILLIONS.items())
def test_table_3_counts(row, millions):
    config = TransformerConfig.from_preset(row, vocab_size=41_000)
    assert num_parameters(config) / 1e6 == pytest.approx(millions, abs=0.6)


def test_table_3_count_of_big():
    config = TransformerConfig.from_preset("big", vocab_size=37_000)
    assert num_parameters(config) / 1e6 == pytest.approx(213, rel=0.01)


@pytest.mark.parametrize(
    ("row", "sizes"),
    [
        ("A-1-head", (1, 512)),
        ("A-4-heads", (4, 128)),
        ("A-16-heads", (16, 32)),
        ("A-32-heads", (32, 16)),
        ("C-d_model-256", (8, 32)),
        ("C-d_model-1024", (8, 128)),
        ("big", (16, 64)),
    ],
)
def test_table_3_head_sizes(row, sizes):
    config = TransformerConfig.from_preset(row, vocab_size=V)
    assert (config.num_heads, config.d_model // config.num_heads) == sizes
    assert (config.d_k, config.d_v) == (None, None)


@pytest.mark.parametrize(
    ("row", "change"),
    [
        ("D-dropout-0.0", {"dropout_rate": 0.0}),
        ("D-dropout-0.2", {"dropout_rate": 0.2}),
        ("E-learned-positions", {"position_encoding": "learned"}),
    ],
)
def test_table_3_rows_of_bases_size(row, change):
    base = TransformerConfig(vocab_size=V)
    assert TransformerConfig.from_preset(row, vocab_size=V) == dataclasses.replace(base, **change)


def test_every_row_of_table_3_is_tested():
    others = {row for row in TABLE_3 if row.startswith(("D-", "E-"))}
    assert set(TABLE_3) == {*MILLIONS, *others, "big"}
    assert len(others) == 3


def test_an_attribute_called_cls():
    with pytest.raises(InputError, match="cls"):
        TransformerConfig.from_preset("tiny", vocab_size=7, **{"cls": 1})
