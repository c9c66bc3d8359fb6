"""The step function of a search with a `NextWordTransformer`."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.parsing.next_word import NextWordTransformer, at_words, is_word, word_indices
from keras_transformer.search.decoder_step import DecoderStep, RowState


class WordBeams(NamedTuple):
    """The `cache` of the search: that of a `DecoderStep`, and each hypothesis's number of words."""

    self_mask: tf.Tensor  # float [B, K, C]
    num_words: tf.Tensor  # int32 [B, K]


class WordRows(NamedTuple):
    """The `row_state` of the search: that of a `DecoderStep`, and the source's words."""

    rows: RowState
    encoder_output: tf.Tensor  # float [B, S, D]
    indices: tf.Tensor  # int32 [B, S], the `word_indices`


class NextWordStep:
    """A `DecoderStep` that also reads the encoder's output at the next word."""

    def __init__(
        self,
        model: NextWordTransformer,
        max_length: int | tf.Tensor,
        num_sequences: int | tf.Tensor,
    ) -> None:
        self.decoder = DecoderStep(model, max_length, num_sequences)
        self.source_end, self.target_end = model.config.word_id_ends

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[WordBeams, WordRows]:
        encoder_output = self.decoder.model.encode(source_ids, training=False)  # [B, S, D]
        self_mask, rows = self.decoder.state_of(encoder_output, source_ids, beam_size)
        num_words = tf.zeros([tf.shape(source_ids)[0], beam_size], tf.int32)
        indices = word_indices(source_ids, self.source_end)
        return WordBeams(self_mask, num_words), WordRows(rows, encoder_output, indices)

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, beams: WordBeams, rows: WordRows
    ) -> tuple[tf.Tensor, WordBeams, WordRows]:
        num_words = beams.num_words + tf.cast(is_word(target_ids, self.target_end), tf.int32)
        next_words = at_words(rows.encoder_output, rows.indices, num_words)  # [B, K, D]
        x = self.decoder.embed(target_ids, position)  # [R, D]
        x += tf.cast(tf.reshape(next_words, tf.shape(x)), tf.float32)
        logits, self_mask, decoder_rows = self.decoder.decode(
            x, target_ids.shape[1], beams.self_mask, rows.rows
        )
        return logits, WordBeams(self_mask, num_words), rows._replace(rows=decoder_rows)
