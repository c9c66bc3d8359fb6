"""What wraps a tokenizer: it changes texts before they are split into ids, and results after."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.search.constraints import Constraint
from keras_transformer.tokenizers.invisible import visible

Restore = Callable[[tf.RaggedTensor], tf.RaggedTensor]  # parts of texts, string [B, (parts)]


class Wrapper:
    """Changes texts before they are split into ids, and results after. This one changes nothing.

    What it must remember of its texts is its context, a nest of tensors [B, ...]. Nobody else looks
    into it: who needs some of the texts gathers rows.
    """

    spec: Any = ()  # of its context

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns sources, string [B], as they are to be split into ids, and the context."""
        return texts, ()

    def read_targets(self, context: Any, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns translations of the texts, string [B], as they are to be split into ids.

        Also returns whether they agree with their sources, bool [B].
        """
        return targets, tf.fill([tf.size(targets)], True)

    def read_prefixes(self, context: Any, prefixes: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the beginnings of translations, string [B], and the context for these."""
        return prefixes, context

    def write(self, context: Any, texts: tf.Tensor) -> tf.Tensor:
        """Returns K results of each text, in W consecutive parts, string [B, K, W], to be read."""
        return texts

    def context_of_parts(self, context: Any, tokens: tf.RaggedTensor, rows: tf.Tensor) -> Any:
        """Returns the context of P parts of texts.

        The parts are consecutive tokens, int32 [P, (tokens)], of texts in ascending `rows`, [P].
        """
        return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), context)

    def constraints(self, ids: tf.Tensor, lengths: tf.Tensor, context: Any) -> Sequence[Constraint]:
        """Returns what the results of a search must keep to, for texts as in `EncodedTexts`."""
        return []

    def known_translations(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns the translation of each text, string [B], that needs no model, and else ""."""
        return tf.fill([tf.size(texts)], "")

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        """Returns texts, string [B], without what must not be split into sentences.

        The function that it also returns puts this back into their parts.
        """
        return texts, lambda parts: parts


class Nested(Wrapper):
    """Two wrappers, the first one around the second one."""

    def __init__(self, outer: Wrapper, inner: Wrapper) -> None:
        self.outer, self.inner = outer, inner
        self.spec = outer.spec, inner.spec

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        texts, outer = self.outer.read(texts)
        texts, inner = self.inner.read(texts)
        return texts, (outer, inner)

    def read_targets(self, context: Any, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        targets, outer = self.outer.read_targets(context[0], targets)
        targets, inner = self.inner.read_targets(context[1], targets)
        return targets, outer & inner

    def read_prefixes(self, context: Any, prefixes: tf.Tensor) -> tuple[tf.Tensor, Any]:
        prefixes, outer = self.outer.read_prefixes(context[0], prefixes)
        prefixes, inner = self.inner.read_prefixes(context[1], prefixes)
        return prefixes, (outer, inner)

    def write(self, context: Any, texts: tf.Tensor) -> tf.Tensor:
        return self.outer.write(context[0], self.inner.write(context[1], texts))

    def context_of_parts(self, context: Any, tokens: tf.RaggedTensor, rows: tf.Tensor) -> Any:
        outer = self.outer.context_of_parts(context[0], tokens, rows)
        return outer, self.inner.context_of_parts(context[1], tokens, rows)

    def constraints(self, ids: tf.Tensor, lengths: tf.Tensor, context: Any) -> Sequence[Constraint]:
        outer = self.outer.constraints(ids, lengths, context[0])
        return [*outer, *self.inner.constraints(ids, lengths, context[1])]

    def known_translations(self, texts: tf.Tensor) -> tf.Tensor:
        without_tags, _ = self.inner.hide(texts)
        known = self.outer.known_translations(without_tags)
        return tf.where(known == "", self.inner.known_translations(texts), known)

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        texts, outer = self.outer.hide(texts)
        texts, inner = self.inner.hide(texts)
        return texts, lambda parts: outer(inner(parts))


class Visible(Wrapper):
    """Sources lose invisible characters; targets stay as they are."""

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return visible(texts), ()

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        return visible(texts), lambda parts: parts
