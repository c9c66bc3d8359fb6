"""The shapes in the annotations of the core, checked by beartype while a model runs."""

import jaxtyping
import numpy as np
import pytest
from beartype import beartype

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.model import attention, layers
from keras_transformer.model import transformer as model
from keras_transformer.model.embedding import PositionalEmbedding

B, N, S, T, V = 3, 2, 7, 11, 19
SIZES = {
    "vocab_size": V,
    "d_model": 10,
    "d_ff": 17,
    "num_encoder_layers": 2,
    "num_decoder_layers": 1,
}


def checked(function):
    return jaxtyping.jaxtyped(typechecker=beartype)(function)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_heads": N},
        {"num_heads": 3, "d_k": 4, "d_v": 5, "share_embeddings": False},
        {"num_heads": N, "position_encoding": "learned", "max_length": 13},
    ],
)
def test_shapes_of_the_core(settings, monkeypatch):
    for owner, name in [
        (attention, "dot_product_attention"),
        (attention.MultiHeadAttention, "call"),
        (attention.MultiHeadAttention, "_split_heads"),
        (attention.MultiHeadAttention, "_join_heads"),
        (PositionalEmbedding, "call"),
        (layers.FeedForward, "call"),
        (layers.AddNorm, "call"),
        (layers.EncoderLayer, "call"),
        (layers.DecoderLayer, "call"),
        (model, "padding_mask"),
        (model, "decoder_mask"),
        (Transformer, "encode"),
        (Transformer, "decode"),
    ]:
        monkeypatch.setattr(owner, name, checked(getattr(owner, name)))
    transformer = Transformer(TransformerConfig(**SIZES, **settings))
    inputs = {"source_ids": np.ones((B, S), "int32"), "target_ids": np.ones((B, T), "int32")}
    transformer(inputs)
    transformer.attention_scores(**inputs)
