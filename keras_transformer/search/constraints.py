"""What the results of a search must keep to.

Shapes (the package's glossary): B batch, K beams, V vocabulary. N is a number of ids.
"""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.search.beam_search import StepFunction


class Constraint(Protocol):
    """Restricts what a search finds. The rows of a call are its sources."""

    @property
    def min_lengths(self) -> tf.Tensor:
        """The number of tokens that each row's shortest result needs, the end included, int32."""

    def apply(
        self,
        step_fn: StepFunction,
        cache: Any,
        row_state: Any,
        rows: tf.Tensor,
        max_lengths: tf.Tensor,
        beam_size: int,
    ) -> tuple[StepFunction, Any, Any]:
        """Returns the step function of some rows, restricted, its `cache` and its `row_state`.

        The logits of tokens that must not follow become -inf. At least one token may follow each
        sequence, also one that the search has given up.

        Args:
            step_fn: the step function; see `beam_search`.
            cache: its state of the hypotheses, leading dimensions B, K.
            row_state: its state of the rows, leading dimension B.
            rows: int32 [B], the rows' numbers.
            max_lengths: int32 [B], at least their `min_lengths`.
            beam_size: K.
        """


class CountConstraint(NamedTuple):
    """Each of the last N ids stands in a result a certain number of times.

    A result that the search cuts at its maximum length has all of them too. An id that closes waits
    for one that opens, as long as there is one that is not in the result yet.

    Attributes:
        least: int32 [B, N], how often each id must stand in a result.
        most: int32 [B, N], how often it may.
        opening: float32 [B, N, N], 1 where the second id opens what the first one closes.
        closing: float32 [B, N, N], 1 where both ids close the same.
    """

    least: tf.Tensor
    most: tf.Tensor
    opening: tf.Tensor
    closing: tf.Tensor

    @property
    def min_lengths(self) -> tf.Tensor:
        """The number of tokens that each row's shortest result needs; see `Constraint`."""
        return tf.reduce_sum(self.least, axis=1) + 1

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
        own = CountConstraint(*(tf.gather(each, rows) for each in self))
        num_ids = self.least.shape[1]
        counts = tf.zeros([tf.size(rows), beam_size, num_ids], tf.int32)

        def step(
            newest: tf.Tensor, position: tf.Tensor, beams: Any, rows: Any
        ) -> tuple[tf.Tensor, Any, Any]:
            (cache, counts), (row_state, own, max_lengths) = beams, rows
            logits, cache, row_state = step_fn(newest, position, cache, row_state)
            counts += tf.one_hot(newest - (logits.shape[2] - num_ids), num_ids, dtype=tf.int32)
            num_left = max_lengths - position - 1  # tokens that may follow the next one
            logits = own._restrict(logits, counts, num_left[:, None])
            return logits, (cache, counts), (row_state, own, max_lengths)

        return step, (cache, counts), (row_state, own, max_lengths)

    def _restrict(self, logits: tf.Tensor, counts: tf.Tensor, num_left: tf.Tensor) -> tf.Tensor:
        """Forbids what must not follow.

        Args:
            logits: float32 [B, K, V].
            counts: int32 [B, K, N], of the ids in each sequence.
            num_left: int32 [B, 1].
        """
        missing = tf.maximum(self.least[:, None] - counts, 0)  # [B, K, N]
        num_missing = tf.reduce_sum(missing, axis=2)  # [B, K]
        is_full = (num_missing > 0) & (num_left < num_missing)

        def total(counts: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
            return tf.einsum("bkm,bnm->bkn", tf.cast(counts, tf.float32), of)

        is_closed = total(counts, self.opening) <= total(counts, self.closing)
        waits = is_closed & (total(missing, self.opening) > 0)
        waits &= (tf.reduce_sum(self.closing, axis=2) > 0)[:, None]
        may_follow = (counts < self.most[:, None]) & ~waits
        may_follow &= (missing > 0) | ~is_full[:, :, None]
        never = -float("inf")
        start, words, ids = tf.split(logits, [EOS_ID + 1, -1, counts.shape[2]], axis=2)
        has_missing, is_full = num_missing[:, :, None] > 0, is_full[:, :, None]
        end = start[:, :, EOS_ID:]

        def without_words() -> tuple[tf.Tensor, tf.Tensor]:
            forbidden = tf.where(is_full, words, never)
            lost = tf.reduce_logsumexp(forbidden, axis=2, keepdims=True)
            return tf.where(is_full, never, words), lost

        words, lost = tf.cond(
            tf.reduce_any(is_full), without_words, lambda: (words, tf.fill(tf.shape(end), never))
        )
        # The search never takes padding. What is forbidden leaves its probability there, so that
        # scores are those of a search without the constraint.
        lost = [start[:, :, :1], lost, tf.where(has_missing, end, never)]
        lost += [tf.where(may_follow, never, ids)]
        padding = tf.reduce_logsumexp(tf.concat(lost, axis=2), axis=2, keepdims=True)
        end, ids = tf.where(has_missing, never, end), tf.where(may_follow, ids, never)
        return tf.concat([padding, start[:, :, 1:EOS_ID], end, words, ids], axis=2)
