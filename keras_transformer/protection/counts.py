"""A constraint of the search: a protected string stands in a result as often as in its source.

Shapes (the package's glossary): B batch, K beams, V vocabulary. N is the number of slots, L the
number of places of slots in a source.
"""

from collections.abc import Sequence
from typing import NamedTuple

import regex
import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.search.constraints import SearchStep, forbid

State = tuple[tf.Tensor, tf.Tensor]  # counts of the ids, int32 [B, K, N]; what ends, bool [B, K]


class Counts(NamedTuple):
    """How often each of N ids stands in a result, and where.

    Attributes:
        least: int32 [B, N], how often each id must stand in a result.
        most: int32 [B, N], how often it may.
        opening: float32 [B, N, N], 1 where the second id opens what the first one closes.
        closing: float32 [B, N, N], 1 where both ids close the same.
        order: int32 [B, L], the ids in their order in the source, then -1.
        ranks: int32 [B, L], how often the id stands before.
        spaced: bool [B, L], whether a space stands before the id in a result that would end.
        is_last: bool [B], whether the source ends with an id.
        longest: int32 [B], tokens after which a sequence with missing ids ends.
    """

    least: tf.Tensor
    most: tf.Tensor
    opening: tf.Tensor
    closing: tf.Tensor
    order: tf.Tensor
    ranks: tf.Tensor
    spaced: tf.Tensor
    is_last: tf.Tensor
    longest: tf.Tensor


class CountConstraint(NamedTuple):
    """Each of the last N ids stands in a result a certain number of times.

    A result that the search cuts at its maximum length has all of them too. An id that closes waits
    for one that opens, as long as there is one that is not in the result yet.

    A model that has seen few ids may rather end than write one. A sequence whose likeliest next
    token is the end, or a mark and then the end, gets what is missing in the order of the source,
    and so does one that is too long. Then only one more mark and the end may follow.

    Attributes:
        counts: for each source.
        space: the id that writes a space, or -1.
        is_mark: bool [V], whether an id writes punctuation.
    """

    counts: Counts
    space: int
    is_mark: tf.Tensor

    @classmethod
    def of(cls, counts: Counts, spellings: Sequence[bytes]) -> "CountConstraint":
        """Takes the bytes that each id writes."""
        texts = [each.decode(errors="replace") for each in spellings]
        is_mark = [bool(regex.fullmatch(r" ?\p{P}+", text)) for text in texts]
        return cls(counts, texts.index(" ") if " " in texts else -1, tf.constant(is_mark))

    @property
    def min_tokens(self) -> tf.Tensor:
        """How many ids a result needs; see `Constraint`."""
        return tf.reduce_sum(self.counts.least, axis=1)

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[State, Counts]:
        """Returns the counts of the ids, what ends, and `counts` of the rows; see `Constraint`."""
        shape = [tf.size(rows), beam_size]
        counts = tf.zeros([*shape, self.counts.least.shape[1]], tf.int32)
        row_state = Counts(*(tf.gather(each, rows) for each in self.counts))
        return (counts, tf.zeros(shape, tf.bool)), row_state

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: State, row_state: Counts
    ) -> tuple[tf.Tensor, State]:
        """Forbids ids, the end or all but ids; see `Constraint`."""
        num_ids = row_state.least.shape[1]
        first_id = logits.shape[2] - num_ids
        counts = state[0] + tf.one_hot(step.newest - first_id, num_ids, dtype=tf.int32)
        num_left = (step.max_lengths - step.position - 1)[:, None]  # that may follow the next one
        missing = tf.maximum(row_state.least[:, None] - counts, 0)  # [B, K, N]
        num_missing = tf.reduce_sum(missing, axis=2)  # [B, K]
        waits = _waiting(row_state, counts, missing)
        restricted = _restrict(logits, row_state, counts, waits, num_left)

        def ending() -> tuple[tf.Tensor, tf.Tensor]:
            has_missing = num_missing > 0
            # A prefix may have gone on with another word.
            is_id = (step.newest >= first_id) | (step.newest == self.space)
            was_mark = tf.gather(self.is_mark, step.newest)
            ends = self._would_end(step, has_missing & (num_left > 0), row_state)
            ends = has_missing & (ends | (step.position >= row_state.longest)[:, None])
            ends |= state[1] & (is_id | was_mark)
            place = _next_place(row_state, counts, waits)  # [B, K]
            next_id = first_id + tf.gather(row_state.order, place, batch_dims=1)
            needs_space = tf.gather(row_state.spaced, place, batch_dims=1)
            needs_space &= (step.newest != self.space) & (num_left >= num_missing)
            next_id = tf.where(needs_space & (self.space >= 0), self.space, next_id)
            is_next = tf.range(logits.shape[2]) == next_id[:, :, None]
            closes = self.is_mark & ~was_mark[:, :, None]
            closes |= tf.range(logits.shape[2]) == EOS_ID
            allowed = tf.where(has_missing[:, :, None], is_next, closes)  # [B, K, V]
            forced = forbid(step.logits, allowed[:, :, 1:])
            return tf.where(ends[:, :, None], forced, restricted), ends

        is_needed = tf.reduce_any(num_missing > 0) | tf.reduce_any(state[1])
        restricted, ends = tf.cond(is_needed, ending, lambda: (restricted, state[1]))
        return restricted, (counts, ends)

    def _would_end(self, step: SearchStep, may_wait: tf.Tensor, row_state: Counts) -> tf.Tensor:
        """Returns whether the model would end a sequence now, or after a mark, bool [B, K]."""
        best = _likeliest(step.logits)
        mark = may_wait & tf.gather(self.is_mark, best) & ~row_state.is_last[:, None]
        after = tf.cond(
            tf.reduce_any(mark),
            lambda: mark & (_likeliest(step.following(best)) == EOS_ID),
            lambda: mark,
        )
        return (best == EOS_ID) | after


def _likeliest(logits: tf.Tensor) -> tf.Tensor:
    """Returns the likeliest id that a result may have, [B, K, V] -> int32 [B, K]."""
    return EOS_ID + tf.argmax(logits[:, :, EOS_ID:], axis=2, output_type=tf.int32)


def _next_place(row_state: Counts, counts: tf.Tensor, waits: tf.Tensor) -> tf.Tensor:
    """Returns the first place of the source whose id is missing and does not wait, [B, K]."""
    order = tf.maximum(row_state.order, 0)
    num_written = tf.gather(tf.transpose(counts, [0, 2, 1]), order, batch_dims=1)  # [B, L, K]
    must_wait = tf.gather(tf.transpose(waits, [0, 2, 1]), order, batch_dims=1)
    is_missing = (row_state.ranks[:, :, None] >= num_written) & ~must_wait
    is_missing &= row_state.order[:, :, None] >= 0
    return tf.argmax(tf.cast(is_missing, tf.int32), axis=1, output_type=tf.int32)


def _waiting(row_state: Counts, counts: tf.Tensor, missing: tf.Tensor) -> tf.Tensor:
    """Returns which ids close something and wait for what opens it, bool [B, K, N]."""

    def total(counts: tf.Tensor, of: tf.Tensor) -> tf.Tensor:
        return tf.einsum("bkm,bnm->bkn", tf.cast(counts, tf.float32), of)

    waits = total(counts, row_state.opening) <= total(counts, row_state.closing)
    waits &= total(missing, row_state.opening) > 0
    return waits & (tf.reduce_sum(row_state.closing, axis=2) > 0)[:, None]


def _restrict(
    logits: tf.Tensor, row_state: Counts, counts: tf.Tensor, waits: tf.Tensor, num_left: tf.Tensor
) -> tf.Tensor:
    """Forbids what must not follow.

    Args:
        logits: float32 [B, K, V].
        row_state: what results must keep to.
        counts: int32 [B, K, N], of the ids in each sequence.
        waits: bool [B, K, N].
        num_left: int32 [B, 1].
    """
    missing = tf.maximum(row_state.least[:, None] - counts, 0)
    num_missing = tf.reduce_sum(missing, axis=2)  # [B, K]
    is_full = (num_missing > 0) & (num_left < num_missing)
    may_follow = (counts < row_state.most[:, None]) & ~waits
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
