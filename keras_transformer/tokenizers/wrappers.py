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

        Also returns whether they agree with their sources, bool [B] or [].
        """
        return targets, tf.constant(True)

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

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        """Returns texts, string [B], without what must not be split into sentences.

        The function that it also returns puts this back into their parts.
        """
        return texts, lambda parts: parts

    def head_lengths(self, tokens: tf.RaggedTensor) -> tf.Tensor:
        """Returns how many tokens at the start of a text each of its parts repeats, int32 [B]."""
        return tf.zeros_like(tokens.row_lengths(), tf.int32)


class Visible(Wrapper):
    """Sources lose invisible characters; targets stay as they are."""

    def read(self, texts: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return visible(texts), ()

    def hide(self, texts: tf.Tensor) -> tuple[tf.Tensor, Restore]:
        return visible(texts), lambda parts: parts
