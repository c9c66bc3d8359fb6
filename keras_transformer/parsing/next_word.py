"""The next word as an input of the decoder, for parsers.

Ma et al. (2017) and Liu et al. (2018) choose by rules what the decoder of a parser attends to. Here
attention stays as in the paper, and the decoder's input also has the encoder's output at the next
word: the first word that the target so far has no tag for.

The ids from 4 to below an end belong to words: in a source, such a token begins a word; in a
target, it is the tag of a word.
"""

import keras
from jaxtyping import Bool, Float, Int
from keras import ops

from keras_transformer.config import EOS_ID
from keras_transformer.model.tensor import Tensor
from keras_transformer.model.transformer import Transformer
from keras_transformer.parsing.config import NextWordConfig


@keras.saving.register_keras_serializable("keras_transformer")
class NextWordTransformer(Transformer):
    """A `Transformer` whose decoder also reads the encoder's output at the next word.

    Deviations:
        The paper's decoder reads the target only.
    """

    config_type = NextWordConfig

    config: NextWordConfig

    def embed_target(
        self,
        target_ids: Int[Tensor, "B T"],
        encoder_output: Float[Tensor, "B S D"],
        source_ids: Int[Tensor, "B S"],
        training: bool | None = None,
    ) -> Float[Tensor, "B T D"]:
        source_end, target_end = self.config.word_id_ends
        num_words = ops.cumsum(ops.cast(is_word(target_ids, target_end), "int32"), axis=1)
        next_words = at_words(encoder_output, word_indices(source_ids, source_end), num_words)
        x = super().embed_target(target_ids, encoder_output, source_ids, training)
        return x + next_words


def is_word(ids: Int[Tensor, "B T"], end: int) -> Bool[Tensor, "B T"]:
    return ops.logical_and(ids > EOS_ID, ids < end)


def word_indices(source_ids: Int[Tensor, "B S"], end: int) -> Int[Tensor, "B S"]:
    """Numbers the words at their first tokens, from 0; -1 at other tokens."""
    begins = ops.cast(is_word(source_ids, end), "int32")
    return ops.cumsum(begins, axis=1) * begins - 1


def at_words(
    encoder_output: Float[Tensor, "B S D"], indices: Int[Tensor, "B S"], wanted: Int[Tensor, "B T"]
) -> Float[Tensor, "B T D"]:
    """Returns the encoder's output at the first tokens of words by their `word_indices`, or 0."""
    is_wanted = ops.equal(indices[:, None, :], wanted[:, :, None])  # [B, T, S]
    return ops.matmul(ops.cast(is_wanted, encoder_output.dtype), encoder_output)
