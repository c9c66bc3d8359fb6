"""Splitting texts into sentences, and long sentences into parts, with TensorFlow operations."""

import tensorflow as tf

# A full stop after these does not end a sentence: a title, letters ("U.S.", not "can't"), a short
# number (not "3.50"), "No" before a number. Such a full stop is \x02 until the text is split.
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
    # (pattern, replacement): the replacement puts \x01 around the space between two sentences, and
    # around the space at both ends of the text.
    (r"(^[\t\p{Zs}]+|[\t\p{Zs}]+$)", "\x01\\1\x01"),
    (
        rf"({_STOPS}[{_CLOSING}]*)([\t\p{{Zs}}]+)([\p{{Lu}}\p{{Lt}}\p{{Lo}}\p{{N}}{_OPENING}])",
        "\\1\x01\\2\x01\\3",
    ),
    (rf"([{_WIDE_STOPS}]+[{_WIDE_CLOSING}]*)([\t\p{{Zs}}]+)", "\\1\x01\\2\x01"),
    # Chinese and Japanese have no space there; the translation may need one.
    (
        rf"([{_WIDE_STOPS}]+[{_WIDE_CLOSING}]*)([^\x01\s\p{{Z}}{_WIDE_STOPS}{_WIDE_CLOSING}])",
        "\\1\x01 \x01\\2",
    ),
    (r"([\t\p{Zs}]*\n[\t\n\p{Zs}]*)", "\x01\\1\x01"),
)


def split_sentences(texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts, string [B], into sentences and the white space between and around them.

    A sentence ends at a line break, or at a full stop, question mark or exclamation mark that is
    followed by white space and then by a letter that is not lower-case, a digit or an opening
    mark. The full stop of a known abbreviation, of a single letter or of a number of one or two
    digits does not end a sentence.

    Returns:
        string [B, (segments)]. Joined, the segments of a row are its text, with one form of line
        break, and with a space after a Chinese or Japanese full stop that more text follows.
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, r"\r\n?|[\x0b\x0c\x{85}\x{2028}\x{2029}]", "\n")
    texts = tf.strings.regex_replace(texts, r"[\x00-\x08\x0e-\x1f\x7f]", " ")
    for pattern, replacement in (*_ABBREVIATIONS, *_SPLITS):
        texts = tf.strings.regex_replace(texts, pattern, replacement)
    segments = tf.strings.split(texts, "\x01")
    return segments.with_values(tf.strings.regex_replace(segments.values, "\x02", "."))


def are_blank(texts: tf.Tensor) -> tf.Tensor:
    """Returns whether each text, of any shape, is empty or only white space."""
    return tf.strings.regex_full_match(texts, r"[\s\p{Z}]*")


def cut_rows(
    tokens: tf.RaggedTensor, max_tokens: int, head_lengths: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Cuts rows of tokens, int32 [R, (tokens)], into parts of at most `max_tokens`.

    Args:
        tokens: the rows.
        max_tokens: at least 1, and more than a head has.
        head_lengths: int32 [R], how many tokens at the start of a row each of its parts repeats.

    Returns:
        The parts, int32 [P, (tokens)], P >= R, and the row of each part, int64 [P]. A row without
        tokens is one part.
    """
    is_head = tf.ragged.range(tokens.row_lengths()) < tf.cast(head_lengths, tf.int64)[:, None]
    heads = tf.ragged.boolean_mask(tokens, is_head)
    tokens = tf.ragged.boolean_mask(tokens, ~is_head)
    longest = tf.maximum(max_tokens - heads.row_lengths(), 1)  # [R], without the head
    lengths = tokens.row_lengths()  # [R]
    num_parts = tf.maximum((lengths + longest - 1) // longest, 1)  # [R]
    row_of_part = tf.repeat(tf.range(tokens.nrows()), num_parts)  # [P]
    first_part = tf.cumsum(num_parts, exclusive=True)  # [R]
    number = tf.range(tf.size(row_of_part, tf.int64)) - tf.gather(first_part, row_of_part)
    longest = tf.gather(longest, row_of_part)  # [P]
    tokens_left = tf.gather(lengths, row_of_part) - number * longest
    part_lengths = tf.clip_by_value(tokens_left, 0, longest)  # [P]
    parts = tf.RaggedTensor.from_row_lengths(tokens.values, part_lengths)
    return tf.concat([tf.gather(heads, row_of_part), parts], axis=1), row_of_part
