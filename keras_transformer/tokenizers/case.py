"""Texts in capitals and titles, read as sentences: case does not change how a word is cut."""

from collections.abc import Callable

import tensorflow as tf

# A text in capitals: four of them or more, some side by side, so that "USA" and "A. B." are none,
# and no letters without case, such as Chinese ones, but ª and º. A tag of a language, such as
# >>deu<<, may stand before it.
TAG = r"(?:\s*>>[^\s<>]+<<)?"
NOT_SMALL = r"(?:[^\p{Ll}\p{Lo}]|[\x{AA}\x{BA}])*"
CAPITALS = rf"(?s){TAG}(?:{NOT_SMALL}\p{{Lu}}){{2}}\p{{Lu}}{NOT_SMALL}\p{{Lu}}{NOT_SMALL}"
# A title: Four Words Or More, Each With A Capital.
TITLE = rf"(?s){TAG}(?:\P{{L}}*\p{{Lu}}\S*\s){{3,}}\P{{L}}*\p{{Lu}}\S*\P{{L}}*"
TITLE_WORD = r"\P{L}*\p{Lu}(?:[^.\p{Lu}]*|\P{Lu}*\p{Ll}\P{Lu}*)"  # no initial, such as "J."
# What stands before the first letter of a sentence in a title.
BEFORE_SENTENCE = rf"^{TAG}\P{{L}}*|[\p{{Ll}}\p{{N}}][.!?]\P{{L}}*\s\P{{L}}*"
FIRST = "\1"  # marks it; a text has no control characters then

Tokenize = Callable[[tf.Tensor], tf.RaggedTensor]  # string [W] -> ids, int32 [W, (tokens)]


def as_sentences(texts: tf.Tensor, tokenize: Tokenize) -> tuple[tf.Tensor, tf.Tensor]:
    """Writes texts in capitals, and titles, as sentences are written.

    Args:
        texts: string [B].
        tokenize: splits words into pieces.

    Returns:
        The texts, string [B], and which of them were in capitals, bool [B].
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    capitals = tf.strings.regex_full_match(texts, CAPITALS)
    texts = tf.where(capitals, in_small_letters(texts), texts)
    is_title = tf.strings.regex_full_match(texts, TITLE)
    titles = tf.where(is_title & tf.strings.regex_full_match(texts, r"(?s).*\p{Ll}.*"))
    written = _titles_as_sentences(tf.gather_nd(texts, titles), tokenize)
    return tf.tensor_scatter_nd_update(texts, titles, written), capitals


def in_small_letters(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts, string [B], in small letters but for the first, as a sentence is written."""
    start = tf.strings.regex_replace(texts, rf"(?s)^({TAG}\P{{L}}*\p{{L}}).*$", r"\1")
    rest = tf.strings.substr(texts, tf.strings.length(start), tf.fill(tf.shape(texts), 2**30))
    return tf.strings.join([start, tf.strings.lower(rest, encoding="utf-8")])


def _titles_as_sentences(titles: tf.Tensor, tokenize: Tokenize) -> tf.Tensor:
    """Returns titles, string [B], as sentences: the words that are no names in small letters.

    A word is no name if it is one piece in small letters, or two instead of more.
    """
    titles = tf.strings.strip(tf.strings.regex_replace(titles, r"[\p{Cc}\p{Z}]+", " "))
    titles = tf.strings.regex_replace(titles, BEFORE_SENTENCE, rf"\0{FIRST}")
    words = tf.strings.split(titles, " ")  # [B, (words)]
    is_name = ~tf.strings.regex_full_match(words.values, TITLE_WORD)
    small = tf.strings.lower(words.values, encoding="utf-8")
    num_pieces, num_small = (_num_pieces(each, tokenize) for each in (words.values, small))
    is_name |= (num_small > 2) | (num_small == 2) & (num_pieces <= 2)
    is_first = tf.strings.regex_full_match(words.values, f".*{FIRST}.*")
    chosen = tf.where(is_name | is_first, words.values, small)
    sentences = tf.strings.reduce_join(words.with_values(chosen), axis=1, separator=" ")
    return tf.strings.regex_replace(sentences, FIRST, "")


def _num_pieces(words: tf.Tensor, tokenize: Tokenize) -> tf.Tensor:
    """Counts the pieces of the letters of words, string [W] -> int64 [W]."""
    letters = tf.strings.regex_replace(words, r"[^\p{L}\p{M}'\x{2019}-]", "")
    return tokenize(letters).row_lengths()
