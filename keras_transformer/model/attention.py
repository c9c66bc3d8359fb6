"""Multi-head attention (section 3.2 of the paper)."""

from collections.abc import Callable
from typing import Any

import keras
from jaxtyping import Bool, Float
from keras import ops

from keras_transformer.config import check_heads
from keras_transformer.model.masks import merge_masks
from keras_transformer.model.tensor import Tensor, check_sizes

MASKED_SCORE = -1e9  # finite, because a softmax over -inf alone gives NaN


def dot_product_attention(
    query: Float[Tensor, "B N T d_k"],
    key: Float[Tensor, "B N S d_k"],
    value: Float[Tensor, "B N S d_v"],
    mask: Bool[Tensor, "#B #N #T S"] | None = None,
    dropout: Callable[[Tensor], Tensor] = lambda weights: weights,
    scale: float | None = None,
) -> tuple[Float[Tensor, "B N T d_v"], Float[Tensor, "B N T S"]]:
    """Scaled dot-product attention (section 3.2.1), with the softmax in float32.

        Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

    Args:
        query: float [B, N, T, d_k].
        key: float [B, N, S, d_k].
        value: float [B, N, S, d_v].
        mask: bool, broadcastable to [B, N, T, S], True = may attend; None to attend to everything.
            A query that may attend to nothing gets weights of zero.
        dropout: function that is applied to the weights before the product with the values.
        scale: factor of the scores; None for 1 / sqrt(d_k).

    Returns:
        The weighted means of the values, float [B, N, T, d_v], and the weights before dropout,
        float [B, N, T, S].
    """
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, T, S]
    scores = ops.cast(scores, "float32")
    if mask is None:
        weights = ops.softmax(scores)
    else:
        # A sum with the small mask is cheaper than a selection over [B, N, T, S].
        hidden = 1.0 - ops.cast(mask, "float32")
        weights = ops.softmax(scores + hidden * MASKED_SCORE)
        sees_a_key = ops.any(mask, axis=-1, keepdims=True)  # [B, N, T, 1]
        weights = weights * ops.cast(sees_a_key, "float32")
    weights = ops.cast(weights, query.dtype)
    return ops.matmul(dropout(weights), value), weights  # [B, N, T, d_v]


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention (section 3.2.2).

        MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W_O,
        head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i)

    W_Q, W_K and W_V start with half the variance of Glorot's initializer, which is the variance
    that it gives to one matrix [D, 3 D] of all three.

    Args:
        d_model: width of the output, D.
        num_heads: number of heads, N.
        dropout_rate: dropout on the attention weights, 0 to 1 (0.0: only section 6.3 has it).
        d_k: size of a head's queries and keys; None for `d_model / num_heads`.
        d_v: size of a head's values; None for `d_model / num_heads`.
        use_bias: whether the four projections have a bias.
        scale_attention: whether to divide the scores by sqrt(d_k) (section 3.2.1).

    Call arguments:
        query: float [B, T, any].
        value: float [B, S, any].
        key: float [B, S, any]; None for `value`.
        attention_mask: bool [B, S], [B, T, S] or [B, N, T, S], True = may attend; None to attend
            to everything. A query that may attend to nothing gets the bias of W_O.
        return_attention_scores: whether to return the attention weights too.
        value_mask: bool [B, S], False at padding; None for the mask that `value` carries, such as
            that of `Embedding(mask_zero=True)`.
        key_mask: the same for `key`.
        use_causal_mask: whether query t attends to positions up to and including t only.

    Returns:
        float [B, T, D]; with `return_attention_scores` also the attention weights before dropout,
        float [B, N, T, S].

    Raises:
        ValueError: if a size is below 1, or if `d_model` is not a multiple of `num_heads` and
            `d_k` or `d_v` is not given; in a call, if `query` has another rank than 3, or a mask is
            not bool or does not fit.

    Deviations:
        The projections have biases unless `use_bias=False`; the paper's formulas have none.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import MultiHeadAttention
        >>> attention = MultiHeadAttention(d_model=6, num_heads=2)
        >>> query, value = np.ones((1, 3, 6)), np.ones((1, 5, 6))
        >>> mask = np.array([[True, True, True, True, False]])
        >>> output, weights = attention(query, value, None, mask, return_attention_scores=True)
        >>> tuple(output.shape), tuple(weights.shape)
        ((1, 3, 6), (1, 2, 3, 5))
        >>> print(np.round(weights[0, 0, 0], 3))  # four equal keys, and one that is hidden
        [0.25 0.25 0.25 0.25 0.  ]
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout_rate: float = 0.0,
        d_k: int | None = None,
        d_v: int | None = None,
        use_bias: bool = True,
        scale_attention: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(d_model=d_model, num_heads=num_heads, d_k=d_k, d_v=d_v)
        check_heads(d_model, num_heads, d_k, d_v)
        self.supports_masking = True  # the output carries the mask of `query`
        self.input_spec = keras.InputSpec(ndim=3)
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = d_model // num_heads if d_v is None else d_v
        self.use_bias = use_bias
        self.scale_attention = scale_attention
        self.scale = self.d_k**-0.5 if scale_attention else 1.0

        def dense(units: int, name: str, scale: float) -> keras.layers.Dense:
            return keras.layers.Dense(
                units,
                use_bias=use_bias,
                kernel_initializer=keras.initializers.VarianceScaling(scale, "fan_avg", "uniform"),
                dtype=self.dtype_policy,
                name=name,
            )

        # With Glorot's own scale of 1.0, training is far slower (docs/log.md).
        self.query_dense = dense(num_heads * self.d_k, "query", scale=0.5)
        self.key_dense = dense(num_heads * self.d_k, "key", scale=0.5)
        self.value_dense = dense(num_heads * self.d_v, "value", scale=0.5)
        self.output_dense = dense(d_model, "output", scale=1.0)
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.d_v))

    def call(
        self,
        query: Float[Tensor, "B T Dq"],
        value: Float[Tensor, "B S Dv"],
        key: Float[Tensor, "B S Dk"] | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        use_causal_mask: bool = False,
    ) -> Float[Tensor, "B T D"] | tuple[Float[Tensor, "B T D"], Float[Tensor, "B N T S"]]:
        key = value if key is None else key
        masks = {"attention_mask": attention_mask, "value_mask": value_mask, "key_mask": key_mask}
        named = {f"`{name}` of layer {self.name!r}": mask for name, mask in masks.items()}
        heads, weights = dot_product_attention(
            self._split_heads(self.query_dense(query)),  # [B, N, T, d_k]
            self._split_heads(self.key_dense(key)),  # [B, N, S, d_k]
            self._split_heads(self.value_dense(value)),  # [B, N, S, d_v]
            merge_masks(query, key, self.num_heads, named, use_causal_mask),
            dropout=lambda weights: self.dropout(weights, training=training),
            scale=self.scale,
        )
        output = self.output_dense(self._join_heads(heads))  # [B, T, D]
        return (output, weights) if return_attention_scores else output

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any, key_shape: Any = None
    ) -> tuple[int | None, ...]:
        return (*query_shape[:-1], self.d_model)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *masks: Tensor,
        return_attention_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Returns shapes and types, without a graph of the layer, which takes far longer."""
        shape = self.compute_output_shape(query.shape, value.shape)
        output = keras.KerasTensor(shape, self.compute_dtype)  # [B, T, D]
        if not return_attention_scores:
            return output
        num_keys = (value if key is None else key).shape[1]
        shape = (query.shape[0], self.num_heads, query.shape[1], num_keys)
        return output, keras.KerasTensor(shape, self.compute_dtype)  # [B, N, T, S]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout.rate,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "use_bias": self.use_bias,
            "scale_attention": self.scale_attention,
        }

    def _split_heads(self, x: Float[Tensor, "B T NH"]) -> Float[Tensor, "B N T H"]:
        """[B, T, N * H] -> [B, T, N, H] -> [B, N, T, H]."""
        heads = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, x.shape[-1] // self.num_heads))
        return ops.transpose(heads, (0, 2, 1, 3))

    def _join_heads(self, heads: Float[Tensor, "B N T H"]) -> Float[Tensor, "B T NH"]:
        """[B, N, T, H] -> [B, T, N, H] -> [B, T, N * H]."""
        heads = ops.transpose(heads, (0, 2, 1, 3))
        return ops.reshape(heads, (-1, ops.shape(heads)[1], self.num_heads * self.d_v))
