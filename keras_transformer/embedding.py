"""Embeddings and positions (sections 3.4 and 3.5 of the paper).

Shapes (the package's glossary): B batch, T length, D d_model, V vocabulary.
"""

import math
from typing import Any

import keras
from jaxtyping import Float, Int
from keras import ops

from keras_transformer.base_layer import BaseLayer
from keras_transformer.config import PAD_ID
from keras_transformer.tensor import Tensor


def sinusoidal_encoding(positions: Int[Tensor, " T"], d_model: int) -> Float[Tensor, "T D"]:
    """Computes the sinusoids of section 3.5.

        PE(pos, 2i)     = sin(pos / 10000^(2i / d_model))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

    Args:
        positions: int [T].
        d_model: width, D; an odd width ends in a sine.

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


def marian_encoding(positions: Int[Tensor, " T"], d_model: int) -> Float[Tensor, "T D"]:
    """Computes the sinusoids of Marian, with the sines and cosines in turns as in section 3.5.

        PE(pos, 2i)     = sin(pos / 10000^(i / (d_model / 2 - 1)))
        PE(pos, 2i + 1) = cos(pos / 10000^(i / (d_model / 2 - 1)))

    Args:
        positions: int [T].
        d_model: width, D; an even number of at least 4.

    Returns:
        float32 [T, D].
    """
    exponent = ops.cast(ops.arange(d_model // 2), "float32") / (d_model / 2 - 1)  # [D / 2]
    rate = ops.exp(exponent * -math.log(10_000.0))
    angle = ops.cast(positions, "float32")[:, None] * rate  # [T, D / 2]
    encoding = ops.stack([ops.sin(angle), ops.cos(angle)], axis=2)  # [T, D / 2, 2]
    return ops.reshape(encoding, (-1, d_model))  # [T, D]


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEmbedding(BaseLayer):
    """Token embeddings times sqrt(d_model) plus position encodings (sections 3.4 and 3.5).

    With `reverse=True` the layer computes logits from the decoder's output, with the same matrix.
    The matrix starts at N(0, 1 / d_model), so that the scaled embeddings and the logits both start
    with unit variance.

    Args:
        vocab_size: number of token ids, V.
        d_model: width, D.
        dropout_rate: dropout on the sum, 0 to 1 (0.1: section 5.4, base).
        position_encoding: "sinusoidal" or "marian", for any length, or "learned" (Table 3, row E).
        max_length: number of learned positions; sinusoids do not use it.
        output_bias: whether to add a bias to the logits; the paper has none.
        mask_zero: whether the output carries a mask for Keras's layers and this package's, False at
            id 0.
        scale_embeddings: whether to multiply the token embeddings by sqrt(d_model) (section 3.4).

    Call arguments:
        inputs: int [B, T], token ids; with `reverse`, float [B, T, D].
        start: int, the position of the first column.
        reverse: whether to compute logits.
        training: whether dropout is on.

    Returns:
        float [B, T, D]; with `reverse`, float [B, T, V].

    Raises:
        ValueError: if `position_encoding` has another value.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import PositionalEmbedding
        >>> embedding = PositionalEmbedding(vocab_size=7, d_model=4)
        >>> x = embedding(np.array([[5, 2, 6]]))
        >>> tuple(x.shape)
        (1, 3, 4)
        >>> tuple(embedding(x, reverse=True).shape)  # logits, by the same matrix
        (1, 3, 7)
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        dropout_rate: float = 0.1,
        position_encoding: str = "sinusoidal",
        max_length: int = 1024,
        output_bias: bool = False,
        mask_zero: bool = False,
        scale_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if position_encoding not in ("sinusoidal", "marian", "learned"):
            raise ValueError(
                "`position_encoding` must be 'sinusoidal', 'marian' or 'learned'. "
                f"Received: position_encoding={position_encoding!r}"
            )
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.scale = d_model**0.5 if scale_embeddings else 1.0
        self.encode_positions = (
            marian_encoding if position_encoding == "marian" else sinusoidal_encoding
        )
        self.use_output_bias = output_bias
        self.output_bias: keras.Variable | None = None
        self.mask_zero = mask_zero
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocab_size,
            d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        self.position_embedding: keras.layers.Embedding | None = None
        if position_encoding == "learned":
            self.position_embedding = keras.layers.Embedding(
                max_length,
                d_model,
                embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
                dtype=self.dtype_policy,
                name="position_embedding",
            )
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, ids_shape: Any) -> None:
        """Creates the weights."""
        self.token_embedding.build(ids_shape)
        if self.position_embedding is not None:
            self.position_embedding.build(ids_shape)
        if self.use_output_bias:
            self.output_bias = self.add_weight((self.vocab_size,), "zeros", name="output_bias")

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        """Returns the mask that the output carries, bool [B, T], or None."""
        is_ids = len(inputs.shape) == 2
        return ops.not_equal(inputs, PAD_ID) if self.mask_zero and is_ids else previous_mask

    def call(
        self,
        inputs: Int[Tensor, "B T"] | Float[Tensor, "B T D"],
        start: int | Int[Tensor, ""] = 0,
        reverse: bool = False,
        training: bool | None = None,
    ) -> Float[Tensor, "B T _"]:
        """Embeds tokens and adds their positions, or computes logits; see the class."""
        if reverse:
            logits = self.token_embedding(inputs, reverse=True)  # [B, T, V]
            return logits if self.output_bias is None else logits + self.output_bias
        encoding = self.encoding(start + ops.arange(ops.shape(inputs)[1]))  # [T, D]
        tokens = self.token_embedding(inputs) * self.scale  # [B, T, D]
        return self.dropout(tokens + encoding, training=training)

    def encoding(self, positions: Int[Tensor, " T"]) -> Float[Tensor, "T D"]:
        """Returns the encodings of positions, or their embeddings if they are learned."""
        if self.position_embedding is not None:
            return self.position_embedding(positions)
        return ops.cast(self.encode_positions(positions, self.d_model), self.compute_dtype)
