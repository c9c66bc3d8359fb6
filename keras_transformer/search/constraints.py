"""What the results of a search must keep to.

Shapes (the package's glossary): B batch, K beams, V vocabulary. N is a number of ids, L a number of
bytes, and M the number of bytes of the longest piece.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.search.beam_search import NUM_SUPPRESSED, StepFunction


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
            max_lengths: int32 [B], at least their `min_lengths`, unless the model has fewer
                positions.
            beam_size: K.
        """


class NoConstraint(NamedTuple):
    """A search finds what the model finds best."""

    @property
    def min_lengths(self) -> tf.Tensor:
        """The end of a result; see `Constraint`."""
        return tf.constant(1)

    def apply(
        self,
        step_fn: StepFunction,
        cache: Any,
        row_state: Any,
        rows: tf.Tensor,
        max_lengths: tf.Tensor,
        beam_size: int,
    ) -> tuple[StepFunction, Any, Any]:
        """Returns the step function as it is; see `Constraint`."""
        return step_fn, cache, row_state


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


FREE_TOKENS = 4  # the most tokens at the end of a prefix that the search may choose anew


class PrefixConstraint(NamedTuple):
    """A result begins with certain tokens, and then with a text.

    The text is the last word of a prefix. The search chooses its tokens, because the word may go
    on: "Haus" may become "Hausboot", which has other pieces. A prefix holds, whatever another
    constraint forbids. Scores are those of a search without constraint, as for `CountConstraint`.

    Attributes:
        ids: int32 [B, N], the tokens, then padding.
        text: int32 [B, L], the bytes of the text, then zeros.
        spellings: int32 [V, M], the bytes of each id, then zeros; only zeros for an id that cannot
            be in a text.
        other: what the rest of a result must keep to.
    """

    ids: tf.Tensor
    text: tf.Tensor
    spellings: tf.Tensor
    other: Constraint

    @classmethod
    def of(
        cls,
        tokens: tf.RaggedTensor,
        is_word_over: tf.Tensor,
        spellings: Sequence[bytes],
        other: Constraint,
    ) -> Self:
        """Divides prefixes before their last words.

        Args:
            tokens: int32 [B, (tokens)].
            is_word_over: bool [B], whether the next token must begin a word.
            spellings: the bytes of each id; those of an id that begins a word begin with a space.
            other: as for the class.
        """
        table = np.zeros([len(spellings), max(map(len, spellings))], np.int32)
        for row, spelling in zip(table, spellings, strict=True):
            row[: len(spelling)] = list(spelling)
        ids, lengths = tokens.to_tensor(PAD_ID), tf.cast(tokens.row_lengths(), tf.int32)
        place = tf.range(tf.shape(ids)[1])
        begins_word = tf.gather(table[:, 0] == ord(" "), ids)  # [B, T]
        # A language without spaces has long words.
        first = tf.reduce_max(tf.where(begins_word, place, 0), axis=1, keepdims=True)
        first = tf.maximum(first, lengths[:, None] - FREE_TOKENS)
        first = tf.where(is_word_over, lengths, first[:, 0])[:, None]  # [B, 1]
        free = tf.ragged.boolean_mask(ids, (place >= first) & (ids != PAD_ID))  # [B, (tokens)]
        text = tf.gather(table, free.to_tensor(PAD_ID))  # [B, tokens, M]
        text = tf.reshape(text, [tf.shape(text)[0], -1])
        space = tf.where(is_word_over, ord(" "), 0)[:, None]
        text = tf.concat([text, space], axis=1)
        text = tf.ragged.boolean_mask(text, text != 0).to_tensor(0)
        return cls(tf.where(place < first, ids, PAD_ID), text, tf.constant(table), other)

    @property
    def min_lengths(self) -> tf.Tensor:
        """The number of tokens that each row's result may need; see `Constraint`."""
        return _num_nonzero(self.ids) + _num_nonzero(self.text) + self.other.min_lengths

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
        unrestricted: list[tf.Tensor] = []  # the logits of each step before `other`

        def recorded(*args: Any) -> tuple[tf.Tensor, Any, Any]:
            results = step_fn(*args)
            unrestricted.append(results[0])
            return results

        of_rest, cache, row_state = self.other.apply(
            recorded, cache, row_state, rows, max_lengths, beam_size
        )
        own = tf.gather(self.ids, rows), tf.gather(self.text, rows)
        num_written = tf.zeros([tf.size(rows), beam_size], tf.int32)  # bytes of the text
        sizes = _num_nonzero(self.spellings)  # [V]

        def step(
            newest: tf.Tensor, position: tf.Tensor, beams: Any, rows: Any
        ) -> tuple[tf.Tensor, Any, Any]:
            (cache, num_written), (row_state, ids, text) = beams, rows
            logits, cache, row_state = of_rest(newest, position, cache, row_state)
            before = unrestricted.pop()
            num_ids, num_bytes = _num_nonzero(ids)[:, None], _num_nonzero(text)[:, None]  # [B, 1]
            num_written += tf.where(position > num_ids, tf.gather(sizes, newest), 0)
            num_left = num_bytes - tf.minimum(num_written, num_bytes)  # [B, K]
            is_id = position < num_ids

            def restricted() -> tf.Tensor:
                place = tf.minimum(position, tf.shape(ids)[1])
                next_id = tf.gather(tf.pad(ids, [[0, 0], [0, 1]]), place, axis=1)
                may_follow = tf.where(
                    is_id[:, :, None],
                    tf.range(self.spellings.shape[0]) == next_id[:, None, None],
                    self._continues(text, num_bytes - num_left, num_left),
                )  # [B, K, V]
                allowed = forbid(before, may_follow[:, :, 1:])
                return tf.where((is_id | (num_left > 0))[:, :, None], allowed, logits)

            is_over = tf.reduce_all(~is_id & (num_left == 0))
            logits = tf.cond(is_over, lambda: logits, restricted)
            return logits, (cache, num_written), (row_state, ids, text)

        return step, (cache, num_written), (row_state, *own)

    def _continues(self, text: tf.Tensor, start: tf.Tensor, num_left: tf.Tensor) -> tf.Tensor:
        """Returns which ids write what is left of a text, or its beginning, or more than that.

        Args:
            text: int32 [B, L].
            start: int32 [B, K], the place of the next byte.
            num_left: int32 [B, K], bytes from there.

        Returns:
            bool [B, K, V].
        """
        vocab_size, longest = self.spellings.shape
        places = start[:, :, None] + tf.range(longest)  # [B, K, M]
        left = tf.gather(tf.pad(text, [[0, 0], [0, longest]]), places, batch_dims=1)
        factors = np.random.default_rng(0).integers(2**62, size=longest)

        def hashes(spelled: tf.Tensor) -> tf.Tensor:
            """Returns a hash of each beginning, [..., M] -> int64 [..., M + 1]."""
            sums = tf.cumsum(tf.cast(spelled, tf.int64) * factors, axis=-1)
            return tf.concat([tf.zeros_like(sums[..., :1]), sums], axis=-1)

        sizes = _num_nonzero(self.spellings)
        length = tf.minimum(sizes, num_left[:, :, None])  # [B, K, V], bytes to compare
        table = tf.reshape(hashes(self.spellings), [-1])
        own = tf.gather(table, tf.range(vocab_size) * (longest + 1) + length)
        return (own == tf.gather(hashes(left), length, batch_dims=2)) & (sizes > 0)


class RepeatConstraint(NamedTuple):
    """No N tokens in a row stand twice in a result, unless nothing else may follow.

    Scores are those of a search without constraint, as for `CountConstraint`.

    Attributes:
        size: N, at least 1.
        other: what a result must keep to as well.
    """

    size: int
    other: Constraint

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
            newest: tf.Tensor, position: tf.Tensor, beams: Any, row_state: Any
        ) -> tuple[tf.Tensor, Any, Any]:
            cache, written = beams
            logits, cache, row_state = of_rest(newest, position, cache, row_state)
            written = tf.concat([written, newest[:, :, None]], axis=2)
            return self._restrict(logits, written), (cache, written), row_state

        written = tf.zeros([tf.size(rows), beam_size, 0], tf.int32)
        return step, (cache, written), row_state

    def _restrict(self, logits: tf.Tensor, written: tf.Tensor) -> tf.Tensor:
        """Forbids the ids that would repeat N of those that are written, int32 [B, K, T]."""
        num_before, num_written = self.size - 1, tf.shape(written)[2]
        padded = tf.pad(written, [[0, 0], [0, 0], [num_before, 0]])
        last = padded[:, :, num_written:]  # the last N - 1 ids
        repeats = tf.ones_like(written, tf.bool)
        for place in range(num_before):
            repeats &= padded[:, :, place : place + num_written] == last[:, :, place, None]

        def restricted() -> tf.Tensor:
            ids = tf.cast(tf.boolean_mask(written, repeats), tf.int64)
            places = tf.concat([tf.where(repeats)[:, :2], ids[:, None]], axis=1)
            never = tf.fill(tf.shape(ids), False)
            may_follow = tf.tensor_scatter_nd_update(tf.ones_like(logits, tf.bool), places, never)
            left = tf.where(may_follow, logits, -float("inf"))[:, :, NUM_SUPPRESSED:]
            has_none = tf.reduce_max(left, axis=2, keepdims=True) == -float("inf")
            return forbid(logits, (may_follow | has_none)[:, :, 1:])

        return tf.cond(tf.reduce_any(repeats), restricted, lambda: logits)


def _num_nonzero(values: tf.Tensor) -> tf.Tensor:
    """Counts what is not zero, [..., n] -> int32 [...]."""
    return tf.math.count_nonzero(values, axis=-1, dtype=tf.int32)


def forbid(logits: tf.Tensor, may_follow: tf.Tensor) -> tf.Tensor:
    """Forbids tokens. Their probability moves to the padding, which a search never takes.

    Args:
        logits: float32 [B, K, n], those of the padding first.
        may_follow: bool [B, K, n - 1], of the others.
    """
    padding, others = tf.split(logits, [1, -1], axis=2)
    lost = tf.concat([padding, tf.where(may_follow, -float("inf"), others)], axis=2)
    padding = tf.reduce_logsumexp(lost, axis=2, keepdims=True)
    return tf.concat([padding, tf.where(may_follow, others, -float("inf"))], axis=2)
