"""The beginnings of translations, as they are given."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import UNK_ID
from keras_transformer.tokenizers import EncodedTexts, Tokenizer
from keras_transformer.tokenizers.sides import utf8

BLANK = r"[\s\x0b\p{Z}]"


class Prefixes(NamedTuple):
    """The beginnings of translations, as `PrefixConstraint.of` takes them."""

    tokens: tf.RaggedTensor  # int32 [B, (tokens)]
    is_word_over: tf.Tensor  # bool [B], whether the next token must begin a word


def read_prefixes(
    tokenizer: Tokenizer, source: EncodedTexts, prefixes: tf.Tensor
) -> tuple[Prefixes, EncodedTexts]:
    """Reads the beginnings of translations, string [B]; results are then written as these are."""
    prefixes = tf.strings.regex_replace(utf8(prefixes), "\ufffd", "")  # no result has it
    read, context = tokenizer.wrapper.read_prefixes(source.context, prefixes)
    tokens = tokenizer.target.tokenize(read)
    written = tokenizer.target.detokenize(tokens.to_tensor())
    end, written_end = (
        tf.strings.regex_replace(texts, r"(?s)^.*(.)$", r"\1") for texts in (prefixes, written)
    )
    # White space other than spaces is in the tokens.
    is_word_over = tf.strings.regex_full_match(end, BLANK) & (end != written_end)
    tokens = tf.ragged.boolean_mask(tokens, tokens != UNK_ID)  # a model cannot write it
    return Prefixes(tokens, is_word_over), source._replace(context=context)


def without_space_after(prefixes: tf.Tensor, translations: tf.Tensor) -> tf.Tensor:
    """Returns translations, string [B, K], without a space after other white space of a prefix."""
    lengths = tf.zeros_like(tf.strings.length(translations)) + tf.strings.length(prefixes)[:, None]
    start = tf.strings.substr(translations, tf.zeros_like(lengths), lengths)
    place = tf.minimum(lengths, tf.strings.length(translations))
    rest = tf.strings.substr(translations, place, tf.fill(tf.shape(place), 2**30))
    is_blank = tf.strings.regex_full_match(start, rf"(?s).*{BLANK}") & (start == prefixes[:, None])
    rest = tf.where(is_blank, tf.strings.regex_replace(rest, "^ ", ""), rest)
    return tf.strings.join([start, rest])
