"""The attention weights of a translation, for pictures."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.texts.texts import TextSearch
from keras_transformer.tokenizers import EncodedTexts, Side, Tokenizer, shifted


class Attention(NamedTuple):
    """The attention weights of all layers and heads, as in `AttentionScores`, of a translation.

    Query t of `decoder` and `cross` predicts `target_pieces[t]` from `decoder_pieces[: t + 1]`.
    A model without self-attention has `cross` only: `encoder` and `decoder` then have L = 0.
    """

    source_pieces: tuple[str, ...]  # the S tokens of the source, its end included
    target_pieces: tuple[str, ...]  # the T tokens of the translation, its end included
    decoder_pieces: tuple[str, ...]  # the T input tokens of the decoder, from the start symbol on
    encoder: np.ndarray  # float32 [L, N, S, S]
    decoder: np.ndarray  # float32 [L, N, T, T]
    cross: np.ndarray  # float32 [L, N, T, S]


class AttentionReader:
    """Computes attention weights without dropout, by graphs that are made once."""

    def __init__(
        self, model: EncoderDecoder, tokenizer: Tokenizer, options: DecodingOptions
    ) -> None:
        self.tokenizer, self.search = tokenizer, TextSearch(model, tokenizer, options)

        def scores_of(source_ids: tf.Tensor, decoder_ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
            scores = model.attention_scores(source_ids, decoder_ids)
            none = tf.zeros([0, 1, 0, 0])  # of a model without self-attention
            return tuple(
                tf.cast(tf.stack(kind), tf.float32)[:, 0] if kind else none for kind in scores
            )

        def best_ids(source: EncodedTexts) -> tf.Tensor:
            return self.search.search(source).ids[:, 0]

        self._scores = tf.function(
            scores_of, [tf.TensorSpec([1, None], tf.int32)] * 2, autograph=False
        )
        self._best_ids = tf.function(best_ids, [tokenizer.spec], autograph=False)

    def read(self, source: str, target: str | None) -> Attention:
        """Computes the weights of a translation; None for the model's own one."""
        for name, text in (("source", source), ("target", "" if target is None else target)):
            if not isinstance(text, str):
                raise InputError(f"`{name}` must be a string. Received: {name}={text!r}")
        sources, targets = _to_tensor(source), _to_tensor(target or "")
        encoded = self.tokenizer.encode(sources, self.search.max_source_tokens)
        # Without a target, this is the end symbol: the translation of a text without tokens.
        _, given = self.tokenizer.encode_pairs(
            sources, targets, max_target_length=self.search.max_target_tokens
        )
        target_ids = given.ids
        if target is None and encoded.lengths[0]:
            target_ids = self._best_ids(encoded)  # [1, T]
        decoder_ids = shifted(target_ids)
        scores = self._scores(encoded.ids, decoder_ids)
        return Attention(
            _pieces(self.tokenizer.source, encoded.ids),
            _pieces(self.tokenizer.target, target_ids),
            _pieces(self.tokenizer.target, decoder_ids),
            *(kind.numpy() for kind in scores),
        )


def _to_tensor(text: str) -> tf.Tensor:
    return tf.constant([text.encode("utf-8", errors="replace")], tf.string)


def _pieces(side: Side, ids: tf.Tensor) -> tuple[str, ...]:
    return tuple(piece.decode() for piece in side.pieces(ids)[0].numpy())
