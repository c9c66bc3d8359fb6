"""Embeddings and positions (sections 3.4 and 3.5 of the paper).

Shapes (the package's glossary): B batch, S source length, T target length, D d_model, N heads,
H head size (d_k or d_v), F d_ff, V vocabulary, K beams, C cache length.
"""

import math
from typing import Any

import keras
from keras import ops


def sinusoidal_encoding(positions: Any, d_model: int) -> Any:
    """The sinusoids of section 3.5, for any positions.

        PE(pos, 2i)     = sin(pos / 10000^(2i / d_model))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

    Args:
        positions: int [T].
        d_model: width, D; odd widths end in a sine.

    Returns:
        float32 [T, D].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.embedding import sinusoidal_encoding
        >>> print(np.round(sinusoidal_encoding(np.arange(2), d_model=2), 3))
        [[0.    1.   ]
         [0.841 0.54 ]]
    """
    dimension = ops.arange(d_model)
    exponent = ops.cast(dimension - dimension % 2, "float32") / d_model  # 2i / d_model
    rate = ops.exp(exponent * -math.log(10_000.0))  # [D]
    angle = ops.cast(positions, "float32")[:, None] * rate  # [T, D]
    return ops.where(dimension % 2 == 0, ops.sin(angle), ops.cos(angle))


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEmbedding(keras.layers.Layer):
    """Token embeddings times sqrt(d_model) plus position encodings (sections 3.4 and 3.5).

    `token_embedding` may be called with `reverse=True` to project the decoder's output on the
    vocabulary with the same matrix. Its entries start at N(0, 1 / d_model), so that embeddings
    after scaling, and logits, both start with unit variance.

    Args:
        vocab_size: number of token ids, V.
        d_model: width, D.
        dropout_rate: dropout on the sum, 0 to 1 (0.1: section 5.4, base).
        position_encoding: "sinusoidal", for any length, or "learned" (Table 3, row E).
        max_length: number of learned positions; unused by sinusoids.

    Call arguments:
        ids: int [B, T].
        start: position of the first column, an integer; cached decoding sets it.
        training: whether dropout is on.

    Returns:
        float [B, T, D].

    Raises:
        ValueError: if `position_encoding` is neither of the two.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import PositionalEmbedding
        >>> embedding = PositionalEmbedding(vocab_size=7, d_model=4)
        >>> x = embedding(np.array([[5, 2, 6]]))
        >>> tuple(x.shape)
        (1, 3, 4)
        >>> tuple(embedding.token_embedding(x, reverse=True).shape)  # logits, by the same matrix
        (1, 3, 7)
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        dropout_rate: float = 0.1,
        position_encoding: str = "sinusoidal",
        max_length: int = 1024,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if position_encoding not in ("sinusoidal", "learned"):
            raise ValueError(
                "`position_encoding` must be 'sinusoidal' or 'learned'. "
                f"Received: position_encoding={position_encoding!r}"
            )
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.dropout_rate = dropout_rate
        self.position_encoding = position_encoding
        self.max_length = max_length
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocab_size,
            d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        self.position_embedding = (
            keras.layers.Embedding(
                max_length,
                d_model,
                embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
                dtype=self.dtype_policy,
                name="position_embedding",
            )
            if position_encoding == "learned"
            else None
        )
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, ids_shape: Any) -> None:
        """Creates the weights."""
        self.token_embedding.build(ids_shape)
        if self.position_embedding is not None:
            self.position_embedding.build(ids_shape)

    def call(self, ids: Any, start: Any = 0, training: bool | None = None) -> Any:
        """Embeds tokens and adds their positions; see the class."""
        positions = start + ops.arange(ops.shape(ids)[1])  # [T]
        if self.position_embedding is None:
            encoding = ops.cast(sinusoidal_encoding(positions, self.d_model), self.compute_dtype)
        else:
            encoding = self.position_embedding(positions)  # [T, D]
        tokens = self.token_embedding(ids) * self.d_model**0.5  # [B, T, D]
        return self.dropout(tokens + encoding, training=training)

    def compute_output_shape(self, ids_shape: Any) -> Any:
        """Returns [B, T, D]."""
        return (*ids_shape, self.d_model)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "dropout_rate": self.dropout_rate,
            "position_encoding": self.position_encoding,
            "max_length": self.max_length,
        }
