"""Attention masks, built by pure functions from token ids.

Every mask is boolean, True = may attend, and has rank 4 so that it broadcasts over [B, N, T, S].
"""

from jaxtyping import Bool, Int
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.tensor import Tensor


def padding_mask(ids: Int[Tensor, "B S"], pad_id: int = PAD_ID) -> Bool[Tensor, "B 1 1 S"]:
    """Lets every query attend to the tokens of `ids` that are not padding.

    Args:
        ids: int [B, S], padded with `pad_id`.
        pad_id: id of the padding token.

    Returns:
        bool [B, 1, 1, S].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.masks import padding_mask
        >>> print(np.array(padding_mask(np.array([[5, 7, 3, 0]])), int))
        [[[[1 1 1 0]]]]
    """
    return ops.not_equal(ids, pad_id)[:, None, None, :]  # [B, 1, 1, S]


def causal_mask(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """Lets position t attend to positions up to and including t (section 3.2.3).

    Args:
        ids: int [B, T]; only its shape is used.

    Returns:
        bool [B, 1, T, T].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.masks import causal_mask
        >>> print(np.array(causal_mask(np.array([[2, 8, 4]])), int)[0, 0])
        [[1 0 0]
         [1 1 0]
         [1 1 1]]
    """
    # `ops.arange(T)` needs T, which is unknown for a symbolic input.
    positions = ops.cumsum(ops.ones_like(ids, dtype="int32"), axis=1)  # [B, T]
    return positions[:, None, :, None] >= positions[:, None, None, :]  # [B, 1, T, T]


def decoder_mask(ids: Int[Tensor, "B T"], pad_id: int = PAD_ID) -> Bool[Tensor, "B 1 T T"]:
    """Combines `causal_mask` and `padding_mask` for the decoder's self-attention.

    Args:
        ids: int [B, T], padded with `pad_id`.
        pad_id: id of the padding token.

    Returns:
        bool [B, 1, T, T].
    """
    return ops.logical_and(causal_mask(ids), padding_mask(ids, pad_id))  # [B, 1, T, T]
