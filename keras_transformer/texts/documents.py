"""Texts of any length as sentences and their parts, and the translations of these as texts."""

import tensorflow as tf

from keras_transformer.languages import UNSPACED
from keras_transformer.texts.sentences import WIDE_END, are_blank, cut_rows, split_sentences
from keras_transformer.tokenizers import EncodedTexts, Tokenizer
from keras_transformer.tokenizers.sides import utf8

CUT = "\1"  # stands between the translations of parts
WIDE_COMMAS = r"\x{3001}\x{FF0C}"


class Documents:
    """B texts in P parts: sentences, and pieces of those with more than `max_tokens` tokens."""

    def __init__(self, tokenizer: Tokenizer, texts: tf.Tensor, max_tokens: int) -> None:
        wrapper = tokenizer.wrapper
        hidden, restore = wrapper.hide(utf8(texts))
        segments = restore(split_sentences(hidden, tokenizer.languages[0]))  # [B, (segments)]
        self._num_texts, self._text_of_segment = tf.shape(texts)[0], segments.value_rowids()
        self._segments = segments.values
        self._is_blank = are_blank(self._segments)  # which are not translated
        numbers = tf.where(~self._is_blank)[:, 0]
        sentences = tf.gather(self._segments, numbers)  # the other segments
        known = wrapper.known_translations(sentences)
        read, context = wrapper.read(tf.where(known == "", sentences, ""))
        tokens = tokenizer.source.tokenize(read)
        self._tokens, rows = cut_rows(tokens, max_tokens, tokenizer.source.head_lengths(tokens))
        self._tokenizer = tokenizer
        self._context = wrapper.context_of_parts(context, self._tokens, rows)
        self.known = tf.gather(known, rows)  # string [P], "" for parts to search for
        self._segment_of_part = tf.gather(numbers, rows)
        self._text_of_part = tf.gather(self._text_of_segment, self._segment_of_part)

    def parts(self, max_tokens: int | None) -> EncodedTexts:
        """Returns the parts; the graph fails if they have more tokens in all, with their ends."""
        tokens = self._tokens
        if max_tokens is not None:
            num_tokens = tf.size(tokens.values) + tf.size(self._segment_of_part)
            message = f"A request must have at most {max_tokens} tokens. Received:"
            check = tf.debugging.Assert(num_tokens <= max_tokens, [message, num_tokens])
            with tf.control_dependencies([check]):
                tokens = tf.identity(tokens)  # [P, (tokens)]
        return self._tokenizer.encode_tokens(tokens, self._context)

    def num_sentences(self) -> tf.Tensor:
        counts = tf.cast(~self._is_blank, tf.int32)
        return tf.math.unsorted_segment_sum(counts, self._text_of_segment, self._num_texts)

    def total(self, values: tf.Tensor) -> tf.Tensor:
        """Adds values of the parts of each text, [P, ...] -> [B, ...]."""
        return tf.math.unsorted_segment_sum(values, self._text_of_part, self._num_texts)

    def join(self, translations: tf.Tensor) -> tf.Tensor:
        """Joins the translations of parts, string [P], into those of texts, string [B].

        No space stands within a script without spaces, or after its full stop or comma.
        """
        joints = (
            (rf"({WIDE_END}|[{WIDE_COMMAS}]){CUT}", r"\1"),
            (rf"([{UNSPACED}]){CUT}([{UNSPACED}])", r"\1\2"),
            (CUT, " "),
        )
        translated = tf.strings.unsorted_segment_join(
            translations, self._segment_of_part, tf.size(self._segments), CUT
        )
        for pattern, joint in joints:
            translated = tf.strings.regex_replace(translated, pattern, joint)
        segments = tf.where(self._is_blank, self._segments, translated)
        before = tf.roll(segments, 1, axis=0)  # a text begins with no space, but with "" before it
        is_after_stop = tf.strings.regex_full_match(before, rf"(?s).*{WIDE_END}")
        segments = tf.where(is_after_stop & (segments == " "), "", segments)
        return tf.strings.unsorted_segment_join(segments, self._text_of_segment, self._num_texts)

    def by_text(self, values: tf.Tensor, is_in: tf.Tensor) -> tf.Tensor:
        """Returns those of the parts' values, [P, n], that are in, one after another, [B, n']."""
        rows = tf.ragged.boolean_mask(values, is_in)
        num_texts = tf.cast(self._num_texts, tf.int64)
        parts = tf.RaggedTensor.from_value_rowids(rows, self._text_of_part, num_texts)
        return parts.merge_dims(1, 2).to_tensor()
