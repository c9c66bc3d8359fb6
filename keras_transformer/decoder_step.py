"""The step function of a search with a `Transformer`: the decoder for one more token, made fast.

It computes what `Transformer.decode` computes for the last position, and the tests compare the two.
Every optimization of a search step is in this module (docs/speed.md has the figures):

- The weights are prepared once for each call: they are cast to the compute dtype, and the shared
  embedding is transposed for the output projection.
- All hypotheses of a sentence share its keys and values, those of the encoder's output and those
  of earlier positions. They are never moved; a mask selects the positions of each hypothesis.
- Each product has one row for each hypothesis.
- Small products, softmaxes and transpositions avoid oneDNN, whose operations take 30 to 40 us to
  start.

Shapes (the package's glossary): B batch, K beams, S source length, C positions in the cache of a
sentence, D d_model, N heads, H head size (d_k or d_v), V vocabulary.
"""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.attention import MASKED_SCORE
from keras_transformer.layers import DecoderLayer
from keras_transformer.masks import padding_mask
from keras_transformer.model import Transformer

ONEDNN_MIN_MULTIPLICATIONS = 2**20  # a product of more multiplications is faster by oneDNN

_KEYS, _VALUES = (0, 2, 3, 1), (0, 2, 1, 3)  # [B, C, N, H] -> [B, N, H, C], [B, N, C, H]


class KeysValues(NamedTuple):
    """The keys and values that queries attend to.

    Attributes:
        keys: float [B, N, H, C], so that scores are a product without a transposition.
        values: float [B, N, C, H].
    """

    keys: tf.Tensor
    values: tf.Tensor


class RowState(NamedTuple):
    """What the decoder keeps of a batch of sentences.

    Attributes:
        encoder_kv: of each layer, cross-attention's keys and values of the encoder's output.
        source_mask: float [B, 1, 1, S], 0 at tokens and `MASKED_SCORE` at padding.
        kv_cache: of each layer, self-attention's keys and values of all earlier positions of all
            hypotheses, C for each sentence.
    """

    encoder_kv: tuple[KeysValues, ...]
    source_mask: tf.Tensor
    kv_cache: tuple[KeysValues, ...]


class _Linear:
    """The linear map of a kernel, [in, out], and maybe a bias, [out]."""

    def __init__(self, kernel: tf.Tensor, bias: tf.Tensor | None, dtype: str) -> None:
        self.kernel = tf.cast(kernel, dtype)
        self.bias = None if bias is None else tf.cast(bias, dtype)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[R, in] -> [R, out]."""
        products = tf.matmul(x, self.kernel)
        if self.bias is None:
            return products
        # The reshape keeps TensorFlow from fusing product and sum, which is slower for few rows.
        separate = tf.reshape(products, [-1, 1, products.shape[1]])
        return tf.reshape(separate + self.bias, [-1, products.shape[1]])


class DecoderStep:
    """The step function of `decoding.search`, with the current weights of a model.

    For the search, its `cache` is the tensor `ancestors`, and its `row_state` is a `RowState`.

    Args:
        model: the model.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.dtype = model.compute_dtype
        self.layers = [_LayerStep(layer) for layer in model.decoder_layers]
        if model.output_dense is None:
            embedding = model.target_embedding
            kernel = tf.transpose(embedding.token_embedding.embeddings.value)
            bias = embedding.output_bias
        else:
            kernel, bias = model.output_dense.kernel.value, model.output_dense.bias
        self.output = _Linear(kernel, None if bias is None else bias.value, self.dtype)

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[tf.Tensor, RowState]:
        """Encodes sources and returns the state before the first step.

        Args:
            source_ids: int32 [B, S], with at least one token in each row.
            beam_size: hypotheses of each source, K.

        Returns:
            The ancestors of the hypotheses, bool [B * K, 0], and the state of the rows.
        """
        encoder_output = self.model.encode(source_ids, training=False)  # [B, S, D]
        num_rows = tf.shape(source_ids)[0]
        is_token = tf.cast(padding_mask(source_ids), tf.float32)  # [B, 1, 1, S]
        row_state = RowState(
            encoder_kv=tuple(layer.encoder_kv(encoder_output) for layer in self.layers),
            source_mask=(1.0 - is_token) * MASKED_SCORE,
            kv_cache=tuple(layer.empty_cache(num_rows) for layer in self.layers),
        )
        return tf.zeros([num_rows * beam_size, 0], tf.bool), row_state

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, ancestors: tf.Tensor, row_state: RowState
    ) -> tuple[tf.Tensor, tf.Tensor, RowState]:
        """Computes the logits that follow one more token of each hypothesis.

        Args:
            target_ids: int32 [B, K], the newest token of each hypothesis.
            position: int32 [], its position, counted from 0 (the start symbol's).
            ancestors: bool [B * K, C], True at the positions in the sentence's cache that belong to
                a hypothesis. The search gathers its rows when hypotheses change places.
            row_state: the result of `initial_state` or of the previous step.

        Returns:
            Logits, float32 [B, K, V], and `ancestors` and `row_state` with K more positions.
        """
        num_beams = target_ids.shape[1]
        mask = None  # a single hypothesis attends to all positions
        if num_beams > 1:
            own = tf.tile(tf.eye(num_beams, dtype=tf.bool), [tf.shape(target_ids)[0], 1])
            ancestors = tf.concat([ancestors, own], axis=1)  # [B * K, C + K]
            mask = (1.0 - tf.cast(ancestors, tf.float32)) * MASKED_SCORE
            mask = tf.reshape(mask, [-1, 1, num_beams, tf.shape(mask)[1]])  # [B, 1, K, C + K]
        ids = tf.reshape(target_ids, [-1, 1])  # [B * K, 1]
        embedded = self.model.target_embedding(ids, start=position, training=False)
        x = tf.reshape(embedded, [-1, self.model.config.d_model])  # [B * K, D]
        kv_cache = []
        for layer, cache, encoder_kv in zip(
            self.layers, row_state.kv_cache, row_state.encoder_kv, strict=True
        ):
            x, cache = layer(x, num_beams, cache, mask, encoder_kv, row_state.source_mask)
            kv_cache.append(cache)
        logits = tf.cast(self.output(x), tf.float32)  # [B * K, V]
        logits = tf.reshape(logits, [-1, num_beams, logits.shape[1]])
        return logits, ancestors, row_state._replace(kv_cache=tuple(kv_cache))


class _LayerStep:
    """A decoder layer for one more position of each hypothesis, without dropout."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.layer = layer
        self.dtype = layer.compute_dtype
        self.self_query = self._linear(layer.self_attention.query_dense)
        self.self_key = self._linear(layer.self_attention.key_dense)
        self.self_value = self._linear(layer.self_attention.value_dense)
        self.self_output = self._linear(layer.self_attention.output_dense)
        self.cross_query = self._linear(layer.cross_attention.query_dense)
        self.cross_output = self._linear(layer.cross_attention.output_dense)
        self.inner = self._linear(layer.feed_forward.inner_dense)
        self.outer = self._linear(layer.feed_forward.output_dense)

    def _linear(self, dense: keras.layers.Dense) -> _Linear:
        """Returns the linear map of a dense layer, without its activation."""
        bias = dense.bias.value if dense.use_bias else None
        return _Linear(dense.kernel.value, bias, self.dtype)

    def __call__(
        self,
        x: tf.Tensor,
        num_beams: int,
        cache: KeysValues,
        mask: tf.Tensor | None,
        encoder_kv: KeysValues,
        source_mask: tf.Tensor,
    ) -> tuple[tf.Tensor, KeysValues]:
        """Returns the layer's output, float [B * K, D], and the longer cache."""
        d_k, d_v = self.layer.self_attention.d_k, self.layer.self_attention.d_v
        key = _heads(self.self_key(x), num_beams, d_k, _KEYS)  # [B, N, H, K]
        value = _heads(self.self_value(x), num_beams, d_v, _VALUES)  # [B, N, K, H]
        cache = KeysValues(
            keys=tf.concat([cache.keys, key], axis=3),  # [B, N, H, C + K]
            values=tf.concat([cache.values, value], axis=2),  # [B, N, C + K, H]
        )
        attended = _attend(self.self_query(x), num_beams, cache, mask)  # [B * K, N * H]
        x = self.layer.self_attention_norm(x, self.self_output(attended), training=False)
        attended = _attend(self.cross_query(x), num_beams, encoder_kv, source_mask)
        x = self.layer.cross_attention_norm(x, self.cross_output(attended), training=False)
        inner = self.layer.feed_forward.inner_dense.activation(self.inner(x))  # [B * K, F]
        x = self.layer.feed_forward_norm(x, self.outer(inner), training=False)
        return x, cache

    def encoder_kv(self, encoder_output: tf.Tensor) -> KeysValues:
        """Returns cross-attention's keys and values of an encoder's output [B, S, D]."""
        attention = self.layer.cross_attention
        length = tf.shape(encoder_output)[1]
        keys, values = attention.key_dense(encoder_output), attention.value_dense(encoder_output)
        return KeysValues(
            keys=tf.transpose(_split_heads(keys, length, attention.d_k), _KEYS),
            values=tf.transpose(_split_heads(values, length, attention.d_v), _VALUES),
        )

    def empty_cache(self, num_rows: tf.Tensor) -> KeysValues:
        """Returns keys and values of 0 positions."""
        attention = self.layer.self_attention
        return KeysValues(
            keys=tf.zeros([num_rows, attention.num_heads, attention.d_k, 0], self.dtype),
            values=tf.zeros([num_rows, attention.num_heads, 0, attention.d_v], self.dtype),
        )


def _attend(query: tf.Tensor, num_beams: int, kv: KeysValues, mask: tf.Tensor | None) -> tf.Tensor:
    """Computes `dot_product_attention` with the hypotheses as the positions of the query.

    The query and the result are [B * K, N * H]. The mask, [B, N, K, C], is added to the scores.
    """
    d_k, d_v = kv.keys.shape[2], kv.values.shape[3]
    query = _heads(query * d_k**-0.5, num_beams, d_k, _VALUES)  # [B, N, K, H]

    def attend() -> tf.Tensor:
        scores = tf.cast(tf.matmul(query, kv.keys), tf.float32)  # [B, N, K, C]
        weights = tf.nn.softmax(scores if mask is None else scores + mask)
        return tf.matmul(tf.cast(weights, query.dtype), kv.values)  # [B, N, K, H]

    def attend_without_onednn() -> tf.Tensor:
        # oneDNN implements neither BatchMatMulV3 nor log_softmax.
        scores = tf.raw_ops.BatchMatMulV3(x=query, y=kv.keys, Tout=tf.float32)
        weights = tf.exp(tf.nn.log_softmax(scores if mask is None else scores + mask))
        return tf.raw_ops.BatchMatMulV3(x=weights, y=kv.values, Tout=tf.float32)

    if query.dtype == tf.float32:
        is_small = num_beams * tf.size(kv.keys, tf.int64) <= ONEDNN_MIN_MULTIPLICATIONS
        heads = tf.cond(is_small, attend_without_onednn, attend)
    else:
        heads = attend()
    heads = _transpose(heads, (0, 2, 1, 3))  # [B, K, N, H]
    return tf.reshape(heads, [-1, heads.shape[2] * d_v])


def _heads(x: tf.Tensor, num_beams: int, size: int, axes: tuple[int, ...]) -> tf.Tensor:
    """[B * K, N * H] -> [B, K, N, H], then transposed."""
    return _transpose(_split_heads(x, num_beams, size), axes)


def _split_heads(x: tf.Tensor, length: int | tf.Tensor, size: int) -> tf.Tensor:
    """[B * C, N * H] or [B, C, N * H] -> [B, C, N, H]."""
    return tf.reshape(x, [-1, length, x.shape[-1] // size, size])


def _transpose(x: tf.Tensor, axes: tuple[int, ...]) -> tf.Tensor:
    """Transposes the bits as integers, because a transposition of floats starts oneDNN."""
    integer = {8: tf.int64, 4: tf.int32, 2: tf.int16}[x.dtype.size]
    return tf.bitcast(tf.transpose(tf.bitcast(x, integer), axes), x.dtype)
