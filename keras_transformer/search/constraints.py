"""What the results of a search must keep to."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.search.beam_search import NUM_SUPPRESSED, StepFunction


class SearchStep(NamedTuple):
    """A step of a search, before its constraints.

    Attributes:
        newest: int32 [B, K], the newest token of each sequence.
        position: int32 [], its position, counted from 0 (the start symbol's).
        max_lengths: int32 [B], of the results, in tokens.
        logits: float32 [B, K, V], those of the model.
        following: returns the model's logits after one more token of each, int32 [B, K]; not at
            the maximum length of all.
    """

    newest: tf.Tensor
    position: tf.Tensor
    max_lengths: tf.Tensor
    logits: tf.Tensor
    following: Callable[[tf.Tensor], tf.Tensor]


class Constraint(Protocol):
    """Restricts what a search finds. It is made for all sources of a call."""

    @property
    def min_tokens(self) -> tf.Tensor:
        """How many tokens a result needs for it, the end not counted, int32 [B] or []."""

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[Any, Any]:
        """Returns its state before the first step of a search.

        Args:
            rows: int32 [B], the numbers of the sources that are searched.
            beam_size: K.

        Returns:
            The state of the hypotheses, a nest of tensors with leading dimensions B, K, and what it
            keeps of the rows, a nest of tensors with a leading dimension of B.
        """

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: Any, of_rows: Any
    ) -> tuple[tf.Tensor, Any]:
        """Sets the logits of tokens that must not follow to -inf.

        At least one token may follow each sequence, also one that the search has given up.

        Args:
            logits: float32 [B, K, V], restricted by other constraints.
            step: the step. Its `max_lengths` have room for the `min_tokens` of all constraints,
                unless the model has fewer positions.
            state: of the hypotheses.
            of_rows: the second result of `start`.

        Returns:
            The logits and the new state of the hypotheses.
        """


def constrained(
    step_fn: StepFunction,
    cache: Any,
    row_state: Any,
    constraints: Sequence[Constraint],
    rows: tf.Tensor,
    max_lengths: tf.Tensor,
    beam_size: int,
) -> tuple[StepFunction, Any, Any]:
    """Returns a step function that keeps to constraints, its `cache` and its `row_state`.

    Args:
        step_fn: the step function of a model; see `beam_search`.
        cache: its state of the hypotheses.
        row_state: its state of the rows.
        constraints: applied one after another.
        rows: int32 [B], the numbers of the sources that are searched.
        max_lengths: int32 [B], of their results, in tokens.
        beam_size: K.
    """
    started = [constraint.start(rows, beam_size) for constraint in constraints]

    def step(
        newest: tf.Tensor, position: tf.Tensor, cache: Any, row_state: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        (cache, states), (row_state, max_lengths, of_rows) = cache, row_state
        logits, cache, row_state = step_fn(newest, position, cache, row_state)

        def following(ids: tf.Tensor) -> tf.Tensor:
            return step_fn(ids, position + 1, cache, row_state)[0]

        now = SearchStep(newest, position, max_lengths, logits, following)
        new_states = []
        for constraint, state, kept in zip(constraints, states, of_rows, strict=True):
            logits, state = constraint.restrict(logits, now, state, kept)
            new_states.append(state)
        return logits, (cache, new_states), (row_state, max_lengths, of_rows)

    states, of_rows = [state for state, _ in started], [kept for _, kept in started]
    return step, (cache, states), (row_state, max_lengths, of_rows)


FREE_TOKENS = 4  # the most tokens at the end of a prefix that the search may choose anew


class PrefixConstraint(NamedTuple):
    """A result begins with certain tokens, and then with a text.

    The text is the last word of a prefix. The search chooses its tokens, because the word may go
    on: "Haus" may become "Hausboot", which has other pieces. A prefix holds, whatever the
    constraints before it forbid. Scores are those of a search without constraint, as for
    `CountConstraint`.

    Attributes:
        ids: int32 [B, N], the tokens, then padding.
        text: int32 [B, L], the bytes of the text, then zeros.
        spellings: int32 [V, M], the bytes of each id, then zeros; only zeros for an id that cannot
            be in a text.
    """

    ids: tf.Tensor
    text: tf.Tensor
    spellings: tf.Tensor

    @classmethod
    def of(
        cls, tokens: tf.RaggedTensor, is_word_over: tf.Tensor, spellings: Sequence[bytes]
    ) -> Self:
        """Divides prefixes before their last words.

        Args:
            tokens: int32 [B, (tokens)].
            is_word_over: bool [B], whether the next token must begin a word.
            spellings: the bytes of each id; those of an id that begins a word begin with a space.
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
        return cls(tf.where(place < first, ids, PAD_ID), text, tf.constant(table))

    @property
    def min_tokens(self) -> tf.Tensor:
        """How many tokens a result needs if each one writes a byte; see `Constraint`."""
        return _num_nonzero(self.ids) + _num_nonzero(self.text)

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[tf.Tensor, Any]:
        """Returns how many bytes of the text are written, the ids and the text."""
        num_written = tf.zeros([tf.size(rows), beam_size], tf.int32)
        return num_written, (tf.gather(self.ids, rows), tf.gather(self.text, rows))

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: tf.Tensor, of_rows: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Forbids what does not begin with the prefix; see `Constraint`."""
        ids, text = of_rows
        num_ids, num_bytes = _num_nonzero(ids)[:, None], _num_nonzero(text)[:, None]  # [B, 1]
        sizes = tf.gather(_num_nonzero(self.spellings), step.newest)
        num_written = state + tf.where(step.position > num_ids, sizes, 0)
        num_left = num_bytes - tf.minimum(num_written, num_bytes)  # [B, K]
        is_id = step.position < num_ids

        def restricted() -> tf.Tensor:
            place = tf.minimum(step.position, tf.shape(ids)[1])
            next_id = tf.gather(tf.pad(ids, [[0, 0], [0, 1]]), place, axis=1)
            is_next = tf.range(self.spellings.shape[0]) == next_id[:, None, None]

            def next_or_text() -> tf.Tensor:
                continues = self._continues(text, num_bytes - num_left, num_left)
                return tf.where(is_id[:, :, None], is_next, continues)

            shape = tf.concat([tf.shape(num_left), [self.spellings.shape[0]]], axis=0)
            are_ids = tf.reduce_all(is_id)
            may_follow = tf.cond(are_ids, lambda: tf.broadcast_to(is_next, shape), next_or_text)
            allowed = forbid(step.logits, may_follow[:, :, 1:])
            return tf.where((is_id | (num_left > 0))[:, :, None], allowed, logits)

        is_over = tf.reduce_all(~is_id & (num_left == 0))
        return tf.cond(is_over, lambda: logits, restricted), num_written

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


CONTINUATION = 0x80, 0xC0  # in UTF-8, the bytes of a character after its first, end excluded


class RepeatConstraint(NamedTuple):
    """No N tokens in a row stand twice in a result, unless nothing else may follow.

    They may if one of them is counted. Where some are, a space may follow too, but not a space.
    Scores are those of a search without constraint.

    Attributes:
        size: N, at least 1.
        first_byte: the id of the byte 0, if 256 ids in a row are bytes. All bytes of a character
            but the first may repeat, so that no character ends early.
        first_counted: ids from it on are counted by another constraint; None for none.
        space: the id that writes only a space; None for none.
    """

    size: int
    first_byte: int | None = None
    first_counted: int | None = None
    space: int | None = None

    @property
    def min_tokens(self) -> tf.Tensor:
        """Always 0: it needs no tokens of its own."""
        return tf.constant(0)

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[tf.Tensor, Any]:
        """Returns what is written, and nothing of the rows; see `Constraint`."""
        return tf.zeros([tf.size(rows), beam_size, 0], tf.int32), ()

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: tf.Tensor, of_rows: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Forbids the ids that would repeat N of those that are written; see `Constraint`."""
        del of_rows
        written = tf.concat([state, step.newest[:, :, None]], axis=2)  # [B, K, T]
        num_before, num_written = self.size - 1, tf.shape(written)[2]
        padded = tf.pad(written, [[0, 0], [0, 0], [num_before, 0]])
        last = padded[:, :, num_written:]  # the last N - 1 ids
        first = self.first_byte
        repeats = tf.ones_like(written, tf.bool)
        if first is not None:
            repeats = (written < first + CONTINUATION[0]) | (written >= first + CONTINUATION[1])
        if self.first_counted is not None:
            if self.space is not None:
                repeats &= (written != self.space) | (step.newest == self.space)[:, :, None]
            repeats &= written < self.first_counted
            padded = tf.where(padded < self.first_counted, padded, -1)  # unlike any of the last
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

        return tf.cond(tf.reduce_any(repeats), restricted, lambda: logits), written


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
