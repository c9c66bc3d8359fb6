"""The tag of a language at the start of a text."""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.languages import LANGUAGE_TAG
from keras_transformer.tokenizers.wrappers import Restore, Wrapper

TAG = rf"^\s*({LANGUAGE_TAG})"  # at the start of a text


class LanguageTag(Wrapper):
    """The tag at the start of a text stands before each of its sentences, and of their parts."""

    def __init__(self, is_tag: Sequence[bool]) -> None:
        self.is_tag = is_tag  # of each id

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        is_tagged = tf.strings.regex_full_match(texts, f"(?s){TAG}.*")  # [B]
        tags = tf.strings.regex_replace(texts, f"(?s){TAG}.*", r"\1 ")
        tags = tf.where(is_tagged, tags, "")

        def restore(parts: tf.RaggedTensor) -> tf.RaggedTensor:
            is_blank = tf.strings.regex_full_match(parts.values, r"[\s\p{Z}]*")
            tag = tf.where(is_blank, "", tf.gather(tags, parts.value_rowids()))
            return parts.with_values(tf.strings.join([tag, parts.values]))

        return tf.strings.regex_replace(texts, rf"{TAG}\s*", ""), restore

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        first = tokens[:, :2].to_tensor(PAD_ID, shape=[None, 2])  # SentencePiece may add a space
        first_is_tag, second_is_tag = (tf.gather(self.is_tag, first[:, place]) for place in (0, 1))
        return tf.where(first_is_tag, 1, tf.where(second_is_tag, 2, 0))
