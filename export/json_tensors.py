"""TF Serving's JSON: requests to arrays, and arrays to answers.

The rules are those of TF Serving's `util/json_tensor.cc`. This module is stricter in two places:
text after the JSON and invalid UTF-8 are errors.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.export.protocol import check_rows, invalid
from keras_transformer.export.session import TensorInfo


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


def inputs_from_json(
    document: Mapping[str, Any], infos: Mapping[str, TensorInfo], max_rows: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a request, by input.

    `infos` are the inputs of the signature, and `max_rows` is the maximum length of each.

    Raises:
        tf.errors.InvalidArgumentError: if the request does not fit the signature.
    """
    if ("instances" in document) == ("inputs" in document):
        raise invalid("A request must have one of the keys 'instances' and 'inputs'")
    if "instances" in document:
        columns = _columns_of_rows(document["instances"], infos)
    else:
        columns = _columns_of_inputs(document["inputs"], infos)
    for column in columns.values():  # before the values are converted, which takes longer
        if isinstance(column, list):
            check_rows(len(column), max_rows)
    return {name: _array(column, infos[name].dtype) for name, column in columns.items()}


def answer(outputs: Mapping[str, np.ndarray], row_format: bool) -> dict[str, Any]:
    """Returns the answer: a list for each output or, in the row format, an item for each row.

    Raises:
        tf.errors.InvalidArgumentError: if JSON cannot hold the type of an output, or if an output
            in the row format has no rows.
    """
    columns = {name: _json_values(name, array) for name, array in sorted(outputs.items())}
    (first, *others) = columns.values()
    if not row_format:
        return {"outputs": columns if others else first}
    for name, column in columns.items():
        if not isinstance(column, list):
            raise invalid(f"Output {name} has no rows")
    if not others:
        return {"predictions": first}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def _columns_of_rows(rows: object, infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise invalid("'instances' must be a list with at least one item")
    if not any(map(_is_object, rows)):
        return {_only_input(infos): rows}
    for number, row in enumerate(rows):
        if not _is_object(row) or row.keys() != infos.keys():
            raise invalid(
                f"Item {number} of 'instances' must be an object with the keys {sorted(infos)}"
            )
    return {name: [row[name] for row in rows] for name in infos}


def _columns_of_inputs(inputs: Any, infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    if not _is_object(inputs):
        return {_only_input(infos): inputs}
    if missing := infos.keys() - inputs.keys():
        raise invalid(f"'inputs' must have the keys {sorted(infos)}. Missing: {sorted(missing)}")
    return {name: inputs[name] for name in infos}


def _only_input(infos: Mapping[str, TensorInfo]) -> str:
    if len(infos) != 1:
        raise invalid(f"The signature has several inputs: name them, {sorted(infos)}")
    return next(iter(infos))


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and value.keys() != {"b64"}


def _array(value: object, dtype: tf.DType) -> np.ndarray:
    """Turns nested lists into an array."""
    items = np.array(value, object)  # lists of different lengths stay lists, which are refused
    try:
        values = [_element(item, dtype) for item in items.flat]
        return np.array(values, dtype.as_numpy_dtype).reshape(items.shape)
    except (ValueError, OverflowError) as error:
        raise invalid(f"A JSON value is not of expected type: {dtype.name}: {error}") from None


def _element(value: Any, dtype: tf.DType) -> Any:
    kind = type(value)
    if dtype == tf.string and kind is str:
        return value.encode()
    if dtype == tf.string and kind is dict and isinstance(value.get("b64"), str):
        text = "".join(value["b64"].split())  # TF Serving ignores white space
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    if (
        (dtype.is_bool and kind is bool)
        or (dtype.is_integer and kind is int and dtype.min <= value <= dtype.max)
        or (dtype.is_floating and kind in (int, float))
    ):
        return value
    raise ValueError(str(value)[:100])


def _json_values(name: str, array: np.ndarray) -> Any:
    """Turns an array into nested lists of JSON's types."""
    if array.dtype == np.float32:
        array = array.astype(str).astype(np.float64)  # 0.1, not 0.10000000149011612
    if array.dtype.kind == "c":
        raise invalid(f"Failed to write JSON value for tensor type: {array.dtype.name}")
    if array.dtype != object:
        return array.tolist()

    def json_string(value: bytes) -> Any:
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(value).decode()}
        return value.decode(errors="replace")

    return np.vectorize(json_string, otypes=[object])(array).tolist()
