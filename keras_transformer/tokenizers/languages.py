"""The tag of a language at the start of a text."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.languages import LANGUAGE_TAG, Languages
from keras_transformer.search.constraints import Constraint, FirstToken
from keras_transformer.tokenizers.wrappers import Restore, Wrapper

TAG = rf"^\s*({LANGUAGE_TAG})"  # at the start of a text
BLANK = r"[\s\p{Z}]*"


class LanguageTag(Wrapper):
    """The tag at the start of a text stands before each of its sentences, and of their parts.

    The model has a token for each target language. A text without a tag gets the default, and a
    tag with other names than the model's is text. If `first_ids` has a token for each target, the
    tag that the model reads is the source's, and a translation begins with that of the target.
    """

    def __init__(self, known: Languages, first_ids: Sequence[int] = ()) -> None:
        self.known, self.first_ids = known, first_ids
        sources, targets = ("|".join(map(re.escape, names)) for names in known[2:])
        # A tag, its source and its target, the white space of the text after it, and the rest.
        self._pattern = rf"(?s)^(?:\s*(>>(?:({sources}):)?({targets})<<) ?(\s*))?(.*)$"
        self.spec = tf.TensorSpec([None], tf.int32) if first_ids else ()  # places in `targets`

    def _parts(self, texts: tf.Tensor) -> list[tf.Tensor]:
        """Returns the five groups of the pattern, "" for those that a text does not have."""
        return [tf.strings.regex_replace(texts, self._pattern, rf"\{i}") for i in range(1, 6)]

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        is_blank = tf.strings.regex_full_match(texts, BLANK)
        _, source, target, _, rest = self._parts(texts)
        if self.first_ids:
            source = tf.where(source == "", self.known.source, source)
            target = tf.where(target == "", self.known.target, target)
            texts = tf.where(is_blank, texts, tf.strings.join([">>", source, "<< ", rest]))
            return texts, tf.argmax(target[:, None] == self.known.targets, 1, tf.int32)
        if self.known.target:
            target = tf.where((target == "") & ~is_blank, self.known.target, target)
        return tf.where(target == "", texts, tf.strings.join([">>", target, "<< ", rest])), ()

    def read_targets(self, context: Any, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if self.first_ids:
            language = tf.gather(self.known.targets, context)
            targets = tf.strings.join([">>", language, "<< ", targets])
        return super().read_targets(context, targets)

    def constraints(self, ids: tf.Tensor, lengths: tf.Tensor, context: Any) -> Sequence[Constraint]:
        return [FirstToken(tf.gather(self.first_ids, context))] if self.first_ids else []

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        tags, _, _, space, rest = self._parts(texts)

        def restore(parts: tf.RaggedTensor) -> tf.RaggedTensor:
            tag = tf.gather(tags, parts.value_rowids())
            is_plain = (tag == "") | tf.strings.regex_full_match(parts.values, BLANK)
            tagged = tf.strings.join([tag, parts.values], " ")
            return parts.with_values(tf.where(is_plain, parts.values, tagged))

        return tf.strings.join([space, rest]), restore
