"""Embeddings and positions (sections 3.4 and 3.5 of the paper)."""

import math
from typing import Any

import keras
import numpy as np
from jaxtyping import Float, Int
from keras import ops

from keras_transformer.config import PAD_ID, check_marian_width
from keras_transformer.errors import require
from keras_transformer.model.tensor import Tensor, check_sizes


def sinusoidal_encoding(
    positions: Int[Tensor, " T"], d_model: int, divisor: int | None = None
) -> Float[Tensor, "T D"]:
    """Computes the sinusoids of section 3.5.

        PE(pos, 2i)     = sin(pos / 10000^(2i / d_model))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

    Args:
        positions: int [T].
        d_model: width, D; an odd width ends in a sine.
        divisor: of the exponent; None for the paper's, `d_model`. Marian's is `d_model - 2`.

    Returns:
        float32 [T, D].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.model.embedding import sinusoidal_encoding
        >>> print(np.round(sinusoidal_encoding(np.arange(2), d_model=2), 3))
        [[0.    1.   ]
         [0.841 0.54 ]]
    """
    dimension = ops.arange(d_model)
    exponent = ops.cast(dimension - dimension % 2, "float32") / (divisor or d_model)  # [D]
    rate = ops.exp(exponent * -math.log(10_000.0))  # [D]
    angle = ops.cast(positions, "float32")[:, None] * rate  # [T, D]
    return ops.where(dimension % 2 == 0, ops.sin(angle), ops.cos(angle))


@keras.saving.register_keras_serializable("keras_transformer")
class PositionalEmbedding(keras.layers.Layer):
    """Token embeddings times sqrt(d_model) plus position encodings (sections 3.4 and 3.5).

    With `reverse=True` the layer computes logits from the decoder's output, with the same matrix.
    The matrix starts at N(0, 1 / d_model), so that the scaled embeddings and the logits both start
    with unit variance.

    Args:
        vocab_size: number of token ids, V.
        d_model: width, D.
        dropout_rate: dropout on the sum, 0 to 1 (0.1: section 5.4, base).
        position_encoding: "sinusoidal" or "marian", for any length, or "learned" (Table 3, row E).
        first_position: position of the first token, for sinusoids.
        max_length: number of learned positions; sinusoids do not use it. A position beyond is an
            error, or NaN where a graph does not know the length.
        output_bias: whether to add a bias to the logits; the paper has none.
        mask_zero: whether the output carries a mask for Keras's and this package's layers.
        scale_embeddings: whether to multiply the token embeddings by sqrt(d_model) (section 3.4).

    Call arguments:
        inputs: int [B, T], token ids; with `reverse`, float [B, T, D].
        start: int, how many tokens stand before the first column.
        reverse: whether to compute logits.

    Returns:
        float [B, T, D]; with `reverse`, float [B, T, V].

    Raises:
        ValueError: if an argument is out of range, or Marian's sinusoids have no such width; in a
            call, if `inputs` has another type or shape, or is longer than the learned positions.

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
        first_position: int = 0,
        max_length: int = 1024,
        output_bias: bool = False,
        mask_zero: bool = False,
        scale_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require(
            position_encoding in ("sinusoidal", "marian", "learned"),
            "`position_encoding` must be 'sinusoidal', 'marian' or 'learned'",
            position_encoding=position_encoding,
        )
        check_sizes(vocab_size=vocab_size, d_model=d_model, max_length=max_length)
        if position_encoding == "marian":
            check_marian_width(d_model)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.position_encoding = position_encoding
        self.divisor = d_model - 2 if position_encoding == "marian" else d_model
        self.first_position = first_position
        self.max_length = max_length
        self.use_output_bias = output_bias
        self.output_bias: keras.Variable | None = None
        self.mask_zero = mask_zero
        self.scale_embeddings = scale_embeddings
        self.scale = d_model**0.5 if scale_embeddings else 1.0
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocab_size,
            d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        self.token_embedding.supports_masking = True  # else it warns of the masks of logits
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
        self.token_embedding.build(ids_shape)
        if self.position_embedding is not None:
            self.position_embedding.build(ids_shape)
        if self.use_output_bias:
            self.output_bias = self.add_weight((self.vocab_size,), "zeros", name="output_bias")

    def call(
        self,
        inputs: Int[Tensor, "B T"] | Float[Tensor, "B T D"],
        start: int | Int[Tensor, ""] = 0,
        reverse: bool = False,
        training: bool | None = None,
    ) -> Float[Tensor, "B T _"]:
        self._check(inputs, start, reverse)
        if reverse:
            logits = self.token_embedding(inputs, reverse=True)  # [B, T, V]
            return logits if self.output_bias is None else logits + self.output_bias
        positions = ops.cast(start, "int32") + ops.arange(ops.shape(inputs)[1])  # [T]
        tokens = self.token_embedding(inputs) * self.scale  # [B, T, D]
        return self.dropout(tokens + self.encoding(positions), training=training)

    def encoding(self, positions: Int[Tensor, " T"]) -> Float[Tensor, "T D"]:
        """Returns the encodings of tokens, counted from 0, or the embeddings of their positions."""
        if self.position_embedding is not None:
            exists = ops.logical_and(positions >= 0, positions < self.max_length)[:, None]
            return ops.where(exists, self.position_embedding(positions), np.nan)
        positions = ops.cast(positions, "int32") + self.first_position
        encoding = sinusoidal_encoding(positions, self.d_model, self.divisor)  # [T, D]
        return ops.cast(encoding, self.compute_dtype)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        is_ids = keras.backend.is_int_dtype(inputs.dtype)
        return ops.not_equal(inputs, PAD_ID) if self.mask_zero and is_ids else previous_mask

    def compute_output_shape(
        self, input_shape: Any, reverse: bool = False
    ) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.vocab_size) if reverse else (*input_shape, self.d_model)

    def compute_output_spec(
        self, inputs: Tensor, start: Any = 0, reverse: bool = False, training: bool | None = None
    ) -> keras.KerasTensor:
        self._check(inputs, start, reverse)
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "dropout_rate": self.dropout.rate,
            "position_encoding": self.position_encoding,
            "first_position": self.first_position,
            "max_length": self.max_length,
            "output_bias": self.use_output_bias,
            "mask_zero": self.mask_zero,
            "scale_embeddings": self.scale_embeddings,
        }

    def _check(self, inputs: Tensor, start: Any, reverse: bool) -> None:
        shape, dtype = tuple(inputs.shape), keras.backend.standardize_dtype(inputs.dtype)
        fits = len(shape) == 2 and keras.backend.is_int_dtype(dtype)
        expected = "token ids, int [B, T]"
        if reverse:
            fits, expected = (
                shape[-1] == self.d_model,
                f"of width {self.d_model}, with reverse=True",
            )
        if not fits:
            raise ValueError(
                f"`inputs` of layer {self.name!r} must be {expected}. "
                f"Received: shape={shape}, dtype={dtype}"
            )
        first = start if isinstance(start, int) else 0
        last = first + (shape[1] or 1) - 1
        is_learned = self.position_embedding is not None and not reverse
        if is_learned and not 0 <= first <= last < self.max_length:
            raise ValueError(
                f"Layer {self.name!r} has learned positions 0 to {self.max_length - 1} "
                f"(`max_length`). Received: positions {first} to {last}"
            )
