"""Texts in batches of about the same length, and the outputs of a signature as rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.export.options import BATCH_BYTES, BATCH_ROWS

Row = dict[str, Any]  # a signature's outputs for one text, by name


def by_length(
    texts: Sequence[str | bytes],
    translate: Callable[[list[bytes]], Sequence[Row]],
    *,
    max_rows: int = BATCH_ROWS,
    max_size: int = BATCH_BYTES,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Row]:
    """Translates texts in batches of about one length; the rows keep the order of the texts.

    A batch has at most `max_rows` texts; their number times the bytes of the longest is at most
    `max_size`, unless it is one text. `progress` is called with the number of texts of each batch.
    """
    # A lone surrogate, which UTF-8 does not have, becomes a question mark.
    encoded = [text if isinstance(text, bytes) else text.encode(errors="replace") for text in texts]
    batches: list[list[int]] = []
    for number in sorted(range(len(encoded)), key=lambda number: len(encoded[number])):
        count = len(batches[-1]) if batches else max_rows
        if count == max_rows or (count + 1) * len(encoded[number]) > max_size:
            batches.append([])
        batches[-1].append(number)
    rows: dict[int, Row] = {}
    for batch in batches:
        rows |= zip(batch, translate([encoded[number] for number in batch]), strict=True)
        progress(len(batch))
    return [rows[number] for number in range(len(encoded))]


def columns_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: _decoded(array.tolist()) for name, array in arrays.items()}


def rows_of(arrays: Mapping[str, np.ndarray]) -> list[Row]:
    """Turns arrays with a leading dimension of B into B rows of numbers and strings."""
    columns = columns_of(arrays)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
