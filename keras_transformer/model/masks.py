"""Attention masks, built by pure functions from token ids.

Every mask is boolean, True = may attend. What these functions return has rank 4, so that it
broadcasts over [B, N, T, S].
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras
from jaxtyping import Bool, Float, Int
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.model.tensor import Tensor


def padding_mask(ids: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
    """Lets every query attend to the tokens that are not padding: int [B, S] -> [B, 1, 1, S].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.model.masks import padding_mask
        >>> print(np.array(padding_mask(np.array([[5, 7, 3, 0]])), int))
        [[[[1 1 1 0]]]]
    """
    return ops.not_equal(ids, PAD_ID)[:, None, None, :]  # [B, 1, 1, S]


def causal_mask(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """Lets position t attend to positions up to and including t (section 3.2.3).

    Only the shape of the ids is used: int [B, T] -> [B, 1, T, T].

    Example:
        >>> import numpy as np
        >>> from keras_transformer.model.masks import causal_mask
        >>> print(np.array(causal_mask(np.array([[2, 8, 4]])), int)[0, 0])
        [[1 0 0]
         [1 1 0]
         [1 1 1]]
    """
    return _not_later(ids, ids)


def decoder_mask(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """Combines `causal_mask` and `padding_mask`: int [B, T] -> [B, 1, T, T]."""
    return ops.logical_and(causal_mask(ids), padding_mask(ids))  # [B, 1, T, T]


def merge_masks(
    query: Float[Tensor, "B T Dq"],
    key: Float[Tensor, "B S Dk"],
    num_heads: int,
    masks: Mapping[str, Tensor | None],
    use_causal_mask: bool = False,
) -> Bool[Tensor, "#B #N #T S"] | None:
    """Combines a layer's masks, by name, into one that broadcasts to [B, N, T, S].

    A mask is bool [B, S], [B, T, S] or [B, N, T, S], or None; every axis but the last may have size
    1. Returns None if nothing is hidden.
    """
    sizes = (query.shape[0], num_heads, query.shape[1], key.shape[1])
    merged = [_rank_4(name, mask, sizes) for name, mask in masks.items() if mask is not None]
    if use_causal_mask:
        merged.append(_not_later(query[:, :, 0], key[:, :, 0]))
    return functools.reduce(ops.logical_and, merged) if merged else None


def _rank_4(name: str, mask: Any, sizes: tuple[int | None, ...]) -> Any:
    """[B, S], [B, T, S] or [B, N, T, S] -> [B, 1, 1, S], [B, 1, T, S] or [B, N, T, S]."""
    dtype, shape = keras.backend.standardize_dtype(mask.dtype), tuple(mask.shape)
    if dtype != "bool":
        raise ValueError(f"{name} must be bool, True = may attend. Received: dtype={dtype}")
    if len(shape) == 2:
        mask = mask[:, None, None, :]
    elif len(shape) == 3:
        mask = mask[:, None]
    fits = len(mask.shape) == 4 and all(
        actual in (size, None) or size is None or (actual == 1 and axis < 3)
        for axis, (actual, size) in enumerate(zip(mask.shape, sizes, strict=True))
    )
    if not fits:
        batch, heads, queries, keys = sizes
        raise ValueError(
            f"{name} must have the shape [B, S], [B, T, S] or [B, N, T, S], where B={batch}, "
            f"N={heads}, T={queries}, S={keys}. Received: shape={shape}"
        )
    return mask


def _not_later(queries: Tensor, keys: Tensor) -> Tensor:
    """[B, T], [B, S] -> [B, 1, T, S], True where the key's position is not after the query's."""
    # `ops.arange(T)` needs T, which is unknown for a symbolic input.
    query, key = (ops.cumsum(ops.ones_like(x, dtype="int32"), axis=1) for x in (queries, keys))
    return query[:, None, :, None] >= key[:, None, None, :]
