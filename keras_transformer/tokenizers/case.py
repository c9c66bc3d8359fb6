"""Texts in capitals and titles, read as sentences: case does not change how a word is cut.

Capitals and small letters are those of ICU, by the language of the text (Unicode's SpecialCasing).
"""

# ruff: noqa: RUF001 -- Greek and Armenian

import re
from collections.abc import Callable

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.languages import (
    LANGUAGE_TAG,
    TURKIC,
    Languages,
    language_of,
    small_letters,
)
from keras_transformer.tokenizers.sides import Side
from keras_transformer.tokenizers.wrappers import Wrapper

# A text in capitals: four of them or more, some side by side, so that "USA" and "A. B." are none,
# and no letters without case, such as Chinese ones and those of Cherokee, which are capitals, but ª
# and º. A tag may stand before it.
TAG = rf"(?:\s*{LANGUAGE_TAG})?"
NOT_SMALL = r"(?:[^\p{Ll}\p{Lo}\p{Cherokee}]|[\x{AA}\x{BA}])*"
CAPITALS = rf"(?s){TAG}(?:{NOT_SMALL}\p{{Lu}}){{2}}\p{{Lu}}{NOT_SMALL}\p{{Lu}}{NOT_SMALL}"
# A title: Four Words Or More, Each With A Capital.
TITLE = rf"(?s){TAG}(?:\P{{L}}*\p{{Lu}}\S*\s){{3,}}\P{{L}}*\p{{Lu}}\S*\P{{L}}*"
TITLE_WORD = r"\P{L}*\p{Lu}(?:[^.\p{Lu}]*|\P{Lu}*\p{Ll}\P{Lu}*)"  # no initial, such as "J."
# What stands before the first letter of a sentence in a title.
BEFORE_SENTENCE = rf"^{TAG}\P{{L}}*|[\p{{Ll}}\p{{N}}][.!?]\P{{L}}*\s\P{{L}}*"
FIRST = "\1"  # marks it; a text has no control characters then

# Greek accents, and all marks that capitals have not, in NFD.
ACCENTS, BREATHINGS = "\u0300-\u0303\u0311\u0342", "\u0304\u0306\u0313\u0314"
MARKS = f"[{ACCENTS}{BREATHINGS}]"
BETWEEN = r"[\p{M}'\x{2019}.:\x{B7}]*"  # characters that may stand within a word
WITHOUT_ACCENTS = (
    # An iota or ypsilon after an accent that goes is no part of a diphthong.
    (rf"([αεηιουωΑΕΗΙΟΥΩ]{MARKS}*[{ACCENTS}]{MARKS}*\x{{345}}?)([ιυΙΥ])\x{{308}}?", "\\1\\2\u0308"),
    # An eta alone, "or", keeps its accent.
    (rf"(\p{{L}}{BETWEEN}[ηΗ]){MARKS}+", r"\1"),
    (rf"([ηΗ]){MARKS}+(\x{{345}}|{BETWEEN}\p{{L}})", r"\1\2"),
    (rf"([ηΗ]){MARKS}*[{ACCENTS}]{MARKS}*", "\\1\u0301"),
    (rf"([ηΗ])[{BREATHINGS}]+", r"\1"),
    (rf"([αειουωρΑΕΙΟΥΩΡ]){MARKS}*(\x{{308}}?){MARKS}*", r"\1\2"),
)

Change = Callable[[tf.Tensor, str], tf.Tensor]  # of texts by the rules of a language
Tokenize = Callable[[tf.Tensor], tf.RaggedTensor]  # string [W] -> ids, int32 [W, (tokens)]


class Case(Wrapper):
    """Texts in capitals are read as sentences, and their translations written in capitals.

    The context is 0, or in which place of `rules` the target language of capitals is, from 1.
    """

    spec = tf.TensorSpec([None], tf.int32)

    def __init__(self, source: Side, target: Side, known: Languages) -> None:
        self.source, self.target, self.known = source, target, known
        self.rules: dict[str, list[str]] = {}  # a language with letters of its own, or "": targets
        for name in dict.fromkeys([*known.targets, known.target]):
            self.rules.setdefault(_rule_of(name), []).append(name)

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rules = tf.fill(tf.shape(texts), 1 + [*self.rules].index(_rule_of(self.known.target)))
        for number, targets in enumerate(self.rules.values(), start=1):
            if len(self.rules) > 1:
                names = "|".join(map(re.escape, targets))
                tag = rf"(?s)\s*>>(?:[^\s<>:]+:)?(?:{names})<<.*"
                rules = tf.where(tf.strings.regex_full_match(texts, tag), number, rules)
        texts, capitals = as_sentences(texts, self.source.tokenize, self.known.source)
        return texts, tf.where(capitals, rules, 0)

    def _by_rule(self, change: Change, context: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
        """Returns texts of any shape, those in capitals changed by the rules of their languages."""
        changed = texts
        for number, language in enumerate(self.rules, start=1):
            changed = tf.where(context == number, change(texts, language), changed)
        return changed

    def read_targets(self, context: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        small = self._by_rule(in_small_letters, context, targets)
        targets = tf.where(_has_no_small_letter(targets), small, targets)
        return super().read_targets(context, targets)

    def read_prefixes(self, context: tf.Tensor, prefixes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """A result begins as its prefix is given. A model knows words in small letters best."""
        context = tf.where(_has_no_small_letter(prefixes), context, 0)
        small = self._by_rule(in_small_letters, context, prefixes)
        of_small, of_given = (
            self.target.detokenize(self.target.tokenize(texts).to_tensor())
            for texts in (small, prefixes)
        )
        # Not all capitals come back from small letters.
        comes_back = (context > 0) & (self._by_rule(upper, context, of_small) == of_given)
        is_same = self._by_rule(upper, context, of_given) == of_given
        return tf.where(comes_back, small, prefixes), tf.where(is_same, context, 0)

    def write(self, context: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
        return self._by_rule(upper, context[:, None, None], texts)


def _rule_of(language: str) -> str:
    return language if language_of(language) in (*TURKIC, "el", "hy", "lt", "nl") else ""


def _has_no_small_letter(texts: tf.Tensor) -> tf.Tensor:
    return ~tf.strings.regex_full_match(texts, r"(?s).*\p{Ll}.*")


def upper(texts: tf.Tensor, language: str) -> tf.Tensor:
    """Returns texts, string of any shape, in capitals, as their language writes them."""
    code = language_of(language)
    if code == "el":
        texts = tf_text.normalize_utf8(texts, "NFD")
        for pattern, replacement in WITHOUT_ACCENTS:
            texts = tf.strings.regex_replace(texts, pattern, replacement)
        texts = tf_text.normalize_utf8(texts, "NFC")
    for codes, pattern, replacement in (
        (TURKIC, "i", "İ"),
        (("lt",), r"([ijį])\x{307}", r"\1"),
        (("hy",), "և", "եվ"),
    ):
        if code in codes:
            texts = tf.strings.regex_replace(texts, pattern, replacement)
    return tf.strings.upper(texts, encoding="utf-8")


def lower(texts: tf.Tensor, language: str) -> tf.Tensor:
    """Returns texts, string of any shape, in small letters, as their language writes them."""
    for capital, small in small_letters(language):
        texts = tf.strings.regex_replace(texts, capital, small)
    return tf.strings.lower(texts, encoding="utf-8")


def _lower(texts: tf.Tensor, language: str) -> tf.Tensor:
    """Returns what `lower` returns, and İ without the dot that other languages leave on its i."""
    return tf.strings.regex_replace(lower(texts, language), "i\u0307", "i")


def as_sentences(
    texts: tf.Tensor, tokenize: Tokenize, language: str = ""
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns texts, string [B], as sentences, and which were in capitals; titles change too."""
    capitals = tf.strings.regex_full_match(texts, CAPITALS)
    texts = tf.where(capitals, in_small_letters(texts, language), texts)
    is_title = tf.strings.regex_full_match(texts, TITLE)
    titles = tf.where(is_title & tf.strings.regex_full_match(texts, r"(?s).*\p{Ll}.*"))
    written = _titles_as_sentences(tf.gather_nd(texts, titles), tokenize, language)
    return tf.tensor_scatter_nd_update(texts, titles, written), capitals


def in_small_letters(texts: tf.Tensor, language: str) -> tf.Tensor:
    """Returns texts, string [B], in small letters but for the first, as a sentence is written."""
    first = r"(?:IJ|\p{L})" if language_of(language) == "nl" else r"\p{L}"
    start = tf.strings.regex_replace(texts, rf"(?s)^({TAG}\P{{L}}*{first}).*$", r"\1")
    rest = tf.strings.substr(texts, tf.strings.length(start), tf.fill(tf.shape(texts), 2**30))
    return tf.strings.join([start, _lower(rest, language)])


def _titles_as_sentences(titles: tf.Tensor, tokenize: Tokenize, language: str) -> tf.Tensor:
    """Returns titles, string [B], with the words that are no names in small letters."""
    titles = tf.strings.strip(tf.strings.regex_replace(titles, r"[\p{Cc}\p{Z}]+", " "))
    titles = tf.strings.regex_replace(titles, BEFORE_SENTENCE, rf"\0{FIRST}")
    words = tf.strings.split(titles, " ")  # [B, (words)]
    is_name = ~tf.strings.regex_full_match(words.values, TITLE_WORD)
    small = _lower(words.values, language)
    # A word is no name if it is one piece in small letters, or two instead of more.
    num_pieces, num_small = _num_pieces(words.values, tokenize), _num_pieces(small, tokenize)
    is_name |= (num_small > 2) | (num_small == 2) & (num_pieces <= 2)
    is_first = tf.strings.regex_full_match(words.values, f".*{FIRST}.*")
    chosen = tf.where(is_name | is_first, words.values, small)
    sentences = tf.strings.reduce_join(words.with_values(chosen), axis=1, separator=" ")
    return tf.strings.regex_replace(sentences, FIRST, "")


def _num_pieces(words: tf.Tensor, tokenize: Tokenize) -> tf.Tensor:
    """Counts the pieces of the letters of words, string [W] -> int64 [W]."""
    letters = tf.strings.regex_replace(words, r"[^\p{L}\p{M}'\x{2019}-]", "")
    return tokenize(letters).row_lengths()
