"""Random translations: each token is drawn from the model's probabilities."""

import dataclasses
from typing import Any, Self

import tensorflow as tf

from keras_transformer.config import PAD_ID, DecodingOptions
from keras_transformer.search.beam_search import NUM_SUPPRESSED
from keras_transformer.search.constraints import Constraint, SearchStep, forbid

NUM_RANDOM = 2**22  # float32 holds all their quotients, below 1


@dataclasses.dataclass(frozen=True, eq=False)
class SampleConstraint(Constraint):
    """Makes a search sample: each step forbids all tokens but one, which is drawn at random.

    The score is the model's log probability, as that of a search. A random number depends on the
    seed, the source and the position only, so a translation does not depend on its batch.
    """

    keys: tf.Tensor  # string [B], the sources and the seed
    options: DecodingOptions

    @classmethod
    def of(cls, source_ids: tf.Tensor, options: DecodingOptions, seed: int | tf.Tensor) -> Self:
        """Makes the keys of sources, int32 [B, S], and a seed."""
        words = tf.strings.as_string(source_ids) + " "
        words = tf.where(source_ids == PAD_ID, "", words)  # padding depends on the batch
        sources = tf.strings.reduce_join(words, axis=1)
        return cls(sources + tf.strings.as_string(seed), options)

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[Any, tf.Tensor]:
        return (), tf.gather(self.keys, rows)

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: Any, row_state: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        chosen = self._draw(logits, row_state, step.position)  # [B, K]
        is_chosen = tf.range(1, logits.shape[2]) == chosen[:, :, None]
        return forbid(logits, is_chosen), state

    def _draw(self, logits: tf.Tensor, keys: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Draws a token of each sequence, int32 [B, K], from logits, float32 [B, K, V]."""
        logits = logits[:, :, NUM_SUPPRESSED:] / self.options.temperature
        count = min(self.options.sample_from or 1, logits.shape[2])
        likeliest, ids = tf.math.top_k(logits, count)  # [B, K, count]
        sums = tf.cumsum(tf.nn.softmax(likeliest), axis=2)
        number = tf.strings.to_hash_bucket_fast(
            tf.strings.join([keys, tf.strings.as_string(position)], " "), NUM_RANDOM
        )
        share = tf.cast(number, tf.float32)[:, None, None] / NUM_RANDOM
        is_before = sums <= share * sums[:, :, -1:]
        place = tf.reduce_sum(tf.cast(is_before, tf.int32), axis=2, keepdims=True)
        return tf.gather(ids, place, batch_dims=2)[:, :, 0] + NUM_SUPPRESSED
