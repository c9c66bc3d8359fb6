"""Encoder and decoder layers (sections 3.1 and 3.3 of the paper)."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import keras
from jaxtyping import Bool, Float

from keras_transformer.config import LAYER_NORM_EPSILON
from keras_transformer.model.attention import MultiHeadAttention
from keras_transformer.model.masks import merge_masks
from keras_transformer.model.tensor import Tensor, check_sizes


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """The position-wise feed-forward network (section 3.3).

        FFN(x) = max(0, x W_1 + b_1) W_2 + b_2

    Args:
        d_model: width of the output, D.
        d_ff: inner width, F.
        dropout_rate: dropout on the inner activations, 0 to 1 (0.0: the paper has none).
        activation: inner activation, as for `keras.layers.Dense`; the paper's is "relu".

    Call arguments:
        x: float [B, T, D].

    Returns:
        float [B, T, D].

    Raises:
        ValueError: if a size is below 1.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout_rate: float = 0.0,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(d_model=d_model, d_ff=d_ff)
        self.supports_masking = True  # the output carries the mask of `x`
        self.inner_dense = keras.layers.Dense(
            d_ff, activation=activation, dtype=self.dtype_policy, name="inner"
        )
        self.output_dense = keras.layers.Dense(d_model, dtype=self.dtype_policy, name="output")
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        self.inner_dense.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.inner_dense.units))

    def call(
        self, x: Float[Tensor, "B T D"], training: bool | None = None
    ) -> Float[Tensor, "B T D"]:
        inner = self.dropout(self.inner_dense(x), training=training)  # [B, T, F]
        return self.output_dense(inner)  # [B, T, D]

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.output_dense.units)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "d_model": self.output_dense.units,
            "d_ff": self.inner_dense.units,
            "dropout_rate": self.dropout.rate,
            "activation": keras.activations.serialize(self.inner_dense.activation),
        }


@keras.saving.register_keras_serializable("keras_transformer")
class AddNorm(keras.layers.Layer):
    """The residual connection around a sub-layer (section 3.1, "Add & Norm" in Figure 1).

        LayerNorm(x + Dropout(Sublayer(x)))

    Args:
        dropout_rate: dropout on the sub-layer's output, 0 to 1.
        epsilon: what the normalization adds to the variance (1e-6: tensor2tensor).

    Call arguments:
        x: float [B, T, D], the sub-layer's input.
        sublayer_output: float [B, T, D].

    Returns:
        float [B, T, D].
    """

    def __init__(
        self, dropout_rate: float, epsilon: float = LAYER_NORM_EPSILON, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True  # the output carries the mask of `x`
        # Keras computes the norm in float32, whatever the precision.
        self.norm = keras.layers.LayerNormalization(
            epsilon=epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, x_shape: Any) -> None:
        self.norm.build(x_shape)

    def call(
        self,
        x: Float[Tensor, "B T D"],
        sublayer_output: Float[Tensor, "B T D"],
        training: bool | None = None,
    ) -> Float[Tensor, "B T D"]:
        return self.norm(x + self.dropout(sublayer_output, training=training))

    def compute_output_shape(self, x_shape: Any) -> tuple[int | None, ...]:
        return tuple(x_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "dropout_rate": self.dropout.rate,
            "epsilon": self.norm.epsilon,
        }


class _TransformerLayer(keras.layers.Layer):
    """What an encoder and a decoder layer have in common: sub-layers, each with its `AddNorm`."""

    has_cross_attention: ClassVar[bool]

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
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_epsilon: float = LAYER_NORM_EPSILON,
        scale_attention: bool = True,
        norm_first: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True  # the output carries the mask of `x`
        self.norm_first = norm_first
        self.input_spec = keras.InputSpec(ndim=3, axes={-1: d_model})
        dtype = self.dtype_policy
        attention = functools.partial(
            MultiHeadAttention,
            d_model,
            num_heads,
            attention_dropout_rate,
            d_k,
            d_v,
            scale_attention=scale_attention,
            dtype=dtype,
        )
        add_norm = functools.partial(AddNorm, dropout_rate, layer_norm_epsilon, dtype=dtype)
        self.self_attention = attention(name="self_attention")
        self.self_attention_norm = add_norm(name="self_attention_norm")
        if self.has_cross_attention:
            self.cross_attention = attention(name="cross_attention")
            self.cross_attention_norm = add_norm(name="cross_attention_norm")
        self.feed_forward = FeedForward(
            d_model, d_ff, feed_forward_dropout_rate, activation, dtype=dtype, name="feed_forward"
        )
        self.feed_forward_norm = add_norm(name="feed_forward_norm")

    def build(self, x_shape: Any) -> None:
        d_model = self.self_attention.d_model
        if x_shape[-1] != d_model:
            # A wrapper such as `TimeDistributed` calls `build` and does not check `input_spec`.
            raise ValueError(
                f"`x` of layer {self.name!r} must have the width `d_model`, {d_model}. "
                f"Received: shape={tuple(x_shape)}"
            )
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)

    def compute_output_shape(self, x_shape: Any, *other_shapes: Any) -> tuple[int | None, ...]:
        return tuple(x_shape)

    def get_config(self) -> dict[str, Any]:
        attention, feed_forward = self.self_attention, self.feed_forward
        return super().get_config() | {
            "d_model": attention.d_model,
            "d_ff": feed_forward.inner_dense.units,
            "num_heads": attention.num_heads,
            "dropout_rate": self.self_attention_norm.dropout.rate,
            "attention_dropout_rate": attention.dropout.rate,
            "feed_forward_dropout_rate": feed_forward.dropout.rate,
            "d_k": attention.d_k,
            "d_v": attention.d_v,
            "activation": keras.activations.serialize(feed_forward.inner_dense.activation),
            "layer_norm_epsilon": self.self_attention_norm.norm.epsilon,
            "scale_attention": attention.scale_attention,
            "norm_first": self.norm_first,
        }

    def _sublayer_input(self, add_norm: AddNorm, x: Tensor) -> Tensor:
        return add_norm.norm(x) if self.norm_first else x

    def _add(
        self, add_norm: AddNorm, x: Tensor, sublayer_output: Tensor, training: bool | None
    ) -> Tensor:
        """The residual connection around a sub-layer."""
        if self.norm_first:
            return x + add_norm.dropout(sublayer_output, training=training)
        return add_norm(x, sublayer_output, training=training)

    def _key_mask(self, name: str, mask: Tensor | None, x: Tensor) -> Tensor | None:
        """[B, S] -> [B, 1, 1, S]; an error names this layer's argument, not the sub-layer's."""
        named = {f"`{name}` of layer {self.name!r}": mask}
        return merge_masks(x, x, self.self_attention.num_heads, named)


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(_TransformerLayer):
    """One layer of the encoder: self-attention and feed-forward (section 3.1).

    Args:
        d_model: width of the layer's input and output, D.
        d_ff: inner width of the feed-forward network, F.
        num_heads: number of attention heads, N.
        dropout_rate: dropout on each sub-layer's output (0.1: section 5.4, base).
        attention_dropout_rate: dropout on attention weights (0.0: only section 6.3 has it).
        feed_forward_dropout_rate: dropout inside the feed-forward network (0.0: not in the paper).
        d_k: size of a head's queries and keys; None for `d_model / num_heads`.
        d_v: size of a head's values; None for the same.
        activation: inner activation of the feed-forward network, as for `keras.layers.Dense`.
        layer_norm_epsilon: what layer normalization adds to the variance (1e-6: tensor2tensor).
        scale_attention: whether to divide the scores by sqrt(d_k) (section 3.2.1).
        norm_first: whether a sub-layer computes x + Dropout(Sublayer(LayerNorm(x))), "pre-norm",
            instead of what `AddNorm` does; a stack then needs a normalization after its last layer.

    Call arguments:
        x: float [B, S, D].
        attention_mask: bool [B, S], [B, S, S] or [B, N, S, S], True = may attend.
        return_attention_scores: whether to return the attention weights too.
        padding_mask: bool [B, S], False at padding; None for the mask that `x` carries.
        use_causal_mask: whether a position attends to itself and earlier positions only.

    Returns:
        float [B, S, D]; with `return_attention_scores` also the weights, float [B, N, S, S].

    Raises:
        ValueError: if a size is below 1; in a call, if the width of `x` is not `d_model`, or a mask
            is not bool or does not fit.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import EncoderLayer
        >>> layer = EncoderLayer(d_model=6, d_ff=11, num_heads=2)
        >>> source_ids = np.array([[5, 7, 3, 0]])  # the 0 is padding
        >>> tuple(layer(np.ones((1, 4, 6)), padding_mask=source_ids != 0).shape)
        (1, 4, 6)
    """

    has_cross_attention = False

    def call(
        self,
        x: Float[Tensor, "B S D"],
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        padding_mask: Bool[Tensor, "#B S"] | None = None,
        use_causal_mask: bool = False,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], Float[Tensor, "B N S S"]]:
        y = self._sublayer_input(self.self_attention_norm, x)
        attended, scores = self.self_attention(
            y,
            y,
            attention_mask=attention_mask,
            return_attention_scores=True,
            training=training,
            value_mask=self._key_mask("padding_mask", padding_mask, x),
            use_causal_mask=use_causal_mask,
        )
        x = self._add(self.self_attention_norm, x, attended, training)
        y = self._sublayer_input(self.feed_forward_norm, x)
        x = self._add(self.feed_forward_norm, x, self.feed_forward(y, training=training), training)
        return (x, scores) if return_attention_scores else x

    def compute_output_spec(
        self, x: Tensor, *masks: Tensor, return_attention_scores: bool = False, **kwargs: Any
    ) -> Any:
        return self.self_attention.compute_output_spec(
            x, x, return_attention_scores=return_attention_scores
        )


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(_TransformerLayer):
    """One layer of the decoder: self-attention, cross-attention, feed-forward (section 3.1).

    The arguments and errors are those of `EncoderLayer`.

    Call arguments:
        x: float [B, T, D].
        encoder_output: float [B, S, D].
        self_attention_mask: bool [B, T], [B, T, T] or [B, N, T, T], True = may attend.
        cross_attention_mask: bool [B, S], [B, T, S] or [B, N, T, S], True = may attend.
        return_attention_scores: whether to return the attention weights too.
        decoder_padding_mask: bool [B, T], False at padding; None for the mask that `x` carries.
        encoder_padding_mask: bool [B, S]; None for the mask that `encoder_output` carries.
        use_causal_mask: whether self-attention hides later positions.

    Returns:
        float [B, T, D]; with `return_attention_scores` also the weights of self-attention, float
        [B, N, T, T], and of cross-attention, float [B, N, T, S].

    Example:
        >>> import numpy as np
        >>> from keras_transformer import DecoderLayer
        >>> layer = DecoderLayer(d_model=6, d_ff=11, num_heads=2)
        >>> x, encoder_output = np.ones((1, 3, 6)), np.ones((1, 4, 6))
        >>> source_ids = np.array([[5, 7, 3, 0]])  # the 0 is padding
        >>> tuple(layer(x, encoder_output, encoder_padding_mask=source_ids != 0).shape)
        (1, 3, 6)
    """

    has_cross_attention = True

    def build(self, x_shape: Any, encoder_output_shape: Any = None) -> None:
        super().build(x_shape)
        self.cross_attention.build(x_shape, encoder_output_shape)
        self.cross_attention_norm.build(x_shape)

    def call(
        self,
        x: Float[Tensor, "B T D"],
        encoder_output: Float[Tensor, "B S D"],
        self_attention_mask: Tensor | None = None,
        cross_attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        decoder_padding_mask: Bool[Tensor, "#B T"] | None = None,
        encoder_padding_mask: Bool[Tensor, "#B S"] | None = None,
        use_causal_mask: bool = True,
    ) -> (
        Float[Tensor, "B T D"]
        | tuple[Float[Tensor, "B T D"], Float[Tensor, "B N T T"], Float[Tensor, "B N T S"]]
    ):
        y = self._sublayer_input(self.self_attention_norm, x)
        attended, self_scores = self.self_attention(
            y,
            y,
            attention_mask=self_attention_mask,
            return_attention_scores=True,
            training=training,
            value_mask=self._key_mask("decoder_padding_mask", decoder_padding_mask, x),
            use_causal_mask=use_causal_mask,
        )
        x = self._add(self.self_attention_norm, x, attended, training)
        y = self._sublayer_input(self.cross_attention_norm, x)
        attended, cross_scores = self.cross_attention(
            y,
            encoder_output,
            attention_mask=cross_attention_mask,
            return_attention_scores=True,
            training=training,
            value_mask=self._key_mask("encoder_padding_mask", encoder_padding_mask, encoder_output),
        )
        x = self._add(self.cross_attention_norm, x, attended, training)
        y = self._sublayer_input(self.feed_forward_norm, x)
        x = self._add(self.feed_forward_norm, x, self.feed_forward(y, training=training), training)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def compute_output_spec(
        self,
        x: Tensor,
        encoder_output: Tensor,
        *masks: Tensor,
        return_attention_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        output, self_scores = self.self_attention.compute_output_spec(
            x, x, return_attention_scores=True
        )
        _, cross_scores = self.cross_attention.compute_output_spec(
            x, encoder_output, return_attention_scores=True
        )
        return (output, self_scores, cross_scores) if return_attention_scores else output
