"""TF Serving's JSON: requests to arrays of strings, and arrays to answers.

The rules are those of TF Serving's `util/json_tensor.cc`, for the tensors of exports. This module
is stricter: text after the JSON, invalid UTF-8 and base64 without its padding are errors.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer.export.models import invalid
from keras_transformer.export.session import columns_of, rows_of


def parse(body: bytes) -> dict[str, Any]:
    """Returns the JSON object that a request holds.

    Raises:
        tf.errors.InvalidArgumentError: if it holds something else.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise invalid("JSON Parse error: The document is not an object")
    return document


def inputs_from_json(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the arrays of a request, by the names of the signature's inputs.

    Raises:
        tf.errors.InvalidArgumentError: if the request does not fit the signature.
    """
    keys = sorted(names)
    if ("instances" in document) == ("inputs" in document):
        raise invalid("A request must have one of the keys 'instances' and 'inputs'")
    if "instances" in document:
        columns = _columns_of_rows(document["instances"], keys)
    else:
        columns = document["inputs"]
    if not _is_object(columns) and len(keys) == 1:
        columns = {keys[0]: columns}
    if not _is_object(columns) or not columns.keys() >= set(keys):
        raise invalid(f"'inputs' must be an object with the keys {keys}")
    return {key: _array(columns[key]) for key in keys}


def answer(outputs: Mapping[str, np.ndarray], row_format: bool) -> dict[str, Any]:
    """Returns the answer: a list for each output or, in the row format, an object for each row."""
    arrays = {
        # 0.1, not 0.10000000149011612
        name: array.astype(str).astype(float) if array.dtype == np.float32 else array
        for name, array in outputs.items()
    }
    if row_format:
        return {"predictions": rows_of(arrays)}
    return {"outputs": columns_of(arrays)}


def _columns_of_rows(rows: object, keys: list[str]) -> Any:
    """Returns the rows if they are bare, otherwise a list for each of their keys."""
    if not isinstance(rows, list) or not rows:
        raise invalid("'instances' must be a list with at least one item")
    if len(keys) == 1 and not any(map(_is_object, rows)):
        return rows
    for number, row in enumerate(rows):
        if not _is_object(row) or sorted(row) != keys:
            raise invalid(f"Item {number} of 'instances' must be an object with the keys {keys}")
    return {key: [row[key] for row in rows] for key in keys}


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and value.keys() != {"b64"}


def _array(value: object) -> np.ndarray:
    """Turns nested lists of strings into an array of bytes."""
    items = np.array(value, object)  # lists of different lengths stay lists, which are refused
    return np.array([_bytes(item) for item in items.flat], object).reshape(items.shape)


def _bytes(value: Any) -> bytes:
    try:
        if isinstance(value, dict):
            return base64.b64decode(value["b64"], validate=True)
        return value.encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise invalid(f"A JSON value is not a string: {value!r:.100}") from None
