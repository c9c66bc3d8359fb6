"""What the results of a search must keep to."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.search.beam_search import NUM_SUPPRESSED, StepFunction


class SearchStep(NamedTuple):
    """A step of a search, before its constraints."""

    newest: tf.Tensor  # int32 [B, K], the newest token of each sequence
    position: tf.Tensor  # int32 [], its position, counted from 0 (the start symbol's)
    max_lengths: tf.Tensor  # int32 [B], of the results, in tokens
    logits: tf.Tensor  # float32 [B, K, V], those of the model
    # Returns the model's logits after one more token of each, int32 [B, K]; not at the maximum
    # length of all.
    following: Callable[[tf.Tensor], tf.Tensor]


class Constraint:
    """Restricts what a search finds; it is made for all sources of a call.

    Attributes:
        exempt: the first of the ids that it counts, and the id of a space, or -1: no other rule
            keeps these ids from repeating, and a space may stand before each. None for no ids.
        min_tokens: how many tokens a result needs for it, the end not counted, int32 [B] or [].
        num_forced: how many tokens at the start of a result it alone decides; others count their
            positions from there. One constraint at most has such tokens.
    """

    exempt: tuple[int, int] | None = None
    min_tokens: Any = 0
    num_forced: int = 0

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[Any, Any]:
        """Returns its states before the first step of a search for some sources, int32 [B].

        The state of the hypotheses is a nest of tensors with leading dimensions B, K; the state of
        the rows, which no step changes, is one with a leading dimension of B.
        """
        return (), ()

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: Any, row_state: Any
    ) -> tuple[tf.Tensor, Any]:
        """Sets the logits of tokens that must not follow to -inf, and returns the new state.

        At least one token may follow each sequence, also one that the search has given up. The
        logits, float32 [B, K, V], are restricted by the constraints before. The step's
        `max_lengths` have room for the `min_tokens` of all constraints, unless the model has fewer
        positions.
        """
        raise NotImplementedError


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

    `rows`, int32 [B], are the numbers of the sources that are searched.
    """
    # A forced token comes after all others, also after a sampled one.
    constraints = sorted(constraints, key=lambda constraint: constraint.num_forced)
    started = [constraint.start(rows, beam_size) for constraint in constraints]

    def step(
        newest: tf.Tensor, position: tf.Tensor, cache: Any, row_state: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        (cache, states), (row_state, max_lengths, row_states) = cache, row_state
        logits, cache, row_state = step_fn(newest, position, cache, row_state)

        def following(ids: tf.Tensor) -> tf.Tensor:
            return step_fn(ids, position + 1, cache, row_state)[0]

        now = SearchStep(newest, position, max_lengths, logits, following)
        new_states = []
        for constraint, *state in zip(constraints, states, row_states, strict=True):
            logits, new_state = constraint.restrict(logits, now, *state)
            new_states.append(new_state)
        return logits, (cache, new_states), (row_state, max_lengths, row_states)

    states, row_states = [state for state, _ in started], [state for _, state in started]
    return step, (cache, states), (row_state, max_lengths, row_states)


@dataclasses.dataclass(frozen=True, eq=False)
class FirstToken(Constraint):
    """A result begins with a certain token, which adds nothing to its score."""

    ids: tf.Tensor  # int32 [B]
    min_tokens = num_forced = 1

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[tuple[()], tf.Tensor]:
        return (), tf.gather(self.ids, rows)

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: Any, row_state: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        def forced() -> tf.Tensor:
            first = tf.one_hot(row_state[:, None], logits.shape[2], 0.0, -float("inf"))  # [B, 1, V]
            return tf.broadcast_to(first, tf.shape(logits))

        return tf.cond(step.position == 0, forced, lambda: logits), state


FREE_TOKENS = 4  # the most tokens at the end of a prefix that the search may choose anew


@dataclasses.dataclass(frozen=True, eq=False)
class PrefixConstraint(Constraint):
    """A result begins with certain tokens, and then with a text.

    The text is the last word of a prefix. The search chooses its tokens, because the word may go
    on: "Haus" may become "Hausboot", which has other pieces. A prefix holds, whatever the
    constraints before it forbid. Scores are those of a search without constraint.
    """

    ids: tf.Tensor  # int32 [B, tokens], then padding
    text: tf.Tensor  # int32 [B, bytes], then zeros
    spellings: "_Spellings"
    start_position: int = 0  # of its first token, after those that others give

    @classmethod
    def of(
        cls,
        tokens: tf.RaggedTensor,
        is_word_over: tf.Tensor,
        spellings: Sequence[bytes],
        start_position: int = 0,
    ) -> Self:
        """Divides prefixes, int32 [B, (tokens)], before their last words, if not over, bool [B].

        The spellings are the bytes of each id; of one that begins a word, a space is the first.
        """
        table = _Spellings.of(spellings)
        ids, lengths = tokens.to_tensor(PAD_ID), tf.cast(tokens.row_lengths(), tf.int32)
        place = tf.range(tf.shape(ids)[1])
        begins_word = tf.gather([each.startswith(b" ") for each in spellings], ids)  # [B, T]
        # A language without spaces has long words.
        first = tf.reduce_max(tf.where(begins_word, place, 0), axis=1, keepdims=True)
        first = tf.maximum(first, lengths[:, None] - FREE_TOKENS)
        first = tf.where(is_word_over, lengths, first[:, 0])[:, None]  # [B, 1]
        free = tf.ragged.boolean_mask(ids, (place >= first) & (ids != PAD_ID))  # [B, (tokens)]
        sizes = table.sizes.astype(np.int64)
        written = tf.RaggedTensor.from_row_lengths(table.values, sizes)  # [V, (bytes)]
        text = tf.gather(written, free).merge_dims(1, 2)  # [B, (bytes)]
        space = tf.fill([tf.size(lengths), 1], tf.constant(ord(" "), tf.uint8))
        space = tf.ragged.boolean_mask(space, is_word_over[:, None])
        text = tf.cast(tf.concat([text, space], axis=1).to_tensor(0), tf.int32)
        before = tf.where(place < first, ids, PAD_ID)
        return cls(before, text, table, start_position)

    @property
    def min_tokens(self) -> tf.Tensor:
        # Each token of the text writes at least a byte.
        return _num_nonzero(self.ids) + _num_nonzero(self.text)

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[tf.Tensor, Any]:
        num_written = tf.zeros([tf.size(rows), beam_size], tf.int32)  # bytes of the text
        return num_written, (tf.gather(self.ids, rows), tf.gather(self.text, rows))

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: tf.Tensor, row_state: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        ids, text = row_state
        position = tf.maximum(step.position - self.start_position, 0)
        num_ids, num_bytes = _num_nonzero(ids)[:, None], _num_nonzero(text)[:, None]  # [B, 1]
        sizes, vocab_size = tf.gather(self.spellings.sizes, step.newest), logits.shape[2]
        num_written = state + tf.where(position > num_ids, sizes, 0)
        num_left = num_bytes - tf.minimum(num_written, num_bytes)  # [B, K]
        is_id = position < num_ids

        def restricted() -> tf.Tensor:
            place = tf.minimum(position, tf.shape(ids)[1])
            next_id = tf.gather(tf.pad(ids, [[0, 0], [0, 1]]), place, axis=1)
            is_next = tf.range(vocab_size) == next_id[:, None, None]

            def next_or_text() -> tf.Tensor:
                continues = self._continues(text, num_bytes - num_left, num_left)
                return tf.where(is_id[:, :, None], is_next, continues)

            shape = tf.concat([tf.shape(num_left), [vocab_size]], axis=0)
            are_ids = tf.reduce_all(is_id)
            may_follow = tf.cond(are_ids, lambda: tf.broadcast_to(is_next, shape), next_or_text)
            allowed = forbid(step.logits, may_follow[:, :, 1:])
            return tf.where((is_id | (num_left > 0))[:, :, None], allowed, logits)

        is_over = tf.reduce_all(~is_id & (num_left == 0))
        return tf.cond(is_over, lambda: logits, restricted), num_written

    def _continues(self, text: tf.Tensor, start: tf.Tensor, num_left: tf.Tensor) -> tf.Tensor:
        """Returns which ids write what is left of a text, its beginning, or more, bool [B, K, V].

        The text, int32 [B, bytes], goes on for `num_left` bytes from `start`, both int32 [B, K].
        """
        starts, sizes, sums, factors = self.spellings[1:]
        places = start[:, :, None] + tf.range(len(factors))  # [B, K, M]
        left = tf.gather(tf.pad(text, [[0, 0], [0, len(factors)]]), places, batch_dims=1)
        left = tf.cumsum(tf.cast(left, tf.int64) * factors, axis=2)
        left = tf.pad(left, [[0, 0], [0, 0], [1, 0]])  # hashes of each beginning, [B, K, M + 1]
        length = tf.minimum(sizes, num_left[:, :, None])  # [B, K, V], bytes to compare
        own = tf.gather(sums, starts + length) - tf.gather(sums, starts)
        return (own == tf.gather(left, length, batch_dims=2)) & (sizes > 0)


class _Spellings(NamedTuple):
    """The bytes that V ids write, one after another, M at most; none for an id that no text has.

    The hash of some bytes is the sum of their products with `factors`.
    """

    values: np.ndarray  # uint8 [bytes]
    starts: np.ndarray  # int32 [V]
    sizes: np.ndarray  # int32 [V]
    sums: np.ndarray  # int64 [bytes + 1], of the products of all bytes before
    factors: np.ndarray  # int64 [M]

    @classmethod
    def of(cls, spellings: Sequence[bytes]) -> Self:
        sizes = np.array([*map(len, spellings)], np.int32)
        starts = sizes.cumsum(dtype=np.int32) - sizes
        values = np.frombuffer(b"".join(spellings), np.uint8)
        factors = np.random.default_rng(0).integers(2**62, size=sizes.max())
        products = values * factors[np.arange(len(values)) - starts.repeat(sizes)]
        return cls(values, starts, sizes, np.append(0, products.cumsum()), factors)


CONTINUATION = 0x80, 0xC0  # in UTF-8, the bytes of a character after its first, end excluded


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatConstraint(Constraint):
    """No N tokens in a row stand twice in a result, unless nothing else may follow.

    They may if one of them is spared. Where such ids are, a space may follow too, but not a space.
    Scores are those of a search without constraint.
    """

    size: int  # N, at least 1
    # The id of the byte 0, if 256 ids in a row are bytes. All bytes of a character but the first
    # may repeat, so that no character ends early.
    first_byte: int | None = None
    spared: tuple[int, int] | None = None  # the `exempt` of another constraint

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[tf.Tensor, Any]:
        return tf.zeros([tf.size(rows), beam_size, 0], tf.int32), ()  # what is written

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: tf.Tensor, row_state: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        written = tf.concat([state, step.newest[:, :, None]], axis=2)  # [B, K, T]
        num_before, num_written = self.size - 1, tf.shape(written)[2]
        padded = tf.pad(written, [[0, 0], [0, 0], [num_before, 0]])
        last = padded[:, :, num_written:]  # the last N - 1 ids
        first = self.first_byte
        repeats = tf.ones_like(written, tf.bool)
        if first is not None:
            repeats = (written < first + CONTINUATION[0]) | (written >= first + CONTINUATION[1])
        if self.spared is not None:
            first_spared, space = self.spared
            repeats &= (written != space) | (step.newest == space)[:, :, None]
            repeats &= written < first_spared
            padded = tf.where(padded < first_spared, padded, -1)  # unlike any of the last
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

    The logits, float32 [B, K, n], are those of the padding and of the n - 1 tokens in `may_follow`.
    """
    padding, others = tf.split(logits, [1, -1], axis=2)
    lost = tf.concat([padding, tf.where(may_follow, -float("inf"), others)], axis=2)
    padding = tf.reduce_logsumexp(lost, axis=2, keepdims=True)
    return tf.concat([padding, tf.where(may_follow, others, -float("inf"))], axis=2)
