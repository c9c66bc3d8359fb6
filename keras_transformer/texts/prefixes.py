"""The beginnings of translations, as they are given.

Shapes (the package's glossary): B batch, K beams.
"""

import copy
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import UNK_ID
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.case import upper

BLANK = r"[\s\x0b\p{Z}]"


class Prefixes(NamedTuple):
    """The beginnings of translations, as `PrefixConstraint.of` takes them."""

    tokens: tf.RaggedTensor  # int32 [B, (tokens)]
    is_word_over: tf.Tensor  # bool [B], whether the next token must begin a word


def read_prefixes(
    tokenizer: Tokenizer, texts: tf.Tensor, prefixes: tf.Tensor
) -> tuple[Prefixes, tf.Tensor]:
    """Reads the beginnings of the translations of texts.

    Args:
        tokenizer: of both languages.
        texts: string [B].
        prefixes: string [B].

    Returns:
        The prefixes, and whether text and prefix are in capitals, bool [B].
    """
    target, as_given = tokenizer.target, copy.copy(tokenizer)
    as_given.keeps_capitals = True
    prefixes = tf.strings.unicode_transcode(prefixes, "UTF-8", "UTF-8", errors="replace")
    prefixes = tf.strings.regex_replace(prefixes, "\ufffd", "")  # no result has it
    small, given = (each.read_pairs(texts, prefixes) for each in (tokenizer, as_given))
    of_small, of_given = (target.detokenize(each.target.to_tensor()) for each in (small, given))
    # A model knows words in small letters, but not all capitals come back from them.
    comes_back = small.capitals & (upper(of_small, tokenizer.languages[1]) == of_given)
    rows = tf.range(tf.size(prefixes)) + tf.where(comes_back, tf.size(prefixes), 0)
    tokens = tf.gather(tf.concat([given.target, small.target], axis=0), rows)
    tokens = tf.ragged.boolean_mask(tokens, tokens != UNK_ID)  # a model cannot write it
    end, written_end = (
        tf.strings.regex_replace(each, r"(?s)^.*(.)$", r"\1") for each in (prefixes, of_given)
    )
    # White space other than spaces is in the tokens.
    is_word_over = tf.strings.regex_full_match(end, BLANK) & (end != written_end)
    capitals = small.capitals & (upper(of_given, tokenizer.languages[1]) == of_given)
    return Prefixes(tokens, is_word_over), capitals


def without_space_after(prefixes: tf.Tensor, translations: tf.Tensor) -> tf.Tensor:
    """Returns translations without a space after other white space at the end of the prefix.

    Args:
        prefixes: string [B], as `Tokenizer.write` writes them.
        translations: string [B, K].
    """
    lengths = tf.zeros_like(tf.strings.length(translations)) + tf.strings.length(prefixes)[:, None]
    start = tf.strings.substr(translations, tf.zeros_like(lengths), lengths)
    place = tf.minimum(lengths, tf.strings.length(translations))
    rest = tf.strings.substr(translations, place, tf.fill(tf.shape(place), 2**30))
    is_blank = tf.strings.regex_full_match(start, rf"(?s).*{BLANK}") & (start == prefixes[:, None])
    rest = tf.where(is_blank, tf.strings.regex_replace(rest, "^ ", ""), rest)
    return tf.strings.join([start, rest])
