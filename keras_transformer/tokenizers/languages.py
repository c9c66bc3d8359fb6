"""The tag of a language at the start of a text."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.languages import LANGUAGE_TAG, Languages
from keras_transformer.search.constraints import Constraint, FirstToken
from keras_transformer.tokenizers.wrappers import Restore, Wrapper

TAG = rf"^\s*({LANGUAGE_TAG})"  # at the start of a text
BLANK = r"[\s\p{Z}]*"


class LanguageTag(Wrapper):
    """The tag at the start of a text stands before each of its sentences, and of their parts.

    The model has a token for each target language. A text without a tag gets the default, and a
    tag with other names than the model's is text. If a model `names_source`, the tag that it reads
    is the source's, and a translation begins with that of the target.
    """

    def __init__(
        self, tag_ids: Sequence[int], known: Languages, names_source: bool = False
    ) -> None:
        self.tag_ids = np.array(tag_ids, np.int32)  # [tags], in the order of `known.targets`
        self.known, self.names_source = known, names_source
        sources, targets = ("|".join(map(re.escape, names)) for names in known[2:])
        self.tag = rf"^\s*(>>(?:({sources}):)?({targets})<<)"
        self.spec = tf.TensorSpec([None], tf.int32) if names_source else ()  # places in `targets`

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        is_blank = tf.strings.regex_full_match(texts, BLANK)
        source, target = self._asked(texts, 2), self._asked(texts, 3)
        rest = tf.strings.regex_replace(texts, rf"{self.tag}\s*", "")
        if self.names_source:
            source = tf.where(source == "", self.known.source, source)
            target = tf.where(target == "", self.known.target, target)
            texts = tf.where(is_blank, texts, tf.strings.join([">>", source, "<< ", rest]))
            return texts, tf.argmax(target[:, None] == self.known.targets, 1, tf.int32)
        if self.known.target:
            target = tf.where((target == "") & ~is_blank, self.known.target, target)
        return tf.where(target == "", texts, tf.strings.join([">>", target, "<< ", rest])), ()

    def read_targets(self, context: Any, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if self.names_source:
            language = tf.gather(self.known.targets, context)
            targets = tf.strings.join([">>", language, "<< ", targets])
        return super().read_targets(context, targets)

    def constraints(self, ids: tf.Tensor, lengths: tf.Tensor, context: Any) -> Sequence[Constraint]:
        if not self.names_source:
            return []
        return [FirstToken(tf.gather(self.tag_ids, context))]

    def _asked(self, texts: tf.Tensor, group: int) -> tf.Tensor:
        """Returns a group of the tags of texts, "" without a tag."""
        asked = tf.strings.regex_replace(texts, f"(?s){self.tag}.*", rf"\{group}")
        return tf.where(self._is_tagged(texts), asked, "")

    def _is_tagged(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.regex_full_match(texts, f"(?s){self.tag}.*")

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        tags = tf.strings.join([self._asked(texts, 1), " "])
        tags = tf.where(self._is_tagged(texts), tags, "")

        def restore(parts: tf.RaggedTensor) -> tf.RaggedTensor:
            is_blank = tf.strings.regex_full_match(parts.values, BLANK)
            tag = tf.where(is_blank, "", tf.gather(tags, parts.value_rowids()))
            return parts.with_values(tf.strings.join([tag, parts.values]))

        return tf.strings.regex_replace(texts, rf"{self.tag}\s*", ""), restore

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        first = tokens[:, :2].to_tensor(PAD_ID, shape=[None, 2])  # SentencePiece may add a space
        is_tag = tf.reduce_any(first[:, :, None] == self.tag_ids, axis=2)  # [B, 2]
        return tf.where(is_tag[:, 0], 1, tf.where(is_tag[:, 1], 2, 0))
