"""A constraint of the search: a protected string stands in a result as often as in its source.

N is the number of slots, L the number of places of slots in a source.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import regex
import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.search.constraints import Constraint, SearchStep, forbid

LONGEST = 2  # times the tokens of the source: no translation is longer before its last string

State = tuple[tf.Tensor, tf.Tensor]  # counts of the ids, int32 [B, K, N]; what ends, bool [B, K]


class Counts(NamedTuple):
    """How often each of N ids stands in a result, and where."""

    least: tf.Tensor  # int32 [B, N], how often each id must stand in a result
    most: tf.Tensor  # int32 [B, N], how often it may
    opening: tf.Tensor  # float32 [B, N, N], 1 where the second id opens what the first one closes
    closing: tf.Tensor  # float32 [B, N, N], 1 where both ids close the same
    order: tf.Tensor  # int32 [B, L], the ids in their order in the source, then -1
    ranks: tf.Tensor  # int32 [B, L], how often the id stands before
    spaced: tf.Tensor  # bool [B, L], whether an id that would be missing gets a space before it
    is_last: tf.Tensor  # bool [B], whether the source ends with an id
    longest: tf.Tensor  # int32 [B], tokens after which a sequence with missing ids ends


def counts_of(
    slots: tf.Tensor,
    lengths: tf.Tensor,
    strings: tf.Tensor,
    has_spaces: tf.Tensor,
    num_slots: int,
    is_free: bool,
) -> Counts:
    """Counts slots, int32 [B, S], which stand for `strings`, [B, L]; other tokens are below 0.

    `lengths`, int32 [B], are without the end.
    """
    is_slot = slots >= 0
    order = tf.ragged.boolean_mask(slots, is_slot).to_tensor(-1)  # [B, L]
    keys = tf.range(tf.shape(slots)[0])[:, None] * num_slots + order
    # As with a space of its own: not directly after another slot, nor in a text without spaces.
    after_slot = tf.pad(is_slot[:, :-1], [[0, 0], [1, 0]])
    spaced = tf.ragged.boolean_mask(has_spaces[:, None] & ~after_slot, is_slot).to_tensor(False)
    last = tf.gather(slots, tf.maximum(lengths - 1, 0), batch_dims=1)
    places = tf.cast(tf.where(is_slot), tf.int32)
    cells = tf.stack([places[:, 0], tf.gather_nd(slots, places)], axis=1)  # of each string
    counts = tf.scatter_nd(cells, tf.ones_like(cells[:, 0]), [tf.shape(slots)[0], num_slots])
    if is_free:
        least, most = tf.zeros_like(counts), tf.where(counts > 0, tf.int32.max, 0)
        opening = closing = tf.zeros([tf.shape(slots)[0], num_slots, num_slots])
    else:
        least = most = counts
        opening, closing = _pairs_of_tags(
            tf.boolean_mask(strings, order >= 0), cells, places[:, 1], tf.shape(counts)
        )
    return Counts(
        least=least,
        most=most,
        opening=opening,
        closing=closing,
        order=order,
        ranks=tf.reshape(ranks_of(tf.reshape(keys, [-1])), tf.shape(order)),
        spaced=spaced,
        is_last=last >= 0,
        longest=LONGEST * lengths + 10,
    )


def _pairs_of_tags(
    strings: tf.Tensor, cells: tf.Tensor, places: tf.Tensor, shape: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `opening` and `closing` of `Counts`, of strings [P] with rows and slots [P, 2]."""
    is_closing = tf.strings.regex_full_match(strings, r"(?s)</.*>")
    is_opening = tf.strings.regex_full_match(strings, r"(?s)<[A-Za-z0-9].*>")
    is_opening &= ~tf.strings.regex_full_match(strings, r"(?s).*/>")
    names = tf.strings.regex_replace(strings, r"(?s)^</?([^\s/>]*).*$", r"\1")

    def smallest(values: tf.Tensor) -> tf.Tensor:  # of the strings of each slot, [B, N]
        largest = tf.fill(shape, values.dtype.max)
        return tf.tensor_scatter_nd_min(largest, cells, values)

    name = smallest(tf.strings.to_hash_bucket_fast(names, 2**62))
    opens = smallest(tf.cast(is_opening, tf.int32)) == 1
    closes = smallest(tf.cast(is_closing, tf.int32)) == 1
    pairs = (name[:, :, None] == name[:, None, :]) & closes[:, :, None]  # [B, N, N]
    first, last = smallest(places), -smallest(-places)
    is_before = first[:, None, :] < last[:, :, None]  # as in the source
    opening, closing = pairs & opens[:, None, :] & is_before, pairs & closes[:, None, :]
    return tf.cast(opening, tf.float32), tf.cast(closing, tf.float32)


def ranks_of(keys: tf.Tensor) -> tf.Tensor:
    """Returns how many earlier keys are equal to each, int32 [P]."""
    order = tf.argsort(keys, stable=True)
    ordered = tf.gather(keys, order)
    rank = tf.range(tf.size(keys)) - tf.searchsorted(ordered, ordered, side="left")
    return tf.gather(rank, tf.math.invert_permutation(order))


@dataclasses.dataclass(frozen=True, eq=False)
class CountConstraint(Constraint):
    """Each of the last N ids stands in a result a certain number of times, also in one that is cut.

    An id that closes waits for one that opens, as long as one is missing in the result.

    A model that has seen few ids may rather end than write one. A sequence whose likeliest next
    token is the end, or a mark and then the end, gets what is missing in the order of the source,
    and so does one that is too long. Then only one more mark and the end may follow.
    """

    counts: Counts  # for each source
    space: int  # the id that writes a space, or -1
    is_mark: tf.Tensor  # bool [V], whether an id writes punctuation
    is_free: bool = False  # whether the counts are only those that may be

    @classmethod
    def of(
        cls, counts: Counts, spellings: Sequence[bytes], is_free: bool = False
    ) -> "CountConstraint":
        texts = [spelling.decode(errors="replace") for spelling in spellings]
        is_mark = [bool(regex.fullmatch(r" ?\p{P}+", text)) for text in texts]
        space = texts.index(" ") if " " in texts else -1
        return cls(counts, space, tf.constant(is_mark), is_free)

    @property
    def exempt(self) -> tuple[int, int] | None:  # type: ignore[override]
        if self.is_free:
            return None
        return self.is_mark.shape[0] - self.counts.least.shape[1], self.space

    @property
    def min_tokens(self) -> tf.Tensor:
        return tf.reduce_sum(self.counts.least, axis=1)

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[State, Counts]:
        shape = [tf.size(rows), beam_size]
        counts = tf.zeros([*shape, self.counts.least.shape[1]], tf.int32)
        row_state = Counts(*(tf.gather(tensor, rows) for tensor in self.counts))
        return (counts, tf.zeros(shape, tf.bool)), row_state

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: State, row_state: Counts
    ) -> tuple[tf.Tensor, State]:
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
    """Forbids what must not follow: counts and waits are [B, K, N], and `num_left` is [B, 1]."""
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
