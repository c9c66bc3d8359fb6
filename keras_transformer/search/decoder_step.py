"""The step function of a search with a `Transformer`: the decoder for one more token, made fast.

It computes what `Transformer.decode` computes for the last position, and the tests compare the two.
Every optimization of the decoder is in this module, those of the search are in `beam_search.py`
(docs/log.md has the figures):

- The weights are prepared once for each call: queries, keys and values of self-attention get one
  matrix, and large matrices are moved: to blocks of columns for few hypotheses in float32, and
  transposed for bfloat16. The shared embedding stays as it is.
- A product with a large matrix is that of two parts of its outputs, which TensorFlow computes side
  by side on several cores. In float32, this is for few hypotheses, and the parts are in blocks.
- The encodings of all positions are computed once for each call.
- All hypotheses of a sentence share its keys and values, those of the encoder's output and those
  of earlier positions. They are never moved; a mask selects the positions of each hypothesis.
- Each matmul has one row for each hypothesis.
- Matmuls and the cache have the model's compute dtype; sums, norms, softmaxes and the small
  matmuls of attention are float32.
- Small matmuls, softmaxes and transpositions avoid oneDNN, whose operations take 30 to 40 us to
  start.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.model.attention import MASKED_SCORE
from keras_transformer.model.layers import DecoderLayer
from keras_transformer.model.masks import padding_mask
from keras_transformer.model.transformer import Transformer

ONEDNN_MIN_MULTIPLICATIONS = 2**20  # a product of more multiplications is faster by oneDNN
# Kernels of at least this size are multiplied in blocks of outputs by a call of at most so many
# hypotheses.
MIN_BLOCKED_SIZE = 2**18
MAX_BLOCKED_ROWS = 64
BLOCK_OUTPUTS = 64
NUM_PARTS = 2  # that are computed side by side


class KeysValues(NamedTuple):
    """The keys and values that queries attend to."""

    keys: tf.Tensor  # float [B, N, C, d_k]
    values: tf.Tensor  # float [B, N, C, d_v]


class RowState(NamedTuple):
    """What the decoder keeps of a batch of sentences."""

    encoder_kv: tuple[KeysValues, ...]  # of each layer, for cross-attention
    source_mask: tf.Tensor  # float [B, 1, 1, S], 0 at tokens and `MASKED_SCORE` at padding
    # Of each layer, for self-attention: all earlier positions of all hypotheses of a sentence, C.
    kv_cache: tuple[KeysValues, ...]
    # float [B, K, K], of a step's own positions: 0 for the hypothesis itself and `MASKED_SCORE` for
    # others.
    step_mask: tf.Tensor


class DecoderStep:
    """The step function of `beam_search`, with the current weights of a model.

    For the search, its `row_state` is a `RowState`. Its `cache` is a mask, float [B, K, C]: 0 at
    the positions in the sentence's cache that belong to a hypothesis, and `MASKED_SCORE` at others.

    Args:
        model: the model.
        max_length: int32 [], the maximum length of a hypothesis in tokens.
        num_sequences: int32 [], the number of hypotheses of all rows, B * K; the weights are laid
            out in memory for few or for many. The results are the same.
    """

    def __init__(
        self,
        model: Transformer,
        max_length: int | tf.Tensor,
        num_sequences: int | tf.Tensor = tf.int32.max,
    ) -> None:
        self.model = model
        in_blocks = tf.convert_to_tensor(num_sequences) <= MAX_BLOCKED_ROWS
        self.layers = [_LayerStep(layer, in_blocks) for layer in model.decoder_layers]
        self.norm = None if model.decoder_norm is None else _Norm(model.decoder_norm)
        embedding = model.target_embedding
        # Read here: a gather from the variable itself would make TensorFlow copy it at each read.
        self.embeddings = tf.convert_to_tensor(embedding.token_embedding.embeddings)
        self.scale = embedding.scale
        positions = embedding.encoding(tf.range(max_length))  # [T, D]
        self.positions = tf.cast(positions, tf.float32)
        kernel, bias = self.embeddings, embedding.output_bias
        if model.output_dense is not None:
            kernel, bias = model.output_dense.kernel, model.output_dense.bias
        is_tied = model.output_dense is None
        self.output = _Linear(kernel, bias, model.compute_dtype, in_blocks, transposed=is_tied)

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[tf.Tensor, RowState]:
        """Encodes sources, int32 [B, S], and returns the state before the first step."""
        return self.state_of(self.model.encode(source_ids, training=False), source_ids, beam_size)

    def state_of(
        self, encoder_output: tf.Tensor, source_ids: tf.Tensor, beam_size: int
    ) -> tuple[tf.Tensor, RowState]:
        """Returns the state before the first step, for an encoder's output, float [B, S, D]."""
        num_rows = tf.shape(source_ids)[0]
        is_token = tf.cast(padding_mask(source_ids), tf.float32)  # [B, 1, 1, S]
        others = (1.0 - tf.eye(beam_size, dtype=tf.float32)) * MASKED_SCORE  # [K, K]
        row_state = RowState(
            encoder_kv=tuple(layer.encoder_kv(encoder_output) for layer in self.layers),
            source_mask=(1.0 - is_token) * MASKED_SCORE,
            kv_cache=tuple(layer.empty_cache(num_rows) for layer in self.layers),
            step_mask=tf.tile(others[None], [num_rows, 1, 1]),
        )
        return tf.zeros([num_rows, beam_size, 0], tf.float32), row_state

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, self_mask: tf.Tensor, row_state: RowState
    ) -> tuple[tf.Tensor, tf.Tensor, RowState]:
        """Computes the logits, float32 [B, K, V], that follow one more token, int32 [B, K].

        The token is at `position`, int32 [], of which 0 is that of the start symbol. Also returns
        `self_mask` and `row_state` with K more positions.
        """
        return self.decode(
            self.embed(target_ids, position), target_ids.shape[1], self_mask, row_state
        )

    def embed(self, target_ids: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Returns the embeddings, float32 [R, D], of tokens, int32 [B, K]."""
        x = tf.gather(self.embeddings, tf.reshape(target_ids, [-1]))  # [R, D]
        return tf.cast(x, tf.float32) * self.scale + tf.gather(self.positions, position)

    def decode(
        self, x: tf.Tensor, num_beams: int, self_mask: tf.Tensor, row_state: RowState
    ) -> tuple[tf.Tensor, tf.Tensor, RowState]:
        """Runs the layers and the output projection on what `embed` returns."""
        mask = None  # a single hypothesis attends to all positions
        if num_beams > 1:
            self_mask = tf.concat([self_mask, row_state.step_mask], axis=2)  # [B, K, C + K]
            mask = tf.expand_dims(self_mask, 1)  # [B, 1, K, C + K]
        kv_cache = []
        for layer, cache, encoder_kv in zip(
            self.layers, row_state.kv_cache, row_state.encoder_kv, strict=True
        ):
            x, cache = layer(x, num_beams, cache, mask, encoder_kv, row_state.source_mask)
            kv_cache.append(cache)
        if self.norm is not None:
            x = self.norm(x)
        logits = tf.cast(self.output(x), tf.float32)  # [R, V]
        logits = tf.reshape(logits, [-1, num_beams, logits.shape[1]])
        return logits, self_mask, row_state._replace(kv_cache=tuple(kv_cache))


class _LayerStep:
    """A decoder layer for one more position of each hypothesis, without dropout."""

    def __init__(self, layer: DecoderLayer, in_blocks: tf.Tensor) -> None:
        self.layer, self.in_blocks = layer, in_blocks
        attention = layer.self_attention
        num_heads, d_k, d_v = attention.num_heads, attention.d_k, attention.d_v
        self.sizes = [d_k, d_k, d_v]
        # One map for queries, keys and values: [q_1 k_1 v_1 q_2 k_2 v_2 ...] of the heads.
        dense = [attention.query_dense, attention.key_dense, attention.value_dense]
        scales = [attention.scale, 1.0, 1.0]

        def join(weights: list[tf.Tensor]) -> tf.Tensor:
            """[..., N * H] each -> [..., N * (2 d_k + d_v)]."""
            heads = [
                tf.reshape(weight * scale, [*weight.shape[:-1], num_heads, size])
                for weight, scale, size in zip(weights, scales, self.sizes, strict=True)
            ]
            return tf.reshape(tf.concat(heads, axis=-1), [*weights[0].shape[:-1], -1])

        kernel = join([layer.kernel for layer in dense])
        bias = join([layer.bias for layer in dense])
        self.self_qkv = _Linear(kernel, bias, layer.compute_dtype, in_blocks)
        self.self_output = self._linear(attention.output_dense)
        self.self_norm = _Norm(layer.self_attention_norm.norm)
        cross = layer.cross_attention
        self.cross_query = self._linear(cross.query_dense, cross.scale)
        self.cross_output = self._linear(cross.output_dense)
        self.cross_norm = _Norm(layer.cross_attention_norm.norm)
        self.inner = self._linear(layer.feed_forward.inner_dense)
        self.outer = self._linear(layer.feed_forward.output_dense)
        self.norm = _Norm(layer.feed_forward_norm.norm)

    def _linear(self, dense: keras.layers.Dense, scale: float = 1.0) -> "_Linear":
        """Returns the linear map of a dense layer, without its activation."""
        kernel, bias = dense.kernel, dense.bias
        if scale != 1.0:
            kernel, bias = kernel * scale, bias * scale
        return _Linear(kernel, bias, self.layer.compute_dtype, self.in_blocks)

    def __call__(
        self,
        x: tf.Tensor,
        num_beams: int,
        cache: KeysValues,
        mask: tf.Tensor | None,
        encoder_kv: KeysValues,
        source_mask: tf.Tensor,
    ) -> tuple[tf.Tensor, KeysValues]:
        """Returns the layer's output, float [R, D], and the longer cache."""
        y = self._sublayer_input(self.self_norm, x)
        qkv = _split_heads(self.self_qkv(y), num_beams, sum(self.sizes))
        query, key, value = tf.split(qkv, self.sizes, axis=3)  # [B, N, K, H] each
        cache = KeysValues(
            keys=tf.concat([cache.keys, key], axis=2),  # [B, N, C + K, H]
            values=tf.concat([cache.values, value], axis=2),
        )
        x = self._add(self.self_norm, x, self.self_output(_attend(query, cache, mask)))
        y = self._sublayer_input(self.cross_norm, x)
        query = _split_heads(self.cross_query(y), num_beams, self.sizes[0])
        x = self._add(
            self.cross_norm, x, self.cross_output(_attend(query, encoder_kv, source_mask))
        )
        y = self._sublayer_input(self.norm, x)
        inner = self.layer.feed_forward.inner_dense.activation(self.inner(y))  # [R, F]
        return self._add(self.norm, x, self.outer(inner)), cache

    def _sublayer_input(self, norm: "_Norm", x: tf.Tensor) -> tf.Tensor:
        return norm(x) if self.layer.norm_first else x

    def _add(self, norm: "_Norm", x: tf.Tensor, sublayer_output: tf.Tensor) -> tf.Tensor:
        x += tf.cast(sublayer_output, tf.float32)
        return x if self.layer.norm_first else norm(x)

    def encoder_kv(self, encoder_output: tf.Tensor) -> KeysValues:
        """Returns cross-attention's keys and values of an encoder's output [B, S, D]."""
        attention, length = self.layer.cross_attention, tf.shape(encoder_output)[1]
        keys, values = attention.key_dense(encoder_output), attention.value_dense(encoder_output)
        return KeysValues(
            keys=_split_heads(keys, length, attention.d_k),
            values=_split_heads(values, length, attention.d_v),
        )

    def empty_cache(self, num_rows: tf.Tensor) -> KeysValues:
        """Returns keys and values of 0 positions."""
        num_heads, dtype = self.layer.self_attention.num_heads, self.layer.compute_dtype
        return KeysValues(
            keys=tf.zeros([num_rows, num_heads, 0, self.sizes[1]], dtype),
            values=tf.zeros([num_rows, num_heads, 0, self.sizes[2]], dtype),
        )


class _Linear:
    """The linear map of a kernel, [in, out], or [out, in] if `transposed`, and maybe a bias, [out].

    A large kernel is multiplied in parts of its outputs, which are computed side by side. In
    float32, the parts consist of blocks, so that a product of few rows reads memory in order.
    """

    def __init__(
        self,
        kernel: tf.Tensor,
        bias: tf.Tensor | None,
        dtype: str,
        in_blocks: tf.Tensor,
        transposed: bool = False,
    ) -> None:
        kernel = tf.cast(tf.convert_to_tensor(kernel), dtype)
        self.size_in, self.size_out = kernel.shape[::-1] if transposed else kernel.shape
        self.in_blocks = in_blocks
        self.is_large = self.size_in * self.size_out >= MIN_BLOCKED_SIZE
        if self.is_large and not transposed:
            if dtype == "float32":
                kernel = tf.cond(in_blocks, lambda: self._to_blocks(kernel), lambda: kernel)
            else:  # faster in bfloat16, for few rows and for many
                kernel, transposed = _transpose(kernel, [1, 0]), True
        self.kernel, self.transposed = kernel, transposed
        self.negative_bias = None if bias is None else tf.cast(-bias, dtype)

    def _to_blocks(self, kernel: tf.Tensor) -> tf.Tensor:
        """Returns the memory of [out / 64, in, 64], and of what is left, in the shape [in, out]."""
        rest = self.size_out % BLOCK_OUTPUTS
        columns, rest_columns = tf.split(kernel, [self.size_out - rest, rest], axis=1)
        blocks = tf.reshape(columns, [self.size_in, -1, BLOCK_OUTPUTS])
        parts = [_transpose(blocks, [1, 0, 2]), rest_columns]
        return tf.reshape(tf.concat([tf.reshape(part, [-1]) for part in parts], 0), kernel.shape)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[R, in] -> [R, out]."""
        x = tf.cast(x, self.kernel.dtype)

        def multiply() -> tf.Tensor:
            return tf.matmul(x, self.kernel, transpose_b=self.transposed)

        def multiply_parts() -> tf.Tensor:
            num_blocks, rest = divmod(self.size_out, BLOCK_OUTPUTS)
            parts = [(num_blocks + part) // NUM_PARTS for part in range(NUM_PARTS)]
            sizes = [*(BLOCK_OUTPUTS * part for part in parts), *([rest] if rest else [])]
            # TensorFlow does not copy where it splits a matrix between its rows.
            kernels = tf.split(tf.reshape(self.kernel, [self.size_out, self.size_in]), sizes)
            if self.kernel.dtype != tf.float32:  # as fast without blocks
                return tf.concat([tf.matmul(x, part, transpose_b=True) for part in kernels], 1)

            def multiply_blocks(kernel: tf.Tensor, width: int) -> tf.Tensor:
                shape = [width, self.size_in] if self.transposed else [self.size_in, width]
                blocks = tf.reshape(kernel, [-1, *shape])
                return tf.matmul(x[None], blocks, transpose_b=self.transposed)  # [n, R, width]

            blocks = [multiply_blocks(kernel, BLOCK_OUTPUTS) for kernel in kernels[:NUM_PARTS]]
            columns = _transpose(tf.concat(blocks, axis=0), [1, 0, 2])
            products = [tf.reshape(columns, [tf.shape(x)[0], self.size_out - rest])]
            if rest:
                products.append(multiply_blocks(kernels[-1], rest)[0])
            return tf.concat(products, axis=1)

        if not self.is_large:
            products = multiply()
        elif self.kernel.dtype != tf.float32:
            products = multiply_parts()
        else:  # the shared embedding is not moved, so each step may choose
            few = tf.shape(x)[0] <= MAX_BLOCKED_ROWS if self.transposed else self.in_blocks
            products = tf.cond(few, multiply_parts, multiply)
        # TensorFlow would fuse product and sum, which is slower for few rows.
        return products if self.negative_bias is None else products - self.negative_bias


class _Norm:
    """A layer normalization in float32."""

    def __init__(self, layer: keras.layers.LayerNormalization) -> None:
        self.gamma = tf.cast(tf.convert_to_tensor(layer.gamma.value), tf.float32)
        self.beta = tf.cast(tf.convert_to_tensor(layer.beta.value), tf.float32)
        self.epsilon = layer.epsilon

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[R, D] -> [R, D]."""
        centered = x - tf.reduce_mean(x, axis=1, keepdims=True)
        # A product, because TensorFlow's squared difference is slower.
        variance = tf.reduce_mean(centered * centered, axis=1, keepdims=True)
        return centered * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta


def _attend(query: tf.Tensor, kv: KeysValues, mask: tf.Tensor | None) -> tf.Tensor:
    """Computes `dot_product_attention`, [R, N * d_v], of queries that are scaled, [B, N, K, d_k].

    The mask, [B, N, K, C], is added to the scores.
    """

    def add_mask(scores: tf.Tensor) -> tf.Tensor:
        scores = tf.cast(scores, tf.float32)  # [B, N, K, C]
        return scores if mask is None else scores + mask

    def attend() -> tf.Tensor:
        weights = tf.nn.softmax(add_mask(tf.matmul(query, kv.keys, transpose_b=True)))
        return tf.matmul(tf.cast(weights, query.dtype), kv.values)  # [B, N, K, d_v]

    def attend_without_onednn() -> tf.Tensor:
        # oneDNN implements neither BatchMatMulV3 nor log_softmax.
        x, keys, values = (tf.cast(tensor, tf.float32) for tensor in (query, kv.keys, kv.values))
        scores = tf.raw_ops.BatchMatMulV3(x=x, y=keys, Tout=tf.float32, adj_y=True)
        weights = tf.exp(tf.nn.log_softmax(add_mask(scores)))
        heads = tf.raw_ops.BatchMatMulV3(x=weights, y=values, Tout=tf.float32)
        return tf.cast(heads, query.dtype)

    num_beams = query.shape[2]
    is_small = num_beams * tf.size(kv.keys, tf.int64) <= ONEDNN_MIN_MULTIPLICATIONS
    heads = tf.cond(is_small, attend_without_onednn, attend)
    return tf.reshape(_swap(heads), [-1, query.shape[1] * kv.values.shape[3]])


def _split_heads(x: tf.Tensor, length: int | tf.Tensor, size: int) -> tf.Tensor:
    """[B * C, N * H] or [B, C, N * H] -> [B, N, C, H]."""
    return _swap(tf.reshape(x, [-1, length, x.shape[-1] // size, size]))


def _swap(x: tf.Tensor) -> tf.Tensor:
    """Swaps axes 1 and 2 of a tensor of rank 4."""
    if 1 in x.shape[1:3] and None not in x.shape[1:3]:  # nothing moves
        return tf.reshape(x, [-1, x.shape[2], x.shape[1], x.shape[3]])
    return _transpose(x, [0, 2, 1, 3])


def _transpose(x: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """Transposes the bits as integers, because a transposition of floats starts oneDNN."""
    integer = {8: tf.int64, 4: tf.int32, 2: tf.int16}[x.dtype.size]
    return tf.bitcast(tf.transpose(tf.bitcast(x, integer), axes), x.dtype)
