"""The symbols of trees as token ids, and the constraint that a search finds trees (section 6.3).

`trees.py` explains the symbols.
"""

import dataclasses
from typing import NamedTuple, Self

import tensorflow as tf

from keras_transformer.config import EOS_ID
from keras_transformer.search.constraints import Constraint, SearchStep

MAX_DEPTH = 64  # of open constituents; the trees of CRAFT are less than 40 deep
NUM_SPECIAL_IDS = 4


class TreeSymbols(NamedTuple):
    """The symbols of linearized trees: special ids, tags, labels, and closings of the labels."""

    tags: tuple[str, ...]  # parts of speech; a tag stands for a word
    labels: tuple[str, ...]  # of constituents

    @classmethod
    def of(cls, symbols: set[str]) -> Self:
        """Sorts symbols into tags and labels: a label is also there with a slash."""
        labels = {symbol for symbol in symbols if f"/{symbol}" in symbols}
        closings = {f"/{label}" for label in labels}
        return cls(tuple(sorted(symbols - labels - closings)), tuple(sorted(labels)))

    @property
    def pieces(self) -> tuple[str, ...]:
        """The symbols after the special ones, in the order of their ids."""
        return (*self.tags, *self.labels, *(f"/{label}" for label in self.labels))

    @property
    def first_label(self) -> int:
        return NUM_SPECIAL_IDS + len(self.tags)

    @property
    def first_closing(self) -> int:
        return self.first_label + len(self.labels)

    def is_tag(self, ids: tf.Tensor) -> tf.Tensor:
        return (ids >= NUM_SPECIAL_IDS) & (ids < self.first_label)

    def is_label(self, ids: tf.Tensor) -> tf.Tensor:
        return (ids >= self.first_label) & (ids < self.first_closing)

    def write(self, words: tf.RaggedTensor, ids: tf.Tensor) -> tf.Tensor:
        """Writes symbols, int32 [B, K, T], and words, string [B, (words)], as trees in brackets."""
        opening = [f" ({symbol}" for symbol in (*self.tags, *self.labels)]
        closing = [")"] * len(self.labels)
        texts = tf.constant([""] * NUM_SPECIAL_IDS + opening + closing)
        is_tag = self.is_tag(ids)
        place = tf.cumsum(tf.cast(is_tag, tf.int32), axis=2, exclusive=True)  # of the next word
        table = tf.concat([words, tf.fill([words.nrows(), 1], "")], axis=1).to_tensor("")
        place = tf.minimum(place, tf.shape(table)[1] - 1)
        leaves = tf.strings.join([" ", tf.gather(table, place, batch_dims=1), ")"])  # [B, K, T]
        parts = tf.strings.join([tf.gather(texts, ids), tf.where(is_tag, leaves, "")])
        return tf.strings.strip(tf.strings.reduce_join(parts, axis=2))


class TreeState(NamedTuple):
    """What the constraint knows of unfinished trees."""

    stack: tf.Tensor  # int32 [B, K, MAX_DEPTH], labels of open constituents, counted from 0
    depth: tf.Tensor  # int32 [B, K], number of open constituents
    num_words: tf.Tensor  # int32 [B, K], number of tags
    is_empty: tf.Tensor  # bool [B, K], whether the newest constituent has no child


class RowWords(NamedTuple):
    """The words of the rows of a search."""

    entries: tf.Tensor  # int32 [B, W], of the words in the tag dictionary
    num_words: tf.Tensor  # int32 [B]


@dataclasses.dataclass(frozen=True, eq=False)
class TreeConstraint(Constraint):
    """Lets a search produce well-formed trees only, with a tag of the dictionary for each word."""

    symbols: TreeSymbols
    tags: tf.Tensor  # bool [entries, tags], the tag dictionary: the tags that a word may have
    entries: tf.Tensor  # int32 [sources, W], of their words in the dictionary, W at least 1
    num_words: tf.Tensor  # int32 [sources]

    @property
    def min_tokens(self) -> tf.Tensor:
        return self.num_words + 2  # a label and its closing

    def start(self, rows: tf.Tensor, beam_size: int) -> tuple[TreeState, RowWords]:
        shape = [tf.size(rows), beam_size]
        state = TreeState(
            stack=tf.zeros([*shape, MAX_DEPTH], tf.int32),
            depth=tf.zeros(shape, tf.int32),
            num_words=tf.zeros(shape, tf.int32),
            is_empty=tf.zeros(shape, tf.bool),
        )
        return state, RowWords(tf.gather(self.entries, rows), tf.gather(self.num_words, rows))

    def restrict(
        self, logits: tf.Tensor, step: SearchStep, state: TreeState, row_state: RowWords
    ) -> tuple[tf.Tensor, TreeState]:
        state = self.advance(state, step.newest)
        max_symbols = step.max_lengths - step.position
        return self.share(logits, self.allowed(state, step.position, max_symbols, row_state)), state

    def share(self, logits: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
        """Returns logits, float [B, K, V], that are -inf where a symbol is not allowed.

        The allowed tags share the probability of all tags, and so do closings, labels and special
        ids. Else a model that is sure of a forbidden tag would open a constituent instead.
        """
        allowed &= logits > -float("inf")  # another constraint may allow less
        sizes = [NUM_SPECIAL_IDS, len(self.symbols.tags), *[len(self.symbols.labels)] * 2]
        groups = []
        for group, may in zip(
            tf.split(logits, sizes, axis=2), tf.split(allowed, sizes, axis=2), strict=True
        ):
            left = tf.where(may, group, -float("inf"))
            gain = tf.reduce_logsumexp(group, axis=2, keepdims=True)
            gain -= tf.reduce_logsumexp(left, axis=2, keepdims=True)
            groups.append(tf.where(may, group + gain, -float("inf")))
        return tf.concat(groups, axis=2)

    def advance(self, state: TreeState, ids: tf.Tensor) -> TreeState:
        """Returns the state after one more symbol of each tree, int32 [B, K]."""
        symbols = self.symbols
        is_tag, is_label = symbols.is_tag(ids), symbols.is_label(ids)
        is_closing = ids >= symbols.first_closing
        place = tf.one_hot(state.depth, MAX_DEPTH, True, False)  # [B, K, MAX_DEPTH]
        opened = (ids - symbols.first_label)[:, :, None]
        return TreeState(
            stack=tf.where(place & is_label[:, :, None], opened, state.stack),
            depth=state.depth + tf.cast(is_label, tf.int32) - tf.cast(is_closing, tf.int32),
            num_words=state.num_words + tf.cast(is_tag, tf.int32),
            is_empty=is_label,
        )

    def allowed(
        self, state: TreeState, position: tf.Tensor, max_symbols: tf.Tensor, words: RowWords
    ) -> tf.Tensor:
        """Returns which symbols may follow, bool [B, K, V]; `max_symbols` have room, int32 [B]."""
        is_open = state.depth > 0
        words_left = words.num_words[:, None] - state.num_words  # [B, K]
        has_words = words_left > 0
        needed = words_left + state.depth + 3  # the label, its closing and the end
        is_first = position == 0
        may_open = has_words & (is_open | is_first) & (state.depth < MAX_DEPTH)
        may_open &= needed <= max_symbols[:, None]
        may_close = is_open & ~state.is_empty & ((state.depth > 1) | ~has_words)
        top = tf.maximum(state.depth - 1, 0)
        label = tf.gather(state.stack, top, batch_dims=2)  # [B, K]
        closings = tf.one_hot(label, len(self.symbols.labels), True, False) & may_close[:, :, None]

        def repeat(flag: tf.Tensor, count: int) -> tf.Tensor:
            return tf.repeat(flag[:, :, None], count, axis=2)

        place = tf.minimum(state.num_words, tf.shape(words.entries)[1] - 1)
        next_word = tf.gather(words.entries, place, batch_dims=1)  # [B, K]
        tags = tf.gather(self.tags, next_word) & (is_open & has_words)[:, :, None]
        labels = repeat(may_open, len(self.symbols.labels))
        # The end may follow a complete tree. It may also follow a sequence that the search has
        # given up and that allows no other symbol: a softmax over no symbols is NaN.
        may_end = ~(is_open & has_words | may_open | may_close)
        never = repeat(tf.zeros_like(may_end), EOS_ID)
        return tf.concat([never, may_end[:, :, None], tags, labels, closings], axis=2)
