"""Deterministic attention: the decoder of a parser reads the encoder's output at the next word.

Liu et al. (2018, "Improving Sequence-to-Sequence Constituency Parsing") choose by a rule what the
decoder reads, because learned attention loses its place in long sentences. Here the tags written so
far say which word comes next, and its encoding is added to the decoder's input. The paper's
attention stays as it is.

Shapes (the package's glossary): B batch, S source length, T target length, D d_model.
"""

from jaxtyping import Bool, Float, Int
from keras import ops

from keras_transformer.config import EOS_ID
from keras_transformer.tensor import Tensor


def is_word(ids: Int[Tensor, "B T"], word_ids: int) -> Bool[Tensor, "B T"]:
    """Whether ids stand for a word: those after the special ids and below `word_ids`."""
    return ops.logical_and(ids > EOS_ID, ids < word_ids)


def word_numbers(source_ids: Int[Tensor, "B S"], word_ids: int) -> Int[Tensor, "B S"]:
    """Returns the number of each word at its first token, counted from 0, and -1 elsewhere.

    Args:
        source_ids: int32 [B, S].
        word_ids: as for `is_word`.

    Returns:
        int32 [B, S].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.alignment import word_numbers
        >>> print(np.array(word_numbers(np.array([[5, 9, 6, 3, 0]]), word_ids=8)))
        [[ 0 -1  1 -1 -1]]
    """
    starts = ops.cast(is_word(source_ids, word_ids), "int32")
    return ops.cumsum(starts, axis=1) * starts - 1


def encoding_of_words(
    encoder_output: Float[Tensor, "B S D"],
    numbers: Int[Tensor, "B S"],
    chosen: Int[Tensor, "B T"],
) -> Float[Tensor, "B T D"]:
    """Returns the encoder's output at the first token of words, zeros if there is no such word.

    Args:
        encoder_output: float [B, S, D].
        numbers: int32 [B, S], of the words, as `word_numbers` returns them.
        chosen: int32 [B, T], numbers of words.

    Returns:
        float [B, T, D].
    """
    is_chosen = ops.equal(numbers[:, None, :], chosen[:, :, None])  # [B, T, S]
    return ops.matmul(ops.cast(is_chosen, encoder_output.dtype), encoder_output)
