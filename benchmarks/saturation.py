"""How sharp the softmaxes of attention are, with and without 1 / sqrt(d_k) (section 3.2.1).

Shapes (the package's glossary): B batch, S source length, N heads.
"""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np
import pandas as pd

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.masks import padding_mask

NUM_KEYS = 20  # tokens of the sentences whose attention is measured
SIZES = (16, 64, 256, 1024)  # d_k
WIDTH = max(SIZES)  # d_model of the models at their initial values


class Measured(NamedTuple):
    """What softmaxes do, each a mean over all queries.

    Attributes:
        variance: of the products of queries and keys.
        max_weight: the largest weight of a query.
        entropy: of a query's weights, in nats.
        gradient: the Frobenius norm of the weights' derivatives by the scores.
    """

    variance: float
    max_weight: float
    entropy: float
    gradient: float


def measure_softmax(products: np.ndarray, scale: float) -> Measured:
    """Measures the softmaxes of products of queries and keys, [..., S], times a scale."""
    products = products.astype(np.float64)
    scores = products * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    # The derivatives are diag(w) - w w^T.
    squares = (weights**2).sum(axis=-1)
    norm = np.sqrt(np.maximum(0, squares - 2 * (weights**3).sum(axis=-1) + squares**2))
    return Measured(
        variance=float(products.var()),
        max_weight=float(weights.max(axis=-1).mean()),
        entropy=float(-(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1).mean()),
        gradient=float(norm.mean()),
    )


def encoder_products(model: Transformer, source_ids: np.ndarray) -> np.ndarray:
    """Returns the products of the encoder's queries and keys, [L, B, N, S, S].

    Only sentences of `NUM_KEYS` tokens count, so that all softmaxes have as many keys.
    """
    rows = (source_ids != 0).sum(axis=1) == NUM_KEYS
    source_ids = source_ids[rows, :NUM_KEYS]
    x = model.source_embedding(source_ids)
    products = []
    for layer in model.encoder_layers:
        attention = layer.self_attention
        query, key = (
            np.asarray(keras.ops.cast(attention._split_heads(dense(x)), "float32"))
            for dense in (attention.query_dense, attention.key_dense)
        )  # [B, N, S, d_k]
        products.append(query @ key.swapaxes(2, 3))
        x = layer(x, padding_mask(source_ids))
    return np.stack(products)


def measure_untrained(source_ids: np.ndarray, vocab_size: int) -> pd.DataFrame:
    """Measures normal queries and keys, and models at their initial values, with both scales."""
    keras.utils.set_random_seed(1)
    return pd.DataFrame(
        {"variation": name, "d_k": d_k, "is_scaled": is_scaled}
        | measure_softmax(products, d_k**-0.5 if is_scaled else 1.0)._asdict()
        for name, d_k, products in _untrained(source_ids, vocab_size)
        for is_scaled in (True, False)
    )


def _untrained(source_ids: np.ndarray, vocab_size: int) -> Iterator[tuple[str, int, np.ndarray]]:
    for d_k in SIZES:
        query, key = np.random.default_rng(1).normal(size=(2, 500, NUM_KEYS, d_k))
        yield "normal", d_k, query @ key.swapaxes(1, 2)
        config = TransformerConfig(
            vocab_size=vocab_size,
            d_model=WIDTH,
            d_ff=1,
            num_heads=WIDTH // d_k,
            num_encoder_layers=1,
            num_decoder_layers=1,
        )
        yield "initial", d_k, encoder_products(Transformer(config), source_ids)
