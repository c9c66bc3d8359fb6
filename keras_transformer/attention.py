"""Multi-head attention (section 3.2 of the paper).

Shapes (the package's glossary): B batch, S source length, T target length, D d_model, N heads,
H head size (d_k or d_v), F d_ff, V vocabulary, K beams, C cache length.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

_ROWS, _KEYS = (0, 2, 1, 3), (0, 2, 3, 1)  # [B, T, N, H] -> [B, N, T, H], [B, N, H, T]
LITTLE = 1 << 20  # multiplications; oneDNN pays where there are more
MASKED_SCORE = -1e9  # finite, so that a row without any visible key gives no NaN


class KeyValueCache(NamedTuple):
    """Projected keys and values of the positions that a query may attend to.

    Attributes:
        keys: float [B, N, H, C], transposed so that scores are one plain product.
        values: float [B, N, C, H].
    """

    keys: Any
    values: Any

    def append(self, newer: "KeyValueCache") -> "KeyValueCache":
        """Returns this cache with the positions of `newer` behind its own."""
        return KeyValueCache(
            keys=ops.concatenate([self.keys, newer.keys], axis=3),  # [B, N, H, C + any]
            values=ops.concatenate([self.values, newer.values], axis=2),  # [B, N, C + any, H]
        )


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Scaled dot-product attention in several heads (section 3.2.2).

        MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W_O,
        head_i = softmax(Q W_Q,i (K W_K,i)^T / sqrt(d_k)) V W_V,i

    A query that may attend to nothing, by a bool mask, gets weights of zero, so its output is the
    bias of W_O. W_Q, W_K and W_V start with half the variance of Glorot's uniform values: where
    N d_k and N d_v are D, as parts of one Glorot matrix of [D, 3 D].

    Args:
        d_model: width of the output, D.
        num_heads: number of heads, N.
        dropout_rate: dropout on the attention weights, 0 to 1 (0.0: the paper has none).
        d_k: size of a head's queries and keys; None for `d_model / num_heads`.
        d_v: size of a head's values; None for `d_model / num_heads`.
        use_bias: whether the four projections have a bias.

    Call arguments:
        query: float [B, T, any], with T and S at least 1.
        value: float [B, S, any].
        key: float [B, S, any]; `value` when None.
        attention_mask: bool, True = may attend: [B, T, S], or of rank 4 and broadcastable to
            [B, N, T, S]; or float, of rank 4, to be added to the scores; None for everything.
        return_attention_scores: whether to return the weights too.
        training: whether dropout is on.

    Returns:
        float [B, T, D]; with `return_attention_scores` also the weights, float [B, N, T, S],
        as they are before dropout.

    Raises:
        ValueError: if a size is below 1, or if `d_model` is not a multiple of `num_heads` and
            `d_k` or `d_v` is not given.

    Deviations:
        The projections have biases, which the paper's formulas have not; `use_bias=False`
        leaves them out.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import MultiHeadAttention
        >>> attention = MultiHeadAttention(d_model=6, num_heads=2)
        >>> query, value = np.ones((1, 3, 6)), np.ones((1, 5, 6))
        >>> mask = np.array([[[True, True, True, True, False]]])
        >>> output, weights = attention(
        ...     query, value, attention_mask=mask, return_attention_scores=True
        ... )
        >>> tuple(output.shape), tuple(weights.shape)
        ((1, 3, 6), (1, 2, 3, 5))
        >>> print(np.round(weights[0, 0, 0], 3))  # equal keys, and one that is hidden
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = {"d_model": d_model, "num_heads": num_heads, "d_k": d_k, "d_v": d_v}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={size}")
        if None in (d_k, d_v) and d_model % num_heads:
            raise ValueError(
                "`d_model` must be a multiple of `num_heads`, or `d_k` and `d_v` be given. "
                f"Received: d_model={d_model}, num_heads={num_heads}"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = d_model // num_heads if d_v is None else d_v
        self.use_bias = use_bias

        def dense(units: int, name: str, scale: float) -> keras.layers.Dense:
            return keras.layers.Dense(
                units,
                use_bias=use_bias,
                kernel_initializer=keras.initializers.VarianceScaling(scale, "fan_avg", "uniform"),
                dtype=self.dtype_policy,
                name=name,
            )

        # With Glorot's own scale of 1.0, deep models take far longer to align (docs/results.md).
        self.query_dense = dense(num_heads * self.d_k, "query", scale=0.5)
        self.key_dense = dense(num_heads * self.d_k, "key", scale=0.5)
        self.value_dense = dense(num_heads * self.d_v, "value", scale=0.5)
        self.output_dense = dense(d_model, "output", scale=1.0)
        self.dropout = keras.layers.Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Creates the weights."""
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape or value_shape)
        self.value_dense.build(value_shape)
        self.output_dense.build((*query_shape[:-1], self.num_heads * self.d_v))

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Attends from `query` to `value`; see the class."""
        memory = self.project_memory(value, key)
        output, scores = self.attend(query, memory, attention_mask, training)
        return (output, scores) if return_attention_scores else output

    def project_memory(self, value: Any, key: Any = None) -> KeyValueCache:
        """Projects what is attended to.

        Args:
            value: float [B, S, any].
            key: float [B, S, any]; `value` when None.

        Returns:
            Keys and values, C = S.
        """
        key = value if key is None else key
        return KeyValueCache(
            keys=self._heads_first(project(self.key_dense, key), _KEYS),
            values=self._heads_first(project(self.value_dense, value), _ROWS),
        )

    def step_to_itself(self, x: Any, cache: KeyValueCache, mask: Any) -> tuple[Any, KeyValueCache]:
        """Attends from new positions to earlier ones and to themselves, for a search.

        Args:
            x: float [B, T, D], the new positions.
            cache: the C earlier positions.
            mask: float, to be added to the scores, broadcastable to [B, N, T, C + T]; or None.

        Returns:
            Output, float [B, T, D], and the cache with the new positions.
        """
        keys = self._heads_first(project(self.key_dense, x), _KEYS, transpose_once)
        values = self._heads_first(project(self.value_dense, x), _ROWS, transpose_once)
        cache = cache.append(KeyValueCache(keys, values))
        return self.step_to_memory(x, cache, mask), cache

    def step_to_memory(self, x: Any, memory: KeyValueCache, mask: Any) -> Any:
        """Attends as `attend` does, without dropout and without a gradient.

        Args:
            x: float [B, T, D], the new positions.
            memory: keys and values, C = S.
            mask: float, to be added to the scores, broadcastable to [B, N, T, S]; or None.

        Returns:
            Output, float [B, T, D].
        """
        queries = project(self.query_dense, x) * self.d_k**-0.5
        queries = self._heads_first(queries, _ROWS, transpose_once)  # [B, N, T, H]
        return self._join(self._weigh_in_step(queries, memory, mask), transpose_once)

    def attend(
        self, query: Any, memory: KeyValueCache, mask: Any = None, training: bool | None = None
    ) -> tuple[Any, Any]:
        """Attends from `query` to keys and values that `project_memory` made.

        Args:
            query: float [B, T, any].
            memory: keys and values, C = S.
            mask: as `attention_mask` of the class.
            training: whether dropout is on.

        Returns:
            Output, float [B, T, D], and weights, float [B, N, T, S].
        """
        queries = project(self.query_dense, query) * self.d_k**-0.5
        queries = self._heads_first(queries, _ROWS)  # [B, N, T, H]
        heads, weights = self._weigh(queries, memory, mask, training)
        return self._join(heads), weights

    def _weigh(
        self, queries: Any, memory: KeyValueCache, mask: Any, training: bool | None
    ) -> tuple[Any, Any]:
        """Takes the means of the values, [B, N, T, H], and their weights, [B, N, T, S]."""
        scores = ops.matmul(queries, memory.keys)
        weights = self._masked_softmax(scores, mask)
        return ops.matmul(self.dropout(weights, training=training), memory.values), weights

    def _weigh_in_step(self, queries: Any, memory: KeyValueCache, mask: Any) -> Any:
        """Takes the means of the values, not by oneDNN where there is little to do.

        Its operations take 30 us to start, and a step of a search has many. It has no product of
        version 3, and no logarithm of softmax.
        """

        def weigh() -> Any:
            return self._weigh(queries, memory, mask, training=False)[0]

        if keras.backend.backend() != "tensorflow" or self.compute_dtype != "float32":
            return weigh()
        import tensorflow as tf

        def weigh_little() -> Any:
            scores = tf.raw_ops.BatchMatMulV3(x=queries, y=memory.keys, Tout=tf.float32)
            weights = tf.exp(tf.nn.log_softmax(scores if mask is None else scores + mask))
            return tf.raw_ops.BatchMatMulV3(x=weights, y=memory.values, Tout=tf.float32)

        num_multiplications = queries.shape[2] * tf.size(memory.keys, tf.int64)
        return tf.cond(num_multiplications <= LITTLE, weigh_little, weigh)

    def _join(self, heads: Any, transpose: Any = ops.transpose) -> Any:
        """[B, N, T, H] -> [B, T, N, H] -> [B, T, D]."""
        heads = transpose(heads, (0, 2, 1, 3))
        heads = ops.reshape(heads, (-1, _length(heads), self.num_heads * self.d_v))
        return project(self.output_dense, heads)

    def _masked_softmax(self, scores: Any, mask: Any) -> Any:
        """Softmax over the visible keys, in float32 whatever the compute dtype."""
        scores = ops.cast(scores, "float32")
        if mask is None:
            return ops.cast(ops.softmax(scores), self.compute_dtype)
        if keras.backend.is_float_dtype(mask.dtype):
            if keras.backend.standardize_dtype(mask.dtype) != "float32":  # Keras has cast it
                mask = ops.maximum(ops.cast(mask, "float32"), MASKED_SCORE)
            return ops.cast(ops.softmax(scores + mask), self.compute_dtype)
        if len(mask.shape) == 3:
            mask = mask[:, None]  # [B, 1, T, S]
        weights = ops.softmax(scores + additive_mask(mask))
        any_visible = ops.max(ops.cast(mask, "float32"), axis=-1, keepdims=True)
        return ops.cast(weights * any_visible, self.compute_dtype)

    def _heads_first(self, x: Any, axes: tuple[int, ...], transpose: Any = ops.transpose) -> Any:
        """[B, T, N * H] -> [B, N, T, H], or [B, N, H, T]."""
        x = ops.reshape(x, (-1, _length(x), self.num_heads, x.shape[-1] // self.num_heads))
        return transpose(x, axes)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "dropout_rate": self.dropout_rate,
            "d_k": self.d_k,
            "d_v": self.d_v,
            "use_bias": self.use_bias,
        }


def additive_mask(mask: Any) -> Any:
    """Returns 0 where a bool mask is True and `MASKED_SCORE` elsewhere, float32.

    Adding a small mask is cheaper than selecting over [B, N, T, S]; and who knows that every query
    sees something may give it to many layers instead of the bool mask, so that it is made once.
    """
    return (1.0 - ops.cast(mask, "float32")) * MASKED_SCORE


def project(dense: keras.layers.Dense, x: Any) -> Any:
    """Applies a dense layer to x, [B, T, any], by one product of a matrix with B * T rows.

    Keras's own way takes a dozen operations more. The bias comes after the rows are [B, T] again:
    TensorFlow would fuse it into the product, which takes longer where there are few rows.
    """
    if dense.quantization_mode is not None:  # its kernel is without the scale
        return dense(x)
    products = matrix_product(x, ops.cast(dense.kernel, x.dtype))
    if dense.use_bias:
        products = ops.add(products, ops.cast(dense.bias, x.dtype))
    return dense.activation(products)


def matrix_product(x: Any, kernel: Any) -> Any:
    """[B, T, n] times [n, m]."""
    rows = ops.matmul(ops.reshape(x, (-1, x.shape[-1])), kernel)
    return ops.reshape(rows, (-1, _length(x), rows.shape[-1]))


def transpose_once(x: Any, axes: tuple[int, ...]) -> Any:
    """`ops.transpose` without a gradient: by way of integers, which oneDNN leaves alone.

    It takes 40 us to transpose any floats, and a step of a search has many small ones.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    integers = {"float64": "int64", "float32": "int32"}.get(dtype, "int16")
    return ops.view(ops.transpose(ops.view(x, integers), axes), dtype)


def _length(x: Any) -> Any:
    """Size of dimension 1, static where it is known: then -1 can stand for B."""
    return x.shape[1] or ops.shape(x)[1]
