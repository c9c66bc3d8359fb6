"""A tokenizer whose protected strings come back as they were.

Each protected string of a source becomes a slot: one of `NUM_SLOTS` characters of a private plane
of Unicode, each of which is a piece of its own. Slots are numbered by the first appearance of their
string, so equal strings share one. Subwords around a slot are cut as around any character, and so
spaces and neighbours stay. In a training pair, both sides share the numbers.

A source may mark a term and its translation, ⟦file|soubor⟧ (`terms.py`). The mark is protected, and
the translation takes its place in the result.

If a text has more different strings than there are slots, several of them share a slot, and their
order in the translation is that of the source.

Shapes (the package's glossary): B batch, S source length, T target length, K beams. N is the number
of slots.
"""

import base64
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Self

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.protection.counts import CountConstraint, Counts
from keras_transformer.protection.patterns import (
    BEFORE_ENTITY,
    CUT,
    TEXT,
    check,
    pattern_of,
    without_text,
)
from keras_transformer.protection.terms import TERM
from keras_transformer.search.constraints import Constraint
from keras_transformer.texts.sentences import may_split
from keras_transformer.tokenizers.base import (
    EncodedTexts,
    TokenizedPairs,
    TokenizedTexts,
    Tokenizer,
)
from keras_transformer.tokenizers.invisible import visible, without
from keras_transformer.tokenizers.learning import parse_sentencepiece
from keras_transformer.tokenizers.subword import SentencePieceTokenizer

HEADER = b"# protected\n"  # of its file
NUM_SLOTS = 32
SLOTS = tuple(map(chr, range(0x10FF00, 0x10FF00 + NUM_SLOTS)))
MARK = chr(0x10FF00 + NUM_SLOTS)  # stands around a protected string, in no text
ANY_SLOT = f"[{SLOTS[0]}-{SLOTS[-1]}]"
RESERVED = f"[{SLOTS[0]}-{CUT}]"
LEAD_BYTE = "<0xF4>"  # begins the UTF-8 of these characters, and of no others that Unicode assigns
LONGEST = 2  # times the tokens of the source: no translation is longer before its last string
USER_DEFINED = 4  # the type of a piece that is never cut

Pairs = Iterable[tuple[str, str]]


class _SlotTokenizer(SentencePieceTokenizer):
    """Subwords of which the last `NUM_SLOTS` are slots."""

    @property
    def first_slot(self) -> int:
        """The id of the first slot."""
        return self.vocab_size - NUM_SLOTS

    def spellings(self) -> list[bytes]:
        """Returns what each id writes; see `Tokenizer`. The bytes of slots make no slot."""
        lead = bytes.fromhex(LEAD_BYTE[3:5])
        return [b"" if spelling == lead else spelling for spelling in super().spellings()]

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of ids; a slot is its number in double brackets, from 1."""
        pieces, number = super().pieces(ids), tf.strings.as_string(ids - self.first_slot + 1)
        return tf.where(ids < self.first_slot, pieces, tf.strings.join(["⟦", number, "⟧"]))


class ProtectingTokenizer(_SlotTokenizer):
    """Subwords by SentencePiece, and protected strings.

    `encode` reads protected strings as slots, `write` puts them back, and a search finds only
    translations that have each of them as often as the source (`CountConstraint`). `tokenize`
    itself protects nothing.

    Args:
        model: a header, then JSON.
    """

    def __init__(self, model: bytes) -> None:
        try:
            content = json.loads(model.removeprefix(HEADER))
            sentencepiece = base64.b64decode(content["sentencepiece"])
            self.protect = list(content["protect"])
            self.is_free: bool = content["free"]
            pattern: str = content["pattern"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("The tokenizer is damaged") from error
        super().__init__(sentencepiece)
        self._subwords = _SlotTokenizer(sentencepiece)
        self.model, self._pattern = model, "|".join(filter(None, (TERM, pattern)))
        if self.own_target is not None:
            self.own_target = _SlotTokenizer(sentencepiece, side=1)
        pieces = [each.piece for each in parse_sentencepiece(sentencepiece).pieces]
        if tuple(pieces[self.first_slot :]) != SLOTS:
            raise InputError("The tokenizer is damaged")
        self.first_counted = None if self.is_free else self.first_slot
        self._lead_byte = pieces.index(LEAD_BYTE) if LEAD_BYTE in pieces else -1

    @classmethod
    def learn(
        cls,
        pairs: Callable[[], Pairs],
        vocab_size: int,
        protect: Sequence[str],
        free: bool = False,
        model_type: Literal["bpe", "unigram"] = "bpe",
        lowercase: bool = False,
        languages: tuple[str, str] = ("", ""),
    ) -> Self:
        """Learns subwords from training pairs without their protected strings.

        Args:
            pairs: returns the pairs of source and target, each time.
            vocab_size: as for `SentencePieceTokenizer.train`; the slots are among them.
            protect: names of sets, and regular expressions; see `patterns`.
            free: whether a search may leave strings out, and repeat them.
            model_type: SentencePiece's algorithm.
            lowercase: whether to lower-case all text but protected strings.
            languages: the codes of source and target, if they are known.
        """
        check(protect)
        pattern = pattern_of(protect, pairs())
        slotted, same = itertools.tee(_slotted(pairs(), pattern))
        sources, targets = (pair[0] for pair in slotted), (pair[1] for pair in same)
        tokenizer = SentencePieceTokenizer.train(
            sources, vocab_size, model_type, lowercase, targets, SLOTS, languages
        )
        return cls._made_of(tokenizer.model, protect, pattern, free).of_languages(languages)

    @classmethod
    def extend(
        cls, tokenizer: Tokenizer, pairs: Pairs, protect: Sequence[str], free: bool = False
    ) -> Self:
        """Adds slots to a tokenizer, after its ids, if it does not protect the same already.

        Args:
            tokenizer: of SentencePiece.
            pairs: training pairs.
            protect: as for `learn`.
            free: as for `learn`.
        """
        check(protect)
        if isinstance(tokenizer, cls):
            if (list(tokenizer.protect), tokenizer.is_free) == (list(protect), free):
                return tokenizer
            raise InputError(
                f"`protect` must be that of `init_from`, {list(tokenizer.protect)}, and "
                f"`protect_free` too. Received: {list(protect)}, {free}"
            )
        if type(tokenizer) is not SentencePieceTokenizer:
            raise InputError(
                "`protect` needs a run with a tokenizer of SentencePiece. "
                f"Received: a {type(tokenizer).__name__}"
            )
        message = parse_sentencepiece(tokenizer.model)
        for slot in SLOTS:
            message.pieces.add(piece=slot, type=USER_DEFINED)
        return cls._made_of(message.SerializeToString(), protect, pattern_of(protect, pairs), free)

    @classmethod
    def _made_of(
        cls, sentencepiece: bytes, protect: Sequence[str], pattern: str, free: bool
    ) -> Self:
        content = {
            "sentencepiece": base64.b64encode(sentencepiece).decode(),
            "protect": list(protect),
            "pattern": pattern,
            "free": free,
        }
        return cls(HEADER + json.dumps(content).encode())

    def sentencepiece_models(self) -> tuple[bytes, bytes]:
        """Raises `InputError`: other engines cannot put protected strings back."""
        raise InputError("Other engines cannot translate with protected strings")

    def spellings(self) -> list[bytes]:
        """Returns what each id writes; see `Tokenizer`."""
        return self._subwords.spellings()

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.RaggedTensor], tf.Tensor]]:
        """Hides protected strings, which may have the end of a sentence; see `Tokenizer`."""
        found = _Protected(texts, self._pattern)
        hides = may_split(found.strings)
        hidden = found.replaced(tf.where(hides, SLOTS[0], found.strings))
        return hidden, lambda parts: _put(tf.boolean_mask(found.strings, hides), parts.values)

    def read(self, texts: tf.Tensor) -> TokenizedTexts:
        """Splits sources into ids, and returns the strings of slots; see `Tokenizer`."""
        found = _Protected(texts, self._pattern)
        slotted, capitals = self._in_small_letters(found.with_slots())
        tokens = self.tokenize(slotted)  # [B, (tokens)]
        results = tf.strings.regex_replace(found.strings, f"^{TERM}$", r"\1")
        kept = _fill(tokens.values >= self.first_slot, results, "")
        return TokenizedTexts(tokens, tokens.with_values(kept), capitals)

    def read_pairs(self, sources: tf.Tensor, targets: tf.Tensor) -> TokenizedPairs:
        """Splits sources and translations, in which the same strings have the same slots.

        What only a translation protects stays text.
        """
        source, target, agree = _protected_pairs(sources, targets, self._pattern)
        return self._tokenize_pairs(source, target, agree | self.is_free)

    def constraints(self, source: EncodedTexts) -> list[Constraint]:
        """Returns the constraint that each string stands in a result as often as in its source."""
        slots = source.ids - self.first_slot  # [B, S]
        order = tf.ragged.boolean_mask(slots, slots >= 0).to_tensor(-1)  # [B, L]
        rows, shape = _places(slots), [tf.shape(slots)[0], NUM_SLOTS]
        spellings = self.spellings()
        has_space = [each.startswith(b" ") for each in spellings]
        # As with a space of its own: not directly after another slot, nor in a text without spaces.
        after_slot = tf.pad(slots[:, :-1] >= 0, [[0, 0], [1, 0]])
        spaced = tf.reduce_any(tf.gather(has_space, source.ids[:, 1:]), axis=1, keepdims=True)
        spaced = tf.ragged.boolean_mask(spaced & ~after_slot, slots >= 0).to_tensor(False)
        last = tf.gather(slots, tf.maximum(source.lengths - 1, 0), batch_dims=1)
        is_last, longest = last >= 0, LONGEST * source.lengths + 10
        order_keys = tf.range(shape[0])[:, None] * NUM_SLOTS + order
        ranks = tf.reshape(_ranks(tf.reshape(order_keys, [-1])), tf.shape(order))
        slots, strings = tf.gather_nd(slots, rows), tf.gather_nd(source.kept, rows)
        cells = tf.stack([rows[:, 0], slots], axis=1)
        counts = tf.scatter_nd(cells, tf.ones_like(slots), shape)  # [B, N]
        if self.is_free:
            no_order = tf.zeros([*shape, NUM_SLOTS])
            most = tf.where(counts > 0, tf.int32.max, 0)
            least = tf.zeros_like(counts)
            free = Counts(least, most, no_order, no_order, order, ranks, spaced, is_last, longest)
            return [CountConstraint.of(free, spellings)]
        is_closing = tf.strings.regex_full_match(strings, r"(?s)</.*>")
        is_opening = tf.strings.regex_full_match(strings, r"(?s)<[A-Za-z0-9].*>")
        is_opening &= ~tf.strings.regex_full_match(strings, r"(?s).*/>")
        names = tf.strings.regex_replace(strings, r"(?s)^</?([^\s/>]*).*$", r"\1")

        def smallest(values: tf.Tensor) -> tf.Tensor:
            """Returns the smallest value of the strings of each slot, [B, N]."""
            largest = tf.fill(shape, values.dtype.max)
            return tf.tensor_scatter_nd_min(largest, cells, values)

        name, place = smallest(tf.strings.to_hash_bucket_fast(names, 2**62)), rows[:, 1]
        opens, closes = (
            smallest(tf.cast(each, tf.int32)) == 1 for each in (is_opening, is_closing)
        )
        pairs = (name[:, :, None] == name[:, None, :]) & closes[:, :, None]  # [B, N, N]
        first, last = smallest(place), -smallest(-place)
        is_before = first[:, None, :] < last[:, :, None]  # as in the source
        opening, closing = pairs & opens[:, None, :] & is_before, pairs & closes[:, None, :]
        opening, closing = tf.cast(opening, tf.float32), tf.cast(closing, tf.float32)
        found = Counts(counts, counts, opening, closing, order, ranks, spaced, is_last, longest)
        return [CountConstraint.of(found, spellings)]

    def with_prefixes(self, source: EncodedTexts, prefixes: tf.Tensor) -> EncodedTexts:
        """Of strings that share a slot, puts those of a prefix first; see `Tokenizer`."""
        slots = source.ids - self.first_slot
        places, given = _places(slots), _Protected(prefixes, self._pattern, is_source=False)
        strings = tf.gather_nd(source.kept, places)
        keys = tf.strings.join([tf.strings.as_string(places[:, 0]), strings], MARK)
        numbers = tf.unique(tf.concat([given.keys(), keys], axis=0)).idx
        first, numbers = tf.split(numbers, [tf.size(given.strings), tf.size(strings)])
        num_first = tf.reduce_max(tf.concat([first, [-1]], axis=0)) + 1
        numbers = tf.minimum(numbers, num_first)
        slot_keys = places[:, 0] * NUM_SLOTS + tf.gather_nd(slots, places)
        order = tf.argsort(slot_keys, stable=True)
        prefix_first = tf.cast(slot_keys, tf.int64) * tf.cast(num_first + 1, tf.int64)
        prefix_first = tf.argsort(prefix_first + tf.cast(numbers, tf.int64), stable=True)
        strings = tf.gather(strings, prefix_first)
        kept = tf.tensor_scatter_nd_update(source.kept, tf.gather(places, order), strings)
        return source._replace(kept=kept)

    def write(self, source: EncodedTexts, ids: tf.Tensor) -> tf.Tensor:
        """Writes the results of a search, with the strings of the source; see `Tokenizer`."""
        num_results = tf.shape(ids)[1]
        return self._write(source, ids, num_results)

    def write_words(self, source: EncodedTexts, ids: tf.Tensor) -> tf.Tensor:
        """Writes the words of one result of each text; see `Tokenizer`."""
        return self._write(source, ids, num_results=1)

    def _write(
        self, source: EncodedTexts, ids: tf.Tensor, num_results: tf.Tensor | int
    ) -> tf.Tensor:
        ids = tf.where(ids == self._lead_byte, PAD_ID, ids)  # bytes never make a slot
        texts = super().write(source, ids)  # [B, K]
        strings = self._strings(source, ids, num_results)
        written = _put(tf.where(strings == "", MARK, strings), tf.reshape(texts, [-1]))
        return tf.reshape(without(written, MARK), tf.shape(texts))

    def _strings(
        self, source: EncodedTexts, ids: tf.Tensor, num_results: tf.Tensor | int
    ) -> tf.Tensor:
        """Returns the strings of the slots of ids, int32 [B, K, T], in their order.

        The K rows of a text are K results, or with `num_results` of 1 the words of one. The first
        place of a slot in a result gets its first string in the source, and so on. If there are
        more places than strings, the last string is repeated.
        """
        slots, source_slots = ids - self.first_slot, source.ids - self.first_slot
        places, own_places = _places(slots), _places(source_slots)
        results = places[:, 0] * num_results + places[:, 1] % num_results
        slot = tf.gather_nd(slots, places)
        rank = _ranks(results * NUM_SLOTS + slot)
        key, own_key = (
            rows[:, 0] * NUM_SLOTS + found
            for rows, found in (
                (places, slot),
                (own_places, tf.gather_nd(source_slots, own_places)),
            )
        )
        order = tf.argsort(own_key, stable=True)
        own_key = tf.gather(own_key, order)
        strings = tf.gather(tf.gather_nd(source.kept, own_places), order)
        first = tf.searchsorted(own_key, key, side="left")
        last = tf.searchsorted(own_key, key, side="right") - 1
        place = tf.minimum(first + rank, last)
        # Without such a slot in the source, which no search finds, the string is empty.
        strings = tf.concat([strings, [""]], axis=0)
        return tf.gather(strings, tf.where(last < first, tf.size(strings) - 1, place))


class _Protected:
    """Texts, string [B], cut at their protected strings.

    A source loses its invisible characters, but for those of the protected strings. These lose
    them too where a string is found only without them.

    Attributes:
        strings: string [P], the protected strings of all texts.
        rows: int32 [P], the texts that they are in.
    """

    def __init__(self, texts: tf.Tensor, pattern: str, is_source: bool = True) -> None:
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        texts = tf.strings.regex_replace(texts, RESERVED, "\ufffd")

        def marked(texts: tf.Tensor) -> tf.Tensor:
            texts = tf.strings.regex_replace(texts, BEFORE_ENTITY, rf"\1{CUT}\2")
            texts = tf.strings.regex_replace(texts, pattern, rf"{MARK}\0{MARK}")
            return tf.strings.regex_replace(texts, CUT, "")

        found = marked(texts)
        if is_source:
            seen = marked(visible(texts))
            found = tf.where(visible(found) == seen, found, seen)
        self._parts = tf.strings.split(found, MARK)  # [B, (parts)]
        starts = tf.gather(self._parts.row_starts(), self._parts.value_rowids())
        place = tf.range(tf.size(self._parts.values, tf.int64)) - starts
        # The pattern also finds text, such as percentages, so that nothing is found within it.
        is_text = tf.strings.regex_full_match(self._parts.values, TEXT)
        is_text &= ~tf.strings.regex_full_match(self._parts.values, without_text(pattern))
        self._is_protected = (place % 2 == 1) & ~is_text & (self._parts.values != "")
        if is_source:
            texts = tf.where(self._is_protected, self._parts.values, visible(self._parts.values))
            self._parts = self._parts.with_values(texts)
        self.strings = tf.boolean_mask(self._parts.values, self._is_protected)
        rows = tf.boolean_mask(self._parts.value_rowids(), self._is_protected)
        self.rows = tf.cast(rows, tf.int32)

    def keys(self) -> tf.Tensor:
        """Returns a string [P] for each string: the same for equal ones of a row."""
        return tf.strings.join([tf.strings.as_string(self.rows), self.strings], MARK)

    def with_slots(self) -> tf.Tensor:
        """Returns the texts with slots by the strings' first appearance, string [B]."""
        index = tf.unique(self.keys()).idx
        return self.replaced(_slot(index - tf.gather(self.first_of(index), self.rows)))

    def first_of(self, index: tf.Tensor) -> tf.Tensor:
        """Returns the smallest index, int32 [P], of each row, [B]."""
        return tf.math.unsorted_segment_min(index, self.rows, self.num_rows)

    @property
    def num_rows(self) -> tf.Tensor:
        """B."""
        return tf.cast(self._parts.nrows(), tf.int32)

    def replaced(self, strings: tf.Tensor) -> tf.Tensor:
        """Returns the texts with other strings, string [P], in place of the protected ones."""
        values = _fill(self._is_protected, strings, self._parts.values)
        rows = self._parts.value_rowids()
        return tf.strings.unsorted_segment_join(values, rows, self.num_rows)


def _protected_pairs(
    sources: tf.Tensor, targets: tf.Tensor, pattern: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns sources and targets with slots, string [B], and whether both protect the same."""
    source, target = _Protected(sources, pattern), _Protected(targets, pattern, is_source=False)
    # Numbers of the strings of all rows, those of the sources first.
    unique, index = tf.unique(tf.concat([source.keys(), target.keys()], axis=0))
    own, other = tf.split(index, [tf.size(source.strings), tf.size(target.strings)])
    first = source.first_of(own)  # [B]
    is_known = other < tf.reduce_max(tf.concat([own, [-1]], axis=0)) + 1
    number = tf.where(is_known, other - tf.gather(first, target.rows), 0)
    in_target = tf.where(is_known, _slot(number), target.strings)
    rows = tf.concat([source.rows, target.rows], axis=0)
    signs = tf.concat([tf.ones_like(own), -tf.ones_like(other)], axis=0)
    num_strings = tf.size(unique)
    surplus = tf.abs(tf.math.unsorted_segment_sum(signs, index, num_strings))
    row = tf.math.unsorted_segment_max(rows, index, num_strings)  # of each number
    agree = tf.math.unsorted_segment_sum(surplus, row, source.num_rows) == 0
    return source.with_slots(), target.replaced(in_target), agree


def _slotted(pairs: Pairs, pattern: str, size: int = 2000) -> Iterator[tuple[str, str]]:
    """Yields pairs with slots."""
    iterator = iter(pairs)
    while batch := list(itertools.islice(iterator, size)):
        sources, targets = (
            tf.constant([text.encode(errors="replace") for text in side])
            for side in zip(*batch, strict=True)
        )
        found = _protected_pairs(sources, targets, pattern)[:2]
        sides = ([text.decode() for text in side.numpy()] for side in found)
        yield from zip(*sides, strict=True)


def _put(strings: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Puts strings, one after another, in place of the slots of texts, string [B]."""
    one_slot = tf.strings.regex_replace(texts, ANY_SLOT, SLOTS[0])
    parts = tf.strings.split(one_slot, SLOTS[0])  # a string follows each but the last of a row
    is_last = tf.range(tf.size(parts.values, tf.int64)) == tf.repeat(
        parts.row_limits() - 1, parts.row_lengths()
    )
    return tf.strings.unsorted_segment_join(
        tf.strings.join([parts.values, _fill(~is_last, strings, "")]),
        parts.value_rowids(),
        parts.nrows(),
    )


def _slot(number: tf.Tensor) -> tf.Tensor:
    """Returns the character of the slot of a string's number."""
    return tf.gather(tf.constant(SLOTS), number % NUM_SLOTS)


def _places(slots: tf.Tensor) -> tf.Tensor:
    """Returns the places of slots, which count from 0, in a tensor of ids less the first slot."""
    return tf.cast(tf.where(slots >= 0), tf.int32)


def _fill(chosen: tf.Tensor, values: tf.Tensor, rest: tf.Tensor | str) -> tf.Tensor:
    """Puts values, one after another, where `chosen`, bool [P], is true, and `rest` elsewhere."""
    place = tf.maximum(tf.cumsum(tf.cast(chosen, tf.int32)) - 1, 0)
    return tf.where(chosen, tf.gather(tf.concat([values, [""]], axis=0), place), rest)


def _ranks(keys: tf.Tensor) -> tf.Tensor:
    """Returns how many earlier keys are equal to each, int32 [P]."""
    order = tf.argsort(keys, stable=True)
    ordered = tf.gather(keys, order)
    rank = tf.range(tf.size(keys)) - tf.searchsorted(ordered, ordered, side="left")
    return tf.gather(rank, tf.math.invert_permutation(order))
