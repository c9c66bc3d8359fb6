"""The graphs from strings to strings, which `Translator` runs and an export contains.

Texts of similar length are computed together, in groups of bounded size. So a long text does not
slow down a short one, and the memory is bounded for any input. Texts are string [B]; bytes that are
not UTF-8 are read as U+FFFD. G is the number of rows of a group.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, DecodingOptions
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.model.losses import cross_entropy
from keras_transformer.registry import step_of
from keras_transformer.search.beam_search import Hypotheses, beam_search, length_divisor
from keras_transformer.search.constraints import (
    Constraint,
    PrefixConstraint,
    RepeatConstraint,
    constrained,
)
from keras_transformer.search.groups import map_groups
from keras_transformer.search.sampling import SampleConstraint
from keras_transformer.texts.documents import Documents
from keras_transformer.texts.prefixes import Prefixes, read_prefixes, without_space_after
from keras_transformer.tokenizers import EncodedTexts, Side, Tokenizer, shifted
from keras_transformer.tokenizers.sides import utf8

# Bounds of a group: rows, tokens of all hypotheses, and logits in memory at once.
GROUP_ROWS = 64
GROUP_TOKENS = 2**15
GROUP_LOGITS = 2**25


class TranslatedTexts(NamedTuple):
    """Translations; where a text has fewer than n, the score is -inf and the translation empty."""

    translations: tf.Tensor  # string [B, n], valid UTF-8, best first
    scores: tf.Tensor  # float32 [B, n], log probabilities in nats over the length penalty
    truncated: tf.Tensor  # bool [B], whether the source, or the prefix, was truncated
    # Of the best translation, if asked for: its words, padded with "", and their log probabilities
    words: tf.Tensor | None = None  # string [B, n]
    log_probabilities: tf.Tensor | None = None  # float32 [B, n], in nats


class ScoredTexts(NamedTuple):
    """Log probabilities of given translations."""

    log_probs: tf.Tensor  # float32 [B], log probability of target and end in nats
    scores: tf.Tensor  # float32 [B], the log probability over the length penalty, as in a search
    truncated: tf.Tensor  # bool [B], whether the source or the target was truncated


class Alignments(NamedTuple):
    """Best translations, and how each piece was found. Rows are padded, pieces with ""."""

    source_pieces: tf.Tensor  # string [B, S], the source's tokens, its end included
    target_pieces: tf.Tensor  # string [B, T], the best translation's
    source_lengths: tf.Tensor  # int32 [B]
    target_lengths: tf.Tensor  # int32 [B]
    attention: tf.Tensor  # float32 [B, T, S], the weights when each target piece was chosen
    log_probabilities: tf.Tensor  # float32 [B, T], of the target pieces, in nats


class TextSearch:
    """The graphs from strings to strings of a model and its tokenizer.

    Args:
        model: the model.
        tokenizer: the model's tokenizer.
        options: how to search.
        sample_seed: int64 [], instead of that of `options`.
        read_weights: returns the values of `model.weights` to compute with, once in each graph;
            None for the model's own.
        shared_search: computes `search` without prefixes; None for a graph in each caller.

    Attributes:
        max_source_tokens: maximum length of a source in tokens, its end included.
        max_target_tokens: the same of a translation.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        sample_seed: tf.Tensor | None = None,
        read_weights: Callable[[], Sequence[tf.Tensor]] | None = None,
        shared_search: Callable[[EncodedTexts, int | tf.Tensor], Hypotheses] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.sample_seed = options.sample_seed if sample_seed is None else sample_seed
        self._read_weights = read_weights or (lambda: list(map(_value, model.weights)))
        self._shared_search = shared_search
        max_positions = model.config.max_positions or tf.int32.max
        self.max_source_tokens = min(options.max_source_length, max_positions)
        longest = options.max_source_length + options.extra_length
        self.max_target_tokens = min(longest, max_positions)

    def search(
        self, source: EncodedTexts, num_best: int | tf.Tensor = 1, prefixes: Prefixes | None = None
    ) -> Hypotheses:
        """Searches for the `num_best` translations of each source, group by group.

        A source of no tokens has a translation of no tokens.
        """
        if self._shared_search is not None and prefixes is None:
            return self._shared_search(source, num_best)
        with self._weights_read():
            return self._search(source, num_best, prefixes)

    def _constraints(self, source: EncodedTexts, prefixes: Prefixes | None) -> list[Constraint]:
        options, target = self.options, self.tokenizer.target
        constraints = [*self.tokenizer.constraints(source)]
        if options.no_repeat_ngram > 0:
            exempt = next((one.exempt for one in constraints if one.exempt), None)
            constraints.append(RepeatConstraint(options.no_repeat_ngram, target.first_byte, exempt))
        if prefixes is not None:  # which hold whatever those before forbid
            start = sum(one.num_forced for one in constraints)
            constraints.append(PrefixConstraint.of(*prefixes, target.spellings(), start))
        if options.sample_from is not None:
            constraints.append(SampleConstraint.of(source.ids, options, self.sample_seed))
        return constraints

    def _search(
        self, source: EncodedTexts, num_best: int | tf.Tensor, prefixes: Prefixes | None
    ) -> Hypotheses:
        options, vocab_size = self.options, self.model.config.num_target_ids
        beam_size = options.beam_size
        max_lengths = tf.minimum(source.lengths + options.extra_length, self.max_target_tokens)
        is_empty = source.lengths == 0  # [B]
        max_lengths = tf.where(is_empty, 1, max_lengths)
        constraints = self._constraints(source, prefixes)
        min_tokens = sum((one.min_tokens for one in constraints), tf.constant(0))
        max_lengths = tf.maximum(max_lengths, min_tokens + 1)
        if prefixes is not None:
            is_empty &= min_tokens == self.tokenizer.num_forced
        max_positions = self.model.config.max_positions
        if max_positions is not None:
            max_lengths = tf.minimum(max_lengths, max_positions)
        # `reduce_max` of no lengths is the smallest int32.
        longest = tf.maximum(tf.reduce_max(max_lengths), 0)
        step = step_of(self.model, longest, tf.size(max_lengths) * beam_size)

        def search_group(rows: tf.Tensor) -> Hypotheses:
            cache, row_state = step.initial_state(_rows(source.ids, rows), beam_size)
            limits = tf.gather(max_lengths, rows)
            step_fn, cache, row_state = constrained(
                step, cache, row_state, constraints, rows, limits, beam_size
            )
            best = beam_search(step_fn, cache, limits, options, row_state, num_best)
            has_none = tf.gather(is_empty, rows)  # [G]
            scores_of_empty = tf.where(tf.range(num_best) == 0, 0.0, -float("inf"))  # [num_best]
            return Hypotheses(
                ids=tf.where(has_none[:, None, None], PAD_ID, best.ids[:, :num_best]),
                scores=tf.where(has_none[:, None], scores_of_empty, best.scores[:, :num_best]),
            )

        hypotheses = map_groups(
            search_group,
            costs=max_lengths,
            max_cost=GROUP_TOKENS // beam_size,
            max_rows=max(1, min(GROUP_ROWS, GROUP_LOGITS // (beam_size * vocab_size))),
            empty=Hypotheses(tf.zeros([0, num_best, longest], tf.int32), tf.zeros([0, num_best])),
        )
        longest = tf.maximum(tf.reduce_max(_lengths(hypotheses.ids)), 1)
        return Hypotheses(hypotheses.ids[:, :, :longest], hypotheses.scores)

    def translate(
        self,
        texts: tf.Tensor,
        num_best: int = 1,
        prefixes: tf.Tensor | None = None,
        with_words: bool = False,
    ) -> TranslatedTexts:
        """Returns the `num_best` best translations of each text, string [B].

        A text without tokens, such as white space, has one empty translation. One that needs no
        model has its known translation, unless there is a prefix. Where hypotheses are
        the same text in different pieces, the best one stays. A prefix, of string [B], is cut to
        half of the maximum length of a translation.
        """
        source, known = self._encode(texts, prefixes)
        given, truncated = None, source.truncated
        if prefixes is not None:
            given, source = read_prefixes(self.tokenizer, source, prefixes)
            longest = self.max_target_tokens // 2
            is_cut = given.tokens.row_lengths() > longest
            truncated |= is_cut
            given = Prefixes(given.tokens[:, :longest], given.is_word_over & ~is_cut)
        found = self.search(source, num_best, given)
        translations, scores = self._write(source, found.ids, known), found.scores
        if given is not None:
            written = self.tokenizer.write(source, given.tokens.to_tensor()[:, None])[:, 0]
            written = tf.where(given.is_word_over, "", written)
            translations = without_space_after(written, translations)
        if num_best > 1:
            translations, scores = _without_repeats(translations, scores)
        words = self._words(source, found.ids[:, 0], known) if with_words else ()
        return TranslatedTexts(translations, scores, truncated, *words)

    def _encode(
        self, texts: tf.Tensor, prefixes: tf.Tensor | None = None
    ) -> tuple[EncodedTexts, tf.Tensor]:
        """Returns sources to search for, and the known translations of the others, or "" [B]."""
        texts = utf8(texts)
        known = self.tokenizer.wrapper.known_translations(texts)
        if prefixes is not None:
            known = tf.where(prefixes == "", known, "")
        unknown = tf.where(known == "", texts, "")
        return self.tokenizer.encode(unknown, self.max_source_tokens), known

    def _write(self, source: EncodedTexts, ids: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
        """Writes the results of a search, int32 [B, n, T], or what is known, string [B, n]."""
        written = self.tokenizer.write(source, ids)
        best = tf.where(known == "", written[:, 0], known)
        return tf.concat([best[:, None], written[:, 1:]], axis=1)

    def _words(
        self, source: EncodedTexts, ids: tf.Tensor, known: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the words of ids, int32 [B, T] -> string [B, n], and their log probabilities.

        A known translation is one word.
        """
        spellings = self.tokenizer.target.spellings()
        begins_word = [spelling.startswith(b" ") for spelling in spellings]
        place, first = tf.range(tf.shape(ids)[1]), self.tokenizer.num_forced
        is_text = (ids != PAD_ID) & (ids != EOS_ID) & (place >= first)
        is_first = place == first
        word = tf.cumsum(tf.cast(tf.gather(begins_word, ids) | is_first, tf.int32), axis=1) - 1
        num_words = tf.maximum(tf.reduce_max(tf.where(is_text, word, -1)), -1) + 1
        is_in = tf.one_hot(tf.where(is_text, word, -1), num_words, True, False, axis=1)  # [B, n, T]
        words = tf.where(is_in, ids[:, None], PAD_ID)[:, None]  # [B, 1, n, T]
        words = self.tokenizer.write(source, words)[:, 0]
        log_probs = self._log_probs(source, ids)[:, None]
        log_probs = tf.reduce_sum(tf.where(is_in, log_probs, 0.0), axis=2)
        words = tf.concat([known[:, None], words], axis=1)
        return words, tf.pad(log_probs, [[0, 0], [1, 0]])

    def translate_documents(
        self,
        texts: tf.Tensor,
        max_tokens: int | None = None,
        num_best: int = 1,
        with_words: bool = False,
    ) -> tuple[TranslatedTexts, tf.Tensor]:
        """Translates texts of any length, string [B], sentence by sentence, without truncation.

        A sentence of too many tokens is translated in parts. White space between sentences is kept.
        A text of several sentences has one translation, and the sum of their scores. The graph
        fails if all texts together have more than `max_tokens` tokens, the end of each sentence
        included. Also returns the number of sentences of each text, int32 [B].
        """
        longest = self.max_source_tokens - self.tokenizer.num_delimiters
        documents = Documents(self.tokenizer, texts, longest)
        source = documents.parts(max_tokens)
        found = self.search(source, num_best)
        written = self._write(source, found.ids, documents.known)  # [P, n]
        num_parts = documents.total(tf.ones_like(source.lengths))  # [B]
        is_there = (num_parts == 1)[:, None] | (tf.range(num_best) == 0)  # [B, n]
        texts = tf.stack([documents.join(written[:, rank]) for rank in range(num_best)], axis=1)
        translations = tf.where(is_there, texts, "")
        scores = tf.where(is_there, documents.total(found.scores), -float("inf"))
        if num_best > 1:
            translations, scores = _without_repeats(translations, scores)
        words: tuple[tf.Tensor, ...] = ()
        if with_words:
            columns = self._words(source, found.ids[:, 0], documents.known)  # [P, n]
            words = tuple(documents.by_text(column, columns[0] != "") for column in columns)
        truncated = tf.fill([tf.shape(texts)[0]], False)
        result = TranslatedTexts(translations, scores, truncated, *words)
        return result, documents.num_sentences()

    def score(self, sources: tf.Tensor, targets: tf.Tensor) -> ScoredTexts:
        """Computes the log probabilities of given translations, string [B], of sources."""
        source, target = self.tokenizer.encode_pairs(
            sources, targets, self.max_source_tokens, self.max_target_tokens
        )
        log_probs = tf.reduce_sum(self._log_probs(source, target.ids), axis=1)
        divisor = length_divisor(
            target.lengths + 1, self.options.length_penalty, self.options.length_penalty_kind
        )
        return ScoredTexts(log_probs, log_probs / divisor, source.truncated | target.truncated)

    def align(self, texts: tf.Tensor, layer: int = -1) -> Alignments:
        """Translates texts, string [B], with the mean of a layer's heads of cross-attention."""
        source, _ = self._encode(texts)
        best = self.search(source).ids[:, 0]  # [B, T]

        def attention_of(source_ids: tf.Tensor, target_ids: tf.Tensor) -> tf.Tensor:
            scores = self.model.attention_scores(source_ids, _decoder_ids(target_ids))
            mean = tf.reduce_mean(tf.cast(scores.cross[layer], tf.float32), axis=1)  # [G, T, S]
            return tf.where(target_ids[..., None] != PAD_ID, mean, 0.0)

        sizes = [tf.shape(best)[1], tf.shape(source.ids)[1]]
        return Alignments(
            source_pieces=_pieces(self.tokenizer.source, source.ids),
            target_pieces=_pieces(self.tokenizer.target, best),
            source_lengths=_lengths(source.ids),
            target_lengths=_lengths(best),
            attention=self._map_pairs(attention_of, source, best, tf.zeros([0, *sizes])),
            log_probabilities=self._log_probs(source, best),
        )

    def _log_probs(self, source: EncodedTexts, target_ids: tf.Tensor) -> tf.Tensor:
        """Returns the log probability of each token, int32 [B, T] -> float32 [B, T]."""

        def log_probs_of(source_ids: tf.Tensor, target_ids: tf.Tensor) -> tf.Tensor:
            logits = self.model(
                {"source_ids": source_ids, "target_ids": _decoder_ids(target_ids)}, training=False
            )  # [G, T, V]
            is_chosen = tf.range(tf.shape(target_ids)[1]) >= self.tokenizer.num_forced
            is_chosen &= target_ids != PAD_ID
            return tf.where(is_chosen, -cross_entropy(logits, target_ids), 0.0)

        none = tf.zeros([0, tf.shape(target_ids)[1]])
        return self._map_pairs(log_probs_of, source, target_ids, none)

    def _map_pairs(
        self,
        function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        source: EncodedTexts,
        target_ids: tf.Tensor,
        empty: tf.Tensor,
    ) -> tf.Tensor:
        """Computes a function of ids, [G, S] and [G, T], group by group."""
        with self._weights_read():
            return map_groups(
                lambda rows: function(_rows(source.ids, rows), _rows(target_ids, rows)),
                costs=source.lengths + _lengths(target_ids) + 1,
                max_cost=GROUP_LOGITS // self.model.config.num_target_ids,
                max_rows=GROUP_ROWS,
                empty=empty,
            )

    def _weights_read(self) -> keras.StatelessScope:
        """Reads the weights once for all groups, which may then be computed side by side."""
        values = zip(self.model.weights, self._read_weights(), strict=True)
        return keras.StatelessScope(state_mapping=values)


def _value(weight: keras.Variable) -> tf.Tensor:
    return tf.convert_to_tensor(weight.value)


def _without_repeats(translations: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns translations, string [B, n], without those that are equal to a better one."""
    place = tf.range(tf.shape(translations)[1])
    is_same = translations[:, :, None] == translations[:, None, :]  # [B, n, n]
    is_repeated = tf.reduce_any(is_same & (place[:, None] < place), axis=1)  # [B, n]
    order = tf.argsort(tf.cast(is_repeated, tf.int32), axis=1, stable=True)
    return (
        tf.gather(tf.where(is_repeated, "", translations), order, batch_dims=1),
        tf.gather(tf.where(is_repeated, -float("inf"), scores), order, batch_dims=1),
    )


def _rows(ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns some rows of ids [B, S], without the columns that are only padding but one.

    An RNN has at least one step.
    """
    ids = tf.gather(ids, rows)
    return ids[:, : tf.maximum(tf.reduce_max(_lengths(ids)), 1)]


def _decoder_ids(target_ids: tf.Tensor) -> tf.Tensor:
    """Returns the decoder's input for targets, [G, T], where T may be 0."""
    return shifted(target_ids)[:, : tf.shape(target_ids)[1]]


def _lengths(ids: tf.Tensor) -> tf.Tensor:
    """Counts the tokens before the padding, [..., T] -> int32 [...]."""
    return tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=-1)


def _pieces(side: Side, ids: tf.Tensor) -> tf.Tensor:
    return tf.where(ids == PAD_ID, "", side.pieces(ids))
