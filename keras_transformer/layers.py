"""Encoder and decoder layers (sections 3.1 and 3.3 of the paper).

Shapes (the package's glossary): B batch, S source length, T target length, D d_model, N heads,
H head size (d_k or d_v), F d_ff, V vocabulary, K beams, C cache length.
"""

from typing import Any

import keras

from keras_transformer.attention import (
    KeyValueCache,
    MultiHeadAttention,
    project,
)

LAYER_NORM_EPSILON = 1e-6  # tensor2tensor's, the paper's own code; Keras's default is 1e-3


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """The position-wise feed-forward network (section 3.3).

        FFN(x) = max(0, x W_1 + b_1) W_2 + b_2

    Args:
        d_model: width of the output, D.
        d_ff: inner width, F.
        dropout_rate: dropout on the inner activations, 0 to 1 (0.0: the paper has none).
        activation: inner activation; the paper's is "relu".

    Call arguments:
        x: float [B, T, D].
        training: whether dropout is on.

    Returns:
        float [B, T, D].

    Example:
        >>> import numpy as np
        >>> from keras_transformer import FeedForward
        >>> feed_forward = FeedForward(d_model=4, d_ff=7)
        >>> tuple(feed_forward(np.ones((2, 3, 4))).shape)
        (2, 3, 4)
        >>> feed_forward.count_params()  # 4 * 7 + 7 + 7 * 4 + 4
        67
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout_rate: float = 0.0,
        activation: str = "relu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model = d_model
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.activation = activation
        self.inner_dense = keras.layers.Dense(
            d_ff, activation=activation, dtype=self.dtype_policy, name="inner"
        )
        self.output_dense = keras.layers.Dense(d_model, dtype=self.dtype_policy, name="output")
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        """Creates the weights."""
        self.inner_dense.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.d_ff))

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Applies the network to every position; see the class."""
        inner = self.dropout(project(self.inner_dense, x), training=training)  # [B, T, F]
        return project(self.output_dense, inner)  # [B, T, D]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "dropout_rate": self.dropout_rate,
            "activation": self.activation,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class AddNorm(keras.layers.Layer):
    """The residual connection around a sub-layer (section 3.1, "Add & Norm" in Figure 1).

        LayerNorm(x + Dropout(Sublayer(x)))

    Args:
        dropout_rate: dropout on the sub-layer's output, 0 to 1.

    Call arguments:
        x: float [B, T, D], the sub-layer's input.
        sublayer_output: float [B, T, D].
        training: whether dropout is on.

    Returns:
        float [B, T, D].
    """

    def __init__(self, dropout_rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout_rate = dropout_rate
        # Computes in float32 under mixed precision.
        self.norm = keras.layers.LayerNormalization(
            epsilon=LAYER_NORM_EPSILON, dtype=self.dtype_policy, name="norm"
        )
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, x_shape: Any, *_: Any) -> None:
        """Creates the weights."""
        self.norm.build(x_shape)

    def call(self, x: Any, sublayer_output: Any, training: bool | None = None) -> Any:
        """Adds and normalises; see the class."""
        return self.norm(x + self.dropout(sublayer_output, training=training))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {"dropout_rate": self.dropout_rate}


class _ResidualLayer(keras.layers.Layer):
    """What `EncoderLayer` and `DecoderLayer` share: arguments, sub-layer makers, config."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        num_heads: int,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        feed_forward_dropout_rate: float = 0.0,
        d_k: int | None = None,
        d_v: int | None = None,
        activation: str = "relu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.d_model = d_model
        self.d_ff = d_ff
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.feed_forward_dropout_rate = feed_forward_dropout_rate
        self.d_k = d_k
        self.d_v = d_v
        self.activation = activation
        self._make_sublayers()

    def _make_sublayers(self) -> None:
        raise NotImplementedError

    def _attention(self, name: str) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            dropout_rate=self.attention_dropout_rate,
            d_k=self.d_k,
            d_v=self.d_v,
            dtype=self.dtype_policy,
            name=name,
        )

    def _feed_forward(self) -> FeedForward:
        return FeedForward(
            self.d_model,
            self.d_ff,
            dropout_rate=self.feed_forward_dropout_rate,
            activation=self.activation,
            dtype=self.dtype_policy,
            name="feed_forward",
        )

    def _add_norm(self, name: str) -> AddNorm:
        return AddNorm(self.dropout_rate, dtype=self.dtype_policy, name=name)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "feed_forward_dropout_rate": self.feed_forward_dropout_rate,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "activation": self.activation,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(_ResidualLayer):
    """One layer of the encoder: self-attention and feed-forward, post-norm (section 3.1).

    Args:
        d_model: width, D.
        d_ff: inner width of the feed-forward network, F.
        num_heads: attention heads, N.
        dropout_rate: dropout on each sub-layer's output (0.1: section 5.4, base).
        attention_dropout_rate: dropout on attention weights (0.0: the paper has none).
        feed_forward_dropout_rate: dropout inside the feed-forward network (0.0, likewise).
        d_k: size of a head's queries and keys; None for `d_model / num_heads`.
        d_v: size of a head's values; None for `d_model / num_heads`.
        activation: of the feed-forward network.

    Call arguments:
        x: float [B, S, D].
        attention_mask: bool [B, S, S], or of rank 4 and broadcastable to [B, N, S, S], True = may
            attend.
        return_attention_scores: whether to return the attention weights too.
        training: whether dropout is on.

    Returns:
        float [B, S, D]; with `return_attention_scores` also the weights, float [B, N, S, S].

    Example:
        >>> import numpy as np
        >>> from keras_transformer import EncoderLayer
        >>> from keras_transformer.masks import padding_mask
        >>> layer = EncoderLayer(d_model=6, d_ff=11, num_heads=2)
        >>> source_ids = np.array([[5, 7, 3, 0]])  # the 0 is padding
        >>> tuple(layer(np.ones((1, 4, 6)), attention_mask=padding_mask(source_ids)).shape)
        (1, 4, 6)
    """

    def _make_sublayers(self) -> None:
        self.self_attention = self._attention("self_attention")
        self.self_attention_norm = self._add_norm("self_attention_norm")
        self.feed_forward = self._feed_forward()
        self.feed_forward_norm = self._add_norm("feed_forward_norm")

    def build(self, x_shape: Any, *_: Any) -> None:
        """Creates the weights."""
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Any,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Encodes; see the class."""
        attention, scores = self.self_attention(
            x, x, attention_mask=attention_mask, return_attention_scores=True, training=training
        )
        x = self.self_attention_norm(x, attention, training=training)
        x = self.feed_forward_norm(x, self.feed_forward(x, training=training), training=training)
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(_ResidualLayer):
    """One layer of the decoder: self-attention, cross-attention, feed-forward (section 3.1).

    `decode_step` is the same computation for one new position per hypothesis, with the keys and
    values of earlier positions taken from a cache.

    Args:
        d_model: width, D.
        d_ff: inner width of the feed-forward network, F.
        num_heads: attention heads, N.
        dropout_rate: dropout on each sub-layer's output (0.1: section 5.4, base).
        attention_dropout_rate: dropout on attention weights (0.0: the paper has none).
        feed_forward_dropout_rate: dropout inside the feed-forward network (0.0, likewise).
        d_k: size of a head's queries and keys; None for `d_model / num_heads`.
        d_v: size of a head's values; None for `d_model / num_heads`.
        activation: of the feed-forward network.

    Call arguments:
        x: float [B, T, D].
        encoder_output: float [B, S, D].
        self_attention_mask: bool [B, T, T], or of rank 4 and broadcastable to [B, N, T, T], True =
            may attend; it must hide the future.
        cross_attention_mask: bool [B, T, S], or of rank 4 and broadcastable to [B, N, T, S].
        return_attention_scores: whether to return the attention weights too.
        training: whether dropout is on.

    Returns:
        float [B, T, D]; with `return_attention_scores` also the weights of self-attention, float
        [B, N, T, T], and of cross-attention, float [B, N, T, S].

    Example:
        >>> import numpy as np
        >>> from keras_transformer import DecoderLayer
        >>> from keras_transformer.masks import decoder_mask, padding_mask
        >>> layer = DecoderLayer(d_model=6, d_ff=11, num_heads=2)
        >>> source_ids, target_ids = np.array([[5, 7, 3, 0]]), np.array([[2, 8, 4]])
        >>> x, self_weights, cross_weights = layer(
        ...     np.ones((1, 3, 6)),
        ...     encoder_output=np.ones((1, 4, 6)),
        ...     self_attention_mask=decoder_mask(target_ids),
        ...     cross_attention_mask=padding_mask(source_ids),
        ...     return_attention_scores=True,
        ... )
        >>> tuple(x.shape), tuple(self_weights.shape), tuple(cross_weights.shape)
        ((1, 3, 6), (1, 2, 3, 3), (1, 2, 3, 4))
    """

    def _make_sublayers(self) -> None:
        self.self_attention = self._attention("self_attention")
        self.self_attention_norm = self._add_norm("self_attention_norm")
        self.cross_attention = self._attention("cross_attention")
        self.cross_attention_norm = self._add_norm("cross_attention_norm")
        self.feed_forward = self._feed_forward()
        self.feed_forward_norm = self._add_norm("feed_forward_norm")

    def build(self, x_shape: Any, encoder_output_shape: Any, *_: Any) -> None:
        """Creates the weights."""
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        self.cross_attention.build(x_shape, encoder_output_shape)
        self.cross_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def call(
        self,
        x: Any,
        encoder_output: Any,
        self_attention_mask: Any = None,
        cross_attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Decodes all positions at once; see the class."""
        attention, self_scores = self.self_attention(
            x,
            x,
            attention_mask=self_attention_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.self_attention_norm(x, attention, training=training)
        attention, cross_scores = self.cross_attention(
            x,
            encoder_output,
            attention_mask=cross_attention_mask,
            return_attention_scores=True,
            training=training,
        )
        x = self.cross_attention_norm(x, attention, training=training)
        x = self.feed_forward_norm(x, self.feed_forward(x, training=training), training=training)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def decode_step(
        self,
        x: Any,
        cache: KeyValueCache,
        self_attention_mask: Any,
        memory: KeyValueCache,
        cross_attention_mask: Any,
    ) -> tuple[Any, KeyValueCache]:
        """Decodes the next position of K hypotheses per sentence, without dropout.

        The hypotheses of a sentence stand where a query's positions do, and share its memory and
        its cache.

        Args:
            x: float [B, K, D], the new positions.
            cache: self-attention's keys and values of the sentence's C earlier positions.
            self_attention_mask: float, to be added to the scores: very negative at those of the
                C + K positions that do not belong to a hypothesis, broadcastable to
                [B, N, K, C + K]; None where all do.
            memory: cross-attention's keys and values, `cross_attention.project_memory` of the
                encoder's output.
            cross_attention_mask: float, likewise, broadcastable to [B, N, K, S]; or None.

        Returns:
            float [B, K, D], and the cache with the new positions.
        """
        attention, cache = self.self_attention.step_to_itself(x, cache, self_attention_mask)
        x = self.self_attention_norm(x, attention, training=False)
        attention = self.cross_attention.step_to_memory(x, memory, cross_attention_mask)
        x = self.cross_attention_norm(x, attention, training=False)
        x = self.feed_forward_norm(x, self.feed_forward(x, training=False), training=False)
        return x, cache
