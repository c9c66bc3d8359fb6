"""TF Serving's JSON: requests to arrays of strings, and arrays to answers.

The rules are those of TF Serving's `util/json_tensor.cc`, for the tensors of exports. Text after
the JSON, invalid UTF-8 and base64 without its padding are errors, too. All are a `SessionError`.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer.export.rows import columns_of, rows_of
from keras_transformer.export.session import SessionError


def parse(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SessionError(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise SessionError("JSON Parse error: The document is not an object")
    return document


def inputs_from_json(document: Mapping[str, Any], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the arrays of a request; `names` are those of the signature's inputs."""
    keys = set(names)
    needed = f"with the keys {sorted(keys)}"
    if ("instances" in document) == ("inputs" in document):
        raise SessionError("A request must have one of the keys 'instances' and 'inputs'")
    columns = document.get("inputs")
    if "instances" in document:
        columns = document["instances"]
        if not isinstance(columns, list) or not columns:
            raise SessionError("'instances' must be a list with at least one item")
        if any(map(_is_object, columns)):
            if not all(_is_object(row) and row.keys() == keys for row in columns):
                raise SessionError(f"Each of 'instances' must be an object {needed}")
            columns = {key: [row[key] for row in columns] for key in keys}
    if not _is_object(columns) and len(keys) == 1:
        columns = dict.fromkeys(keys, columns)
    if not isinstance(columns, dict) or not columns.keys() >= keys:
        raise SessionError(f"The inputs must be an object {needed}")
    return {key: _array(columns[key]) for key in keys}


def answer(outputs: Mapping[str, np.ndarray], row_format: bool) -> dict[str, Any]:
    """Returns a list for each output or, in the row format, an object for each row."""
    arrays = {
        # 0.1, not 0.10000000149011612
        name: array.astype(str).astype(float) if array.dtype == np.float32 else array
        for name, array in outputs.items()
    }
    return {"predictions": rows_of(arrays)} if row_format else {"outputs": columns_of(arrays)}


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and value.keys() != {"b64"}


def _array(value: object) -> np.ndarray:
    """Turns nested lists of strings into an array of bytes."""
    items = np.array(value, object)  # lists of different lengths stay lists, which are refused
    return np.array([_bytes(item) for item in items.ravel()], object).reshape(items.shape)


def _bytes(value: Any) -> bytes:
    try:
        if isinstance(value, dict):
            return base64.b64decode(value["b64"], validate=True)
        return value.encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SessionError(f"A JSON value is not a string: {value!r:.100}") from None
