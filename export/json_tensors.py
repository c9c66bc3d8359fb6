"""TF Serving's JSON: requests to arrays, and arrays to answers.

The rules and the wording are those of its `util/json_tensor.cc`. Where that file lets a mistake
pass, this one does not: duplicate keys (it takes the first), text after the JSON (it ignores it)
and invalid UTF-8 (it hands it on) are errors. Numbers that a float does not hold exactly are
rounded here, and refused there.
"""

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.char  # else the first request loads it, for a quarter of a second
import tensorflow as tf

from keras_transformer.export.protocol import ServingError, invalid
from keras_transformer.export.session import Signature, TensorInfo

MAX_RANK = 32
MAX_VALUES = 1_000_000  # of an answer; a second or two of work
MAX_ECHO = 256  # characters of a wrong value that an error repeats
TYPE_NAMES = {tf.float32: "float", tf.float64: "double", tf.float16: "half"}


def parse(body: bytes) -> dict[str, Any]:
    """Reads a request, whatever it is.

    Raises:
        ServingError: INVALID_ARGUMENT, if it is not a JSON object.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig")
        document = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_decimal
        )
        if re.search(r"\\u[dD][89a-fA-F]", text):  # half a pair, perhaps: such text has no UTF-8
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise invalid(
            f"JSON Parse error: Invalid encoding in string. at offset: {error.start}"
        ) from None
    except UnicodeEncodeError:
        raise invalid("JSON Parse error: The surrogate pair in string is invalid.") from None
    except json.JSONDecodeError as error:
        problem = error.msg.replace("Expecting value", "Invalid value.")
        raise invalid(f"JSON Parse error: {problem} at offset: {error.pos}") from None
    except RecursionError:
        raise invalid("JSON Parse error: The document is nested too deeply") from None
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {_echo(document)} Is not object")
    return document


def signature_name(document: Mapping[str, Any]) -> str:
    """Returns the signature that a request names, or an empty string.

    Raises:
        ServingError: INVALID_ARGUMENT, if it is not a string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"JSON Value: {_echo(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def inputs_of(
    document: Mapping[str, Any], signature: Signature, max_rows: int
) -> tuple[dict[str, np.ndarray], bool]:
    """Turns a request into arrays.

    Args:
        document: the request.
        signature: the one that it asks for.
        max_rows: more are refused before they are read.

    Returns:
        The inputs by name, and whether the request has the row format.

    Raises:
        ServingError: INVALID_ARGUMENT, that says what is wrong where.
    """
    if "instances" in document and "inputs" in document:
        raise invalid(
            f"JSON Value: {_echo(document)} Not formatted correctly expecting only "
            "one of 'inputs' or 'instances' keys to exist "
        )
    if not signature.inputs and document.get("inputs") != {}:
        raise invalid("The signature takes no inputs: send {} as 'inputs'")
    if "instances" in document:
        rows = document["instances"]
        if not isinstance(rows, list):
            raise invalid(
                f"JSON Value: {_echo(document)} Expecting 'instances' to be an list/array"
            )
        if not rows:
            raise invalid(f"JSON Value: {_echo(document)} No values in 'instances' array")
        if len(rows) > max_rows:
            raise invalid(
                f"Task size {len(rows)} is larger than maximum input batch size {max_rows}"
            )
        return _from_rows(rows, signature.inputs), True
    if "inputs" in document:
        return _from_columns(document["inputs"], signature.inputs), False
    raise invalid("Missing 'inputs' or 'instances' key")


def answer(outputs: Mapping[str, np.ndarray], row_format: bool) -> bytes:
    """Writes outputs as JSON.

    Args:
        outputs: by name.
        row_format: one object per row, instead of one list per output.

    Returns:
        UTF-8.

    Raises:
        ServingError: INVALID_ARGUMENT, if outputs have no common dimension 0 to be rows;
            INTERNAL, if one holds text that is not UTF-8.
    """
    if sum(array.size for array in outputs.values()) > MAX_VALUES:
        raise ServingError(
            tf.errors.RESOURCE_EXHAUSTED,
            f"The answer has more than {MAX_VALUES:,} values: send fewer or shorter rows",
        )
    columns = {name: _plain(name, outputs[name]) for name in sorted(outputs)}
    if not row_format:
        (values, *more) = columns.values()
        return _json({"outputs": columns if more else values})
    batch_size = None
    for name in columns:
        if outputs[name].ndim == 0:
            raise invalid(f"Tensor name: {name} has no shape information ")
        size = len(outputs[name])
        if size != (size if batch_size is None else batch_size):
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: {size} expecting: {batch_size}"
            )
        batch_size = size
    if len(columns) == 1:
        return _json({"predictions": next(iter(columns.values()))})
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return _json({"predictions": rows})


def error_body(error: ServingError) -> bytes:
    """Writes an error as JSON."""
    return _json({"error": str(error)})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", errors="replace")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise invalid(f"JSON Parse error: the key {_echo(twice)} is there twice")
    return found


def _integer(digits: str) -> int | float:
    # Up to 64 bits a number is whole; Python's would be of any length, and take any time.
    return (
        int(digits)
        if len(digits) < 20 or -(1 << 63) <= float(digits) < 1 << 64
        else _decimal(digits)
    )


def _decimal(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise invalid("JSON Parse error: Number too big to be stored in double.")
    return value


def _from_rows(rows: list[Any], infos: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    if not _is_object(rows[0]) and len(infos) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    objects = _is_object(rows[0])
    values: dict[str, list[Any]] = {name: [] for name in infos}
    shapes: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if _is_object(row) != objects:
            wanted, got = ("object", "list") if objects else ("value/list", "object")
            raise invalid(f"Expecting {wanted} but got {got} at item {number} of input list")
        for name, item in row.items() if objects else [(next(iter(infos)), row)]:
            try:
                if name not in infos:
                    raise invalid(f"JSON object: does not have named input: {name}")
                flat, shape = _flatten(item, infos[name].dtype)
                if shape != shapes.setdefault(name, shape):
                    raise invalid(f"Expecting shape {shapes[name]} but got: {shape}")
            except ServingError as error:
                key = f" key: {name}" if objects else ""
                raise ServingError(
                    error.code,
                    f"Failed to process element: {number}{key} of 'instances' list. "
                    f"Error: {error.name}: {error}",
                ) from None
            values[name] += flat
        if objects and row.keys() != infos.keys():
            raise invalid(
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{_echo(row)} keys must be equal to: {','.join(sorted(infos))}"
            )
    return {
        name: _array(flat, [len(rows), *shapes[name]], infos[name].dtype)
        for name, flat in values.items()
    }


def _from_columns(inputs: Any, infos: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    if not _is_object(inputs):
        if len(infos) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        inputs = {next(iter(infos)): inputs}
    columns = {}
    for name, info in infos.items():
        if name not in inputs:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
        columns[name] = _array(*_flatten(inputs[name], info.dtype), info.dtype)
    return columns


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: dict[str, Any]) -> bool:
    return value.keys() == {"b64"} and isinstance(value["b64"], str)


def _flatten(value: Any, dtype: tf.DType) -> tuple[list[Any], list[int]]:
    """Returns the values of nested lists in order, and the sizes of the lists."""
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if len(shape) > MAX_RANK:
            raise invalid(f"JSON Value: {_echo(value)} has more than {MAX_RANK} dimensions")
        if not first:
            break
        first = first[0]
    flat: list[Any] = []
    _fill(flat, value, shape, 0, dtype)
    return flat, shape


def _fill(flat: list[Any], value: Any, shape: Sequence[int], level: int, dtype: tf.DType) -> None:
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {_echo(value)} found at incorrect level: {level + 1} "
                f"in the JSON DOM. Expected at level: {len(shape)}"
            )
        flat.append(_element(value, dtype))
        return
    if level >= len(shape):
        raise invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for item in value:
        _fill(flat, item, shape, level + 1, dtype)


def _element(value: Any, dtype: tf.DType) -> Any:
    if dtype == tf.string:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict):
            return _from_base64(value)
    elif dtype == tf.bool:
        if isinstance(value, bool):
            return value
    elif dtype in (tf.float32, tf.float64):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    elif dtype.is_integer:
        if type(value) is int and dtype.min <= value <= dtype.max:
            return value
    else:
        raise ServingError(
            tf.errors.UNIMPLEMENTED,
            f"Conversion of JSON Value: {_echo(value)} to type: {_type_name(dtype)}",
        )
    _refuse(value, dtype)


def _refuse(value: Any, dtype: tf.DType) -> NoReturn:
    names = {type(None): "Null", dict: "Object", list: "Array", str: "String"}
    kind = str(value) if isinstance(value, bool) else names.get(type(value), "Number")
    raise invalid(
        f"JSON Value: {_echo(value)} Type: {kind} is not of expected type: {_type_name(dtype)}"
    )


def _from_base64(value: dict[str, Any]) -> bytes:
    if not _is_base64(value):
        raise invalid(f"JSON Value: {_echo(value)} not formatted correctly for base64 data")
    try:
        # The padding may be left out, as in TF Serving.
        text = value["b64"].rstrip("=")
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("Unable to base64 decode") from None


def _array(flat: list[Any], shape: Sequence[int], dtype: tf.DType) -> np.ndarray:
    array = np.empty(len(flat), dtype.as_numpy_dtype)
    with np.errstate(over="ignore"):  # a double beyond float32 is infinite, as in C
        array[:] = flat
    return array.reshape(shape)


def _type_name(dtype: tf.DType) -> str:
    return TYPE_NAMES.get(dtype, dtype.name)


def _echo(value: Any) -> str:
    """Returns the beginning of a value as JSON; nothing longer is made on the way."""
    text = ""
    for chunk in json.JSONEncoder(ensure_ascii=True).iterencode(value):
        text += chunk[:MAX_ECHO]
        if len(text) >= MAX_ECHO:
            return text[:MAX_ECHO] + "..."
    return text


def _plain(name: str, array: np.ndarray) -> Any:
    """Returns nested lists of what JSON knows."""
    if array.dtype == object:
        text = (
            (lambda b: {"b64": base64.b64encode(b).decode()})
            if name.endswith("_bytes")
            else bytes.decode
        )
        try:
            flat: Any = [text(item) for item in array.ravel().tolist()]
        except UnicodeDecodeError:
            raise ServingError(
                tf.errors.INTERNAL, f"Output {name} holds text that is not UTF-8"
            ) from None
        boxed = np.empty(array.size, object)
        boxed[:] = flat
        return boxed.reshape(array.shape).tolist()
    if array.dtype == np.float32:
        # As TF Serving writes them: six digits where they are enough, else nine.
        short = np.char.mod("%.6g", array).astype(np.float64)
        long = np.char.mod("%.9g", array).astype(np.float64)
        return np.where(short.astype(np.float32) == array, short, long).tolist()
    return array.tolist()
