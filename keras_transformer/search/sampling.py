"""Random translations: each token is drawn from the model's probabilities.

Shapes (the package's glossary): B batch, S source length, K beams, V vocabulary.
"""

from typing import Any, NamedTuple, Self

import tensorflow as tf

from keras_transformer.config import PAD_ID, DecodingOptions
from keras_transformer.search.beam_search import NUM_SUPPRESSED, StepFunction
from keras_transformer.search.constraints import Constraint, forbid

NUM_RANDOM = 2**22  # float32 holds all their quotients, below 1


class SampleConstraint(NamedTuple):
    """A search finds a random sequence: all tokens but a random one are forbidden at each step.

    The score is the model's log probability, as that of a search. A random number depends on the
    seed, the source and the position only, so a translation does not depend on its batch.

    Attributes:
        keys: string [B], the sources and the seed.
        options: how to sample.
        other: what a result must keep to as well.
    """

    keys: tf.Tensor
    options: DecodingOptions
    other: Constraint

    @classmethod
    def of(cls, source_ids: tf.Tensor, options: DecodingOptions, other: Constraint) -> Self:
        """Makes the keys of sources, int32 [B, S]."""
        words = tf.strings.as_string(source_ids) + " "
        words = tf.where(source_ids == PAD_ID, "", words)  # padding depends on the batch
        sources = tf.strings.reduce_join(words, axis=1)
        return cls(sources + str(options.sample_seed), options, other)

    @property
    def min_lengths(self) -> tf.Tensor:
        """The number of tokens that each row's result needs; see `Constraint`."""
        return self.other.min_lengths

    def apply(
        self,
        step_fn: StepFunction,
        cache: Any,
        row_state: Any,
        rows: tf.Tensor,
        max_lengths: tf.Tensor,
        beam_size: int,
    ) -> tuple[StepFunction, Any, Any]:
        """Restricts a step function; see `Constraint`."""
        of_rest, cache, row_state = self.other.apply(
            step_fn, cache, row_state, rows, max_lengths, beam_size
        )

        def step(
            newest: tf.Tensor, position: tf.Tensor, cache: Any, rows: Any
        ) -> tuple[tf.Tensor, Any, Any]:
            row_state, keys = rows
            logits, cache, row_state = of_rest(newest, position, cache, row_state)
            chosen = self._draw(logits, keys, position)  # [B, K]
            is_chosen = tf.range(1, logits.shape[2]) == chosen[:, :, None]
            return forbid(logits, is_chosen), cache, (row_state, keys)

        return step, cache, (row_state, tf.gather(self.keys, rows))

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
