"""The graphs from strings to strings: what `Translator` runs and what an export holds.

Rows of similar length are computed together, in groups that are small enough for the memory: so
a long text makes no short one wait for it step by step, and memory is bounded for any input.

Shapes (the package's glossary): B batch, S source length, T target length, K beams, G rows of a
group.
"""

import dataclasses
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import BOS_ID, PAD_ID
from keras_transformer.decoding import (
    Hypotheses,
    check_num_best,
    check_number,
    length_penalty,
    search,
)
from keras_transformer.errors import InputError
from keras_transformer.losses import cross_entropy
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import EncodedTexts, Tokenizer, with_end

# Bounds of a group: its rows, the tokens of all its hypotheses, and the logits it holds at once.
GROUP_ROWS = 128
GROUP_TOKENS = 2**15
GROUP_LOGITS = 2**25


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How to search (section 6.1).

    Attributes:
        beam_size: beams, K; 1 is greedy search.
        alpha: strength of the length penalty, at least 0.
        extra_length: a translation has at most this many tokens more than its source.
        max_source_length: longer sources are cut to this many tokens, end symbol included.

    Raises:
        InputError: if a value is out of range.
    """

    beam_size: int = 4
    alpha: float = 0.6
    extra_length: int = 50
    max_source_length: int = 512

    def __post_init__(self) -> None:
        for name, kind, least, most in (
            ("beam_size", Integral, 1, 1_000),
            ("alpha", Real, 0, 1_000),
            ("extra_length", Integral, 0, 2**20),
            ("max_source_length", Integral, 2, 2**20),
        ):
            value = getattr(self, name)
            check_number(name, value, kind)
            if not value >= least:
                raise InputError(f"`{name}` must be at least {least}. Received: {name}={value}")
            if value > most:
                raise InputError(f"`{name}` must be at most {most}. Received: {name}={value}")
            # NumPy's numbers would pass too, and JSON takes none of them.
            object.__setattr__(self, name, int(value) if kind is Integral else float(value))


class TranslatedTexts(NamedTuple):
    """What `translate_texts` returns.

    Attributes:
        translations: string [B, n], valid UTF-8, best first.
        scores: float32 [B, n], nats over the length penalty; -inf, with an empty translation,
            where there are fewer than n.
        truncated: bool [B], True where the source was cut to `max_source_length`.
    """

    translations: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


class TranslatedDocuments(NamedTuple):
    """What `translate_documents` returns.

    Attributes:
        translations: string [B], valid UTF-8.
        scores: float32 [B], the sum of the sentences' scores.
        num_sentences: int32 [B].
    """

    translations: tf.Tensor
    scores: tf.Tensor
    num_sentences: tf.Tensor


class ScoredTexts(NamedTuple):
    """What `score_texts` returns.

    Attributes:
        log_probs: float32 [B], log probability of the target in nats, its end included.
        scores: float32 [B], the same over the length penalty, as a search scores.
        truncated: bool [B], True where source or target was cut.
    """

    log_probs: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


class Alignments(NamedTuple):
    """What `align_texts` returns; everything is padded, pieces with "".

    Attributes:
        source_pieces: string [B, S], the source's tokens, its end included.
        target_pieces: string [B, T], the best translation's.
        source_lengths: int32 [B].
        target_lengths: int32 [B].
        attention: float32 [B, T, S], what was attended to when each target piece was chosen.
    """

    source_pieces: tf.Tensor
    target_pieces: tf.Tensor
    source_lengths: tf.Tensor
    target_lengths: tf.Tensor
    attention: tf.Tensor


def translate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: tf.Tensor,
    options: DecodingOptions,
    num_best: int = 1,
) -> TranslatedTexts:
    """Translates texts. One without any token, such as of blanks, has an empty translation.

    Args:
        model: the model.
        tokenizer: the model's.
        texts: string [B]; bytes that are not UTF-8 read as U+FFFD.
        options: how to search.
        num_best: how many translations of each text to return, n; a search for fewer ends sooner.

    Raises:
        InputError: if `num_best` is not in 1 to the options' `beam_size`.
    """
    check_num_best(num_best, options.beam_size)
    source = tokenizer.encode(texts, most_source_tokens(model, options))
    translations, scores = _translate(
        model, tokenizer, source.ids, source.lengths, options, num_best
    )
    return TranslatedTexts(translations, scores, source.truncated)


def translate_documents(
    model: Transformer, tokenizer: Tokenizer, texts: tf.Tensor, options: DecodingOptions
) -> TranslatedDocuments:
    """Translates texts of any length sentence by sentence, so that nothing is cut off.

    A sentence of too many tokens is translated in parts. White space between sentences stays.

    Args:
        model: the model.
        tokenizer: the model's.
        texts: string [B].
        options: how to search.
    """
    ragged = split_sentences(texts)  # [B, (segments)]
    segments, text_of_segment = ragged.values, ragged.value_rowids()
    num_texts, num_segments = tf.shape(texts)[0], tf.size(segments)
    is_blank = tf.strings.regex_full_match(segments, r"[\s\p{Z}]*")
    sentences = tf.where(~is_blank)[:, 0]  # their numbers among the segments
    most_tokens = most_source_tokens(model, options) - 1
    tokens = tokenizer.tokenize(tf.gather(segments, sentences))
    parts, sentence_of_part = _cut(tokens, most_tokens)  # [P, (tokens)]
    best, scores = _translate(model, tokenizer, *with_end(parts), options, 1)  # [P, 1]
    segment_of_part = tf.gather(sentences, sentence_of_part)
    translated = tf.strings.unsorted_segment_join(best[:, 0], segment_of_part, num_segments, " ")
    return TranslatedDocuments(
        translations=tf.strings.unsorted_segment_join(
            tf.where(is_blank, segments, translated), text_of_segment, num_texts
        ),
        scores=tf.math.unsorted_segment_sum(
            scores[:, 0], tf.gather(text_of_segment, segment_of_part), num_texts
        ),
        num_sentences=tf.math.unsorted_segment_sum(
            tf.cast(~is_blank, tf.int32), text_of_segment, num_texts
        ),
    )


def score_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: tf.Tensor,
    targets: tf.Tensor,
    options: DecodingOptions,
) -> ScoredTexts:
    """Computes how likely the model finds given translations.

    Args:
        model: the model.
        tokenizer: the model's.
        sources: string [B].
        targets: string [B].
        options: lengths, and the strength of the length penalty.
    """
    source = tokenizer.encode(sources, most_source_tokens(model, options))
    target = tokenizer.encode(targets, most_target_tokens(model, options))

    def log_probs_of(rows: tf.Tensor) -> tf.Tensor:
        source_ids, target_ids = _rows(source.ids, rows), _rows(target.ids, rows)
        logits = model(
            {"source_ids": source_ids, "target_ids": shifted(target_ids)}, training=False
        )  # [G, T, V]
        is_token = tf.cast(target_ids != PAD_ID, tf.float32)  # [G, T]
        return -tf.reduce_sum(cross_entropy(logits, target_ids) * is_token, axis=1)

    log_probs = _by_groups(
        log_probs_of,
        costs=source.lengths + target.lengths + 2,
        most=max(1, GROUP_LOGITS // model.config.vocab_size),
        nothing=tf.zeros([0]),
    )
    penalty = length_penalty(target.lengths + 1, options.alpha)
    return ScoredTexts(log_probs, log_probs / penalty, source.truncated | target.truncated)


def align_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: tf.Tensor,
    options: DecodingOptions,
    layer: int = -1,
) -> Alignments:
    """Translates texts and tells what each token of the translation attended to.

    Args:
        model: the model.
        tokenizer: the model's.
        texts: string [B].
        options: how to search.
        layer: the decoder layer whose cross-attention is shown, the mean over its heads.
    """
    source = tokenizer.encode(texts, most_source_tokens(model, options))
    best = best_ids(model, source, options)  # [B, T]
    target_lengths = _lengths(best)

    def attention_of(rows: tf.Tensor) -> tf.Tensor:
        target_ids = _rows(best, rows)
        scores = model.attention_scores(_rows(source.ids, rows), shifted(target_ids))
        mean = tf.reduce_mean(tf.cast(scores.cross[layer], tf.float32), axis=1)  # [G, T, S]
        return tf.where((target_ids != PAD_ID)[..., None], mean, 0.0)

    sizes = [tf.shape(best)[1], tf.shape(source.ids)[1]]
    return Alignments(
        source_pieces=_pieces(tokenizer, source.ids),
        target_pieces=_pieces(tokenizer, best),
        source_lengths=_lengths(source.ids),
        target_lengths=target_lengths,
        attention=_by_groups(
            attention_of,
            costs=source.lengths + target_lengths + 1,
            most=GROUP_TOKENS,
            nothing=tf.zeros([0, *sizes]),
        ),
    )


# What a full stop follows that ends no sentence: a title, letters ("U.S.", not "can't"), a short
# number (not "3.50"), "No" before a number.
_TITLES = "Dr|Mr|Mrs|Ms|Prof|St|Nr|vs|bzw|ca|Jr|Sr|Mt|Fig|Vol"
_ABBREVIATIONS = (
    (
        rf"((?:^|[^\p{{L}}\p{{N}}\p{{M}}])(?:{_TITLES})"
        r"|(?:^|[^\p{L}\p{N}\p{M}'\x{2019}])(?:\p{L}\.)*\p{L}"
        r"|(?:^|[^\p{L}\p{N}\p{M}.,:\-])\d{1,2})\.",
        "\\1\x02",
    ),
    (r"((?:^|[^\p{L}\p{N}\p{M}])No)\.([\t\p{Zs}]*\p{N})", "\\1\x02\\2"),
)
_STOPS = r"[.!?\x{2026}\x{0964}\x{061F}\x{06D4}]+"
_CLOSING = r"\"'\x{2019}\x{201D}\x{00BB})\]"
_OPENING = r"\"'\x{2018}\x{201C}\x{201E}\x{00AB}\x{00BF}\x{00A1}(\[\x{2013}-"
_WIDE_STOPS = r"\x{3002}\x{FF01}\x{FF1F}\x{FF61}"  # Chinese and Japanese
_WIDE_CLOSING = r"\x{300D}\x{300F}\x{2019}\x{201D}\x{FF09}"
_SPLITS = (
    # (pattern, its rewriting): \x01 is put around what lies between sentences.
    (
        rf"({_STOPS}[{_CLOSING}]*)([\t\p{{Zs}}]+)([\p{{Lu}}\p{{Lt}}\p{{Lo}}\p{{N}}{_OPENING}])",
        "\\1\x01\\2\x01\\3",
    ),
    (rf"([{_WIDE_STOPS}]+[{_WIDE_CLOSING}]*)([\t\p{{Zs}}]+)", "\\1\x01\\2\x01"),
    # Without a space, which the translation may need.
    (
        rf"([{_WIDE_STOPS}]+[{_WIDE_CLOSING}]*)([^\x01\s\p{{Z}}{_WIDE_STOPS}{_WIDE_CLOSING}])",
        "\\1\x01 \x01\\2",
    ),
    (r"([\t\p{Zs}]*\n[\t\n\p{Zs}]*)", "\x01\\1\x01"),
)


def split_sentences(texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts, string [B], into sentences and what lies between them, [B, (segments)].

    A sentence ends at a line break, or at a full stop, question or exclamation mark that white
    space and a letter that is no small one, a digit, or an opening mark follow, but not at that of
    a known abbreviation, a single letter or a number of two digits. Joined, the segments are the
    text again, with one form of line break, and a space after a Chinese or Japanese full stop that
    more text follows.
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, r"\r\n?|[\x0b\x0c\x{85}\x{2028}\x{2029}]", "\n")
    texts = tf.strings.regex_replace(texts, r"[\x00-\x08\x0e-\x1f\x7f]", " ")
    for pattern, rewriting in (*_ABBREVIATIONS, *_SPLITS):
        texts = tf.strings.regex_replace(texts, pattern, rewriting)
    segments = tf.strings.split(texts, "\x01")
    return segments.with_values(tf.strings.regex_replace(segments.values, "\x02", "."))


def _cut(tokens: tf.RaggedTensor, most: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Cuts rows [R, (tokens)] into parts of at most `most` tokens, [P, (tokens)], P >= R.

    Returns also each part's row, [P]. A row without tokens is one part.
    """
    lengths = tokens.row_lengths()  # [R]
    num_parts = tf.maximum((lengths + most - 1) // most, 1)  # [R]
    row_of_part = tf.repeat(tf.range(tokens.nrows()), num_parts)  # [P]
    first_part = tf.cumsum(num_parts, exclusive=True)  # [R]
    number = tf.range(tf.size(row_of_part, tf.int64)) - tf.gather(first_part, row_of_part)
    part_lengths = tf.clip_by_value(tf.gather(lengths, row_of_part) - number * most, 0, most)
    return tf.RaggedTensor.from_row_lengths(tokens.values, part_lengths), row_of_part


def best_ids(model: Transformer, source: EncodedTexts, options: DecodingOptions) -> tf.Tensor:
    """Returns each source's best translation, int32 [B, T], with its end; none of an empty one."""
    find = _search(model, source.ids, source.lengths, options, num_best=1)
    best = _by_groups(
        lambda rows: find(rows).ids[:, 0],
        **_group_bounds(model, source.lengths, options),
        nothing=tf.zeros(
            [0, tf.maximum(tf.reduce_max(_limits(model, source.lengths, options)), 0)], tf.int32
        ),
    )
    return best[:, : tf.maximum(tf.reduce_max(_lengths(best)), 0)]


def _translate(
    model: Transformer,
    tokenizer: Tokenizer,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    options: DecodingOptions,
    num_best: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Translates sources, int32 [B, S], of some tokens each besides the end.

    Returns:
        The best translations, string [B, num_best], and their scores.
    """
    find = _search(model, source_ids, source_lengths, options, num_best)

    def translations_of(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = find(rows)
        # Strings, of their own length each, for ids would be padded to the longest of all.
        return _detokenize(tokenizer, found.ids[:, :num_best]), found.scores[:, :num_best]

    found: tuple[tf.Tensor, tf.Tensor] = _by_groups(
        translations_of,
        **_group_bounds(model, source_lengths, options),
        nothing=(tf.zeros([0, num_best], tf.string), tf.zeros([0, num_best])),
    )
    return found


def _search(
    model: Transformer,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    options: DecodingOptions,
    num_best: int,
) -> Callable[[tf.Tensor], Hypotheses]:
    """Returns a function that finds the best hypotheses of a group of rows, int32 [G]."""
    beam_size = options.beam_size
    limits = _limits(model, source_lengths, options)

    output_kernel = model.output_kernel()

    def find(rows: tf.Tensor) -> Hypotheses:
        found = search(
            lambda ids, position, ancestors, memory: model.decode_step(
                ids, position, ancestors, memory, output_kernel
            ),
            model.no_ancestors(tf.size(rows) * beam_size),
            limits=tf.gather(limits, rows),
            beam_size=beam_size,
            alpha=options.alpha,
            memory=model.memory(_rows(source_ids, rows)),
            num_best=num_best,
        )
        is_empty = tf.gather(source_lengths, rows) == 0  # [G]
        of_empty = tf.where(tf.range(beam_size) == 0, 0.0, -float("inf"))  # [K]
        return Hypotheses(
            tf.where(is_empty[:, None, None], PAD_ID, found.ids),
            tf.where(is_empty[:, None], of_empty, found.scores),
        )

    return find


def _limits(model: Transformer, source_lengths: tf.Tensor, options: DecodingOptions) -> tf.Tensor:
    """The most tokens of each source's translations, int32 [B]."""
    limits = tf.minimum(source_lengths + options.extra_length, most_target_tokens(model, options))
    return tf.where(source_lengths == 0, 1, limits)


def _group_bounds(
    model: Transformer, source_lengths: tf.Tensor, options: DecodingOptions
) -> dict[str, Any]:
    """Arguments of `_by_groups` for a search."""
    beam_size, vocab_size = options.beam_size, model.config.vocab_size
    return {
        "costs": _limits(model, source_lengths, options),
        "most": max(1, GROUP_TOKENS // beam_size),
        "most_rows": max(1, min(GROUP_ROWS, GROUP_LOGITS // (beam_size * vocab_size))),
    }


def _by_groups(
    function: Callable[[tf.Tensor], Any],
    costs: tf.Tensor,
    most: int,
    nothing: Any,
    most_rows: int | None = None,
) -> Any:
    """Computes something for all rows, some rows of similar cost at a time.

    Args:
        function: of row numbers, int32 [G], the costliest first; returns a nest of tensors with
            a leading dimension of G.
        costs: int32 [B]; a group's number of rows times its highest cost is at most `most`,
            where it has more than one row.
        most: see `costs`.
        nothing: what the function would return for no rows; its other dimensions are as large as
            the results are to be padded to.
        most_rows: of a group; None for `GROUP_ROWS`.

    Returns:
        The results of all rows, a nest of tensors with a leading dimension of B.
    """
    order = tf.argsort(costs, direction="DESCENDING", stable=True)

    def advance(start: tf.Tensor, number: tf.Tensor, arrays: Any) -> tuple[Any, Any, Any]:
        size = tf.clip_by_value(most // costs[order[start]], 1, most_rows or GROUP_ROWS)
        rows = order[start : start + size]

        def put(array: tf.TensorArray, part: tf.Tensor, none: tf.Tensor) -> tf.TensorArray:
            missing = tf.shape(none)[1:] - tf.shape(part)[1:]
            paddings = tf.pad(missing[:, None], [[1, 0], [1, 0]])
            # There is no padding of strings, nor any need.
            padded = part if part.dtype == tf.string else tf.pad(part, paddings)
            return array.write(number, padded)

        arrays = tf.nest.map_structure(put, arrays, function(rows), nothing)
        return start + tf.size(rows), number + 1, arrays

    def array_of(none: tf.Tensor) -> tf.TensorArray:
        shape = tf.TensorShape([None, *none.shape[1:]])
        array = tf.TensorArray(
            none.dtype, size=1, dynamic_size=True, infer_shape=False, element_shape=shape
        )
        return array.write(0, none)  # so that there is one, with all its dimensions

    _, _, arrays = tf.while_loop(
        lambda start, *_: start < tf.size(costs),
        advance,
        (0, 1, tf.nest.map_structure(array_of, nothing)),
        parallel_iterations=1,
    )
    place = tf.math.invert_permutation(order)
    return tf.nest.map_structure(lambda array: tf.gather(array.concat(), place), arrays)


def _rows(ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Rows of ids [B, S], without what is padding in all of them."""
    ids = tf.gather(ids, rows)
    return ids[:, : tf.reduce_max(_lengths(ids))]


def _lengths(ids: tf.Tensor) -> tf.Tensor:
    """Tokens before the padding, [..., T] -> int32 [...]."""
    return tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=-1)


def shifted(target_ids: tf.Tensor) -> tf.Tensor:
    """The decoder's input for targets [B, T]."""
    return tf.pad(target_ids[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)


def _detokenize(tokenizer: Tokenizer, ids: tf.Tensor) -> tf.Tensor:
    """Ids [B, K, T] as strings [B, K]."""
    shape = tf.shape(ids)
    # The last dimension is 0 where there is no text at all, hence no -1.
    texts = tokenizer.detokenize(tf.reshape(ids, [shape[0] * shape[1], shape[2]]))
    return tf.reshape(texts, [shape[0], ids.shape[1] or shape[1]])


def _pieces(tokenizer: Tokenizer, ids: tf.Tensor) -> tf.Tensor:
    return tf.where(ids == PAD_ID, "", tokenizer.pieces(ids))


def most_source_tokens(model: Transformer, options: DecodingOptions) -> int:
    """Returns how many tokens a source may have, its end included."""
    return min(options.max_source_length, _most_positions(model))


def most_target_tokens(model: Transformer, options: DecodingOptions) -> int:
    """Returns how many tokens a translation may have, its end included."""
    return min(options.max_source_length + options.extra_length, _most_positions(model))


def _most_positions(model: Transformer) -> int:
    """Learned positions end somewhere; sinusoids do not."""
    is_learned = model.config.position_encoding == "learned"
    return model.config.max_length if is_learned else tf.int32.max
