"""Protected strings come back as they were.

Each protected string of a source becomes a slot: one of `NUM_SLOTS` characters of a private plane
of Unicode, each of which is a piece of its own. Slots are numbered by the first appearance of their
string, so equal strings share one. Subwords around a slot are cut as around any character, and so
spaces and neighbours stay. In a training pair, both sides share the numbers.

A source may mark a term and its translation, ⟦file|soubor⟧ (`terms.py`). The mark is protected, and
the translation takes its place in the result.

If a text has more different strings than there are slots, several of them share a slot, and their
order in the translation is that of the source.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import PAD_ID, UNK_ID
from keras_transformer.protection.counts import CountConstraint, counts_of, ranks_of
from keras_transformer.protection.patterns import BEFORE_ENTITY, CUT, TEXT, without_text
from keras_transformer.protection.terms import TERM
from keras_transformer.search.constraints import Constraint
from keras_transformer.texts.sentences import may_split
from keras_transformer.tokenizers.invisible import visible, without
from keras_transformer.tokenizers.wrappers import Restore, Wrapper

NUM_SLOTS = 32
FIRST_SLOT = 0x10FF00
SLOTS = tuple(map(chr, range(FIRST_SLOT, FIRST_SLOT + NUM_SLOTS)))
MARK = chr(FIRST_SLOT + NUM_SLOTS)  # stands around a protected string, in no text
ANY_SLOT = f"[{SLOTS[0]}-{SLOTS[-1]}]"
RESERVED = f"[{SLOTS[0]}-{CUT}]"


class Kept(NamedTuple):
    """The protected strings of B texts, in their order, P at most."""

    strings: tf.Tensor  # string [B, P], padded with ""
    slots: tf.Tensor  # int32 [B, P], padded with -1


class Protection(Wrapper):
    """Reads strings that a pattern finds, and terms, as slots, and puts them back into results.

    A search finds only translations that have each of them as often as the source, if not free.
    """

    spec = Kept(tf.TensorSpec([None, None], tf.string), tf.TensorSpec([None, None], tf.int32))

    def __init__(self, pattern: str, spellings: Sequence[bytes], is_free: bool) -> None:
        self._pattern = "|".join(filter(None, (TERM, pattern)))
        self._spellings, self._is_free = spellings, is_free
        self._first_slot = len(spellings) - NUM_SLOTS

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Kept]:
        protected = _Protected(texts, self._pattern)
        index = tf.unique(protected.keys()).idx
        first = tf.math.unsorted_segment_min(index, protected.rows, protected.num_rows)  # [B]
        slots = (index - tf.gather(first, protected.rows)) % NUM_SLOTS
        kept = Kept(protected.by_row(protected.strings, ""), protected.by_row(slots, -1))
        return protected.replaced(tf.gather(tf.constant(SLOTS), slots)), kept

    def read_targets(self, context: Kept, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Strings of the source become its slots; what only a translation protects stays text."""
        protected = _Protected(targets, self._pattern, is_source=False)
        is_string, num_rows = context.slots >= 0, protected.num_rows
        rows = tf.cast(tf.where(is_string)[:, 0], tf.int32)
        keys = _keys(rows, tf.boolean_mask(context.strings, is_string))
        # Numbers of the strings of all rows, those of the sources first.
        unique, index = tf.unique(tf.concat([keys, protected.keys()], axis=0))
        own, other = tf.split(index, [tf.size(keys), tf.size(protected.strings)])
        is_known = other < tf.reduce_max(tf.concat([own, [-1]], axis=0)) + 1
        first = tf.math.unsorted_segment_min(own, rows, num_rows)  # [B]
        slots = tf.where(is_known, other - tf.gather(first, protected.rows), 0) % NUM_SLOTS
        strings = tf.where(is_known, tf.gather(tf.constant(SLOTS), slots), protected.strings)
        rows = tf.concat([rows, protected.rows], axis=0)
        signs = tf.concat([tf.ones_like(own), -tf.ones_like(other)], axis=0)
        num_strings = tf.size(unique)
        surplus = tf.abs(tf.math.unsorted_segment_sum(signs, index, num_strings))
        row = tf.math.unsorted_segment_max(rows, index, num_strings)  # of each number
        agree = tf.math.unsorted_segment_sum(surplus, row, num_rows) == 0
        return protected.replaced(strings), agree | self._is_free

    def read_prefixes(self, context: Kept, prefixes: tf.Tensor) -> tuple[tf.Tensor, Kept]:
        """Of strings that share a slot, those of the prefix come first."""
        protected = _Protected(prefixes, self._pattern, is_source=False)
        places = tf.where(context.slots >= 0)
        strings, slots = (tf.gather_nd(tensor, places) for tensor in context)
        rows = tf.cast(places[:, 0], tf.int32)
        given = tf.concat([protected.keys(), _keys(rows, _results(strings))], axis=0)
        numbers = tf.unique(given).idx
        first, numbers = tf.split(numbers, [tf.size(protected.strings), tf.size(strings)])
        num_first = tf.reduce_max(tf.concat([first, [-1]], axis=0)) + 1
        numbers = tf.minimum(numbers, num_first)
        slot_keys = rows * NUM_SLOTS + slots
        order = tf.argsort(slot_keys, stable=True)
        prefix_first = tf.cast(slot_keys, tf.int64) * tf.cast(num_first + 1, tf.int64)
        prefix_first = tf.argsort(prefix_first + tf.cast(numbers, tf.int64), stable=True)
        strings = tf.tensor_scatter_nd_update(
            context.strings, tf.gather(places, order), tf.gather(strings, prefix_first)
        )
        targets, _ = self.read_targets(context, prefixes)
        return targets, Kept(strings, context.slots)

    def write(self, context: Kept, texts: tf.Tensor) -> tf.Tensor:
        """The n-th place of a slot in a result gets the n-th of its strings, or else the last."""
        shape = tf.shape(texts)  # [B, K, W]
        slotted = _Slotted(tf.reshape(texts, [-1]))
        slots = tf.strings.unicode_decode(slotted.strings, "UTF-8").flat_values - FIRST_SLOT
        result = slotted.rows // shape[2]
        rank = ranks_of(result * NUM_SLOTS + slots)
        key = result // shape[1] * NUM_SLOTS + slots
        places = tf.where(context.slots >= 0)
        strings, own_slots = (tf.gather_nd(tensor, places) for tensor in context)
        own_key = tf.cast(places[:, 0], tf.int32) * NUM_SLOTS + own_slots
        order = tf.argsort(own_key, stable=True)
        own_key, strings = tf.gather(own_key, order), _results(tf.gather(strings, order))
        first = tf.searchsorted(own_key, key, side="left")
        last = tf.searchsorted(own_key, key, side="right") - 1
        place = tf.minimum(first + rank, last)
        # Without such a slot in the source, which no search finds, the string is empty.
        strings = tf.concat([strings, [""]], axis=0)
        strings = tf.gather(strings, tf.where(last < first, tf.size(strings) - 1, place))
        written = slotted.replaced(tf.where(strings == "", MARK, strings))
        return tf.reshape(without(written, MARK), shape)

    def context_of_parts(self, context: Kept, tokens: tf.RaggedTensor, rows: tf.Tensor) -> Kept:
        is_slot = tf.cast(tokens.values >= self._first_slot, tf.int32)
        counts = tf.reduce_sum(tokens.with_values(is_slot), axis=1)  # [P]
        before = tf.cumsum(counts, exclusive=True)
        before -= tf.gather(tf.math.segment_min(before, rows), rows)
        place = tf.range(tf.shape(context.slots)[1])
        is_in = (place >= before[:, None]) & (place < (before + counts)[:, None])
        strings, slots = (tf.ragged.boolean_mask(tf.gather(x, rows), is_in) for x in context)
        return Kept(strings.to_tensor(""), slots.to_tensor(-1))

    def constraints(self, ids: tf.Tensor, lengths: tf.Tensor, context: Kept) -> list[Constraint]:
        is_text = tf.gather([*map(bool, self._spellings)], ids) | (ids == UNK_ID)
        texts = tf.ragged.boolean_mask(ids, is_text)  # no delimiters and tags
        lengths = tf.cast(texts.row_lengths(), tf.int32)
        # One column more, because texts may have no tokens.
        texts = tf.pad(texts.to_tensor(PAD_ID), [[0, 0], [0, 1]], constant_values=PAD_ID)  # [B, S]
        begins_word = [spelling.startswith(b" ") for spelling in self._spellings]
        after_space = tf.reduce_any(tf.gather(begins_word, texts[:, 1:]), axis=1)
        strings = _results(context.strings)
        slots = texts - self._first_slot
        counts = counts_of(slots, lengths, strings, after_space, NUM_SLOTS, self._is_free)
        return [CountConstraint.of(counts, self._spellings, self._is_free)]

    def known_translations(self, texts: tf.Tensor) -> tf.Tensor:
        """A text of nothing but protected strings and terms needs no model."""
        protected = _Protected(texts, self._pattern)
        strings = _results(protected.strings)
        marks = protected.replaced(tf.fill([tf.size(strings)], MARK))
        blank = r"[\s\p{Z}\p{Cc}]"
        is_known = tf.strings.regex_full_match(marks, f"{blank}*{MARK}(?:{blank}|{MARK})*")
        known = without(protected.replaced(tf.where(strings == "", MARK, strings)), MARK)
        return tf.where(is_known, known, "")

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        """Hides strings that may have the end of a sentence."""
        protected = _Protected(texts, self._pattern)
        hides = may_split(protected.strings)
        hidden = protected.replaced(tf.where(hides, SLOTS[0], protected.strings))
        strings = tf.boolean_mask(protected.strings, hides)
        return hidden, lambda parts: parts.with_values(_Slotted(parts.values).replaced(strings))


class _Marked:
    """Texts, string [B], cut at the marks around some strings of theirs."""

    def __init__(self, texts: tf.Tensor) -> None:
        self._parts = tf.strings.split(texts, MARK)  # [B, (parts)]
        starts = tf.gather(self._parts.row_starts(), self._parts.value_rowids())
        place = tf.range(tf.size(self._parts.values, tf.int64)) - starts
        self._is_string = place % 2 == 1
        self.num_rows = tf.cast(self._parts.nrows(), tf.int32)

    @property
    def strings(self) -> tf.Tensor:  # of all texts, string [P]
        return tf.boolean_mask(self._parts.values, self._is_string)

    @property
    def rows(self) -> tf.Tensor:  # the text of each string, int32 [P]
        return tf.cast(tf.boolean_mask(self._parts.value_rowids(), self._is_string), tf.int32)

    def by_row(self, values: tf.Tensor, default: str | int) -> tf.Tensor:
        """Returns values of the strings, [P], as rows of the texts, [B, (strings)], padded."""
        rows = tf.RaggedTensor.from_value_rowids(values, self.rows, self.num_rows, validate=False)
        return rows.to_tensor(default)

    def replaced(self, strings: tf.Tensor) -> tf.Tensor:
        """Returns the texts with other strings, one after another, in place of the marked ones."""
        place = tf.maximum(tf.cumsum(tf.cast(self._is_string, tf.int32)) - 1, 0)
        strings = tf.gather(tf.concat([strings, [""]], axis=0), place)
        values = tf.where(self._is_string, strings, self._parts.values)
        return tf.strings.unsorted_segment_join(values, self._parts.value_rowids(), self.num_rows)


class _Slotted(_Marked):
    """Texts cut at their slots."""

    def __init__(self, texts: tf.Tensor) -> None:
        super().__init__(tf.strings.regex_replace(texts, ANY_SLOT, rf"{MARK}\0{MARK}"))


class _Protected(_Marked):
    """Texts cut at their protected strings.

    A source loses its invisible characters; those of a protected string stay if it is found so.
    """

    def __init__(self, texts: tf.Tensor, pattern: str, is_source: bool = True) -> None:
        texts = tf.strings.regex_replace(texts, RESERVED, "\ufffd")

        def marked(texts: tf.Tensor) -> tf.Tensor:
            texts = tf.strings.regex_replace(texts, BEFORE_ENTITY, rf"\1{CUT}\2")
            texts = tf.strings.regex_replace(texts, pattern, rf"{MARK}\0{MARK}")
            return tf.strings.regex_replace(texts, CUT, "")

        as_given = marked(texts)
        if is_source:
            seen = marked(visible(texts))
            as_given = tf.where(visible(as_given) == seen, as_given, seen)
        super().__init__(as_given)
        values = self._parts.values
        # The pattern also finds text, such as percentages, so that nothing is found within it.
        is_text = tf.strings.regex_full_match(values, TEXT)
        is_text &= ~tf.strings.regex_full_match(values, without_text(pattern))
        self._is_string &= ~is_text & (values != "")
        if is_source:
            texts = tf.where(self._is_string, values, visible(values))
            self._parts = self._parts.with_values(texts)

    def keys(self) -> tf.Tensor:
        """Returns a string [P] for each string: the same for equal ones of a row."""
        return _keys(self.rows, self.strings)


def _keys(rows: tf.Tensor, strings: tf.Tensor) -> tf.Tensor:
    return tf.strings.join([tf.strings.as_string(rows), strings], MARK)


def _results(strings: tf.Tensor) -> tf.Tensor:
    """Returns what stands in results: the translation of a term, and any other string as it is."""
    return tf.strings.regex_replace(strings, f"^{TERM}$", r"\1")
