"""The tag of a language at the start of a text."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.languages import LANGUAGE_TAG, Languages
from keras_transformer.tokenizers.wrappers import Restore, Wrapper

TAG = rf"^\s*({LANGUAGE_TAG})"  # at the start of a text
BLANK = r"[\s\p{Z}]*"


class LanguageTag(Wrapper):
    """The tag at the start of a text stands before each of its sentences, and of their parts.

    The model has a token for each target language. A text without a tag gets the default, and a
    tag with other names than the model's is text.
    """

    def __init__(self, is_tag: Sequence[bool], known: Languages) -> None:
        self.is_tag = is_tag  # of each id
        self.default = known.target
        sources, targets = ("|".join(map(re.escape, names)) for names in known[2:])
        self.tag = rf"^\s*>>(?:(?:{sources}):)?({targets})<<"

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        needs_tag = ~self._is_tagged(texts) & ~tf.strings.regex_full_match(texts, BLANK)
        texts = tf.strings.regex_replace(texts, self.tag, r">>\1<<")
        if self.default:
            tagged = tf.strings.join([f">>{self.default}<< ", texts])
            texts = tf.where(needs_tag, tagged, texts)
        return texts, ()

    def _is_tagged(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.regex_full_match(texts, f"(?s){self.tag}.*")

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        tags = tf.strings.regex_replace(texts, f"(?s){self.tag}.*", r">>\1<< ")
        tags = tf.where(self._is_tagged(texts), tags, "")

        def restore(parts: tf.RaggedTensor) -> tf.RaggedTensor:
            is_blank = tf.strings.regex_full_match(parts.values, BLANK)
            tag = tf.where(is_blank, "", tf.gather(tags, parts.value_rowids()))
            return parts.with_values(tf.strings.join([tag, parts.values]))

        return tf.strings.regex_replace(texts, rf"{self.tag}\s*", ""), restore

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        first = tokens[:, :2].to_tensor(PAD_ID, shape=[None, 2])  # SentencePiece may add a space
        first_is_tag, second_is_tag = (tf.gather(self.is_tag, first[:, place]) for place in (0, 1))
        return tf.where(first_is_tag, 1, tf.where(second_is_tag, 2, 0))
