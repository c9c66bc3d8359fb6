"""What HTTP and gRPC share: errors with a status code, limits, and tensors as protocol buffers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import error_codes_pb2
from tensorflow_serving.apis import predict_pb2

from keras_transformer.export.session import Signature, TensorInfo

STOP_SECONDS = 5
MAX_MESSAGE = 1024  # characters of an error that are told, as many as TF Serving tells
FIELDS = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.int8: "int_val",
    tf.int16: "int_val",
    tf.int32: "int_val",
    tf.uint8: "int_val",
    tf.int64: "int64_val",
    tf.uint32: "uint32_val",
    tf.uint64: "uint64_val",
    tf.bool: "bool_val",
    tf.string: "string_val",
}


class ServingError(Exception):
    """A request that is answered by an error.

    Args:
        code: one of the canonical status codes, `tf.errors.INVALID_ARGUMENT` and so on.
        message: one sentence, for whoever sent the request.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "...")
        self.code = code

    @property
    def name(self) -> str:
        """The code in letters."""
        return error_codes_pb2.Code.Name(self.code)

    @classmethod
    def of(cls, error: Exception) -> "ServingError":
        """Turns any exception into an answer that tells no internals.

        TensorFlow's errors go on with their code and first line: what follows is where in the
        Python of the exporter an op was made.
        """
        if isinstance(error, ServingError):
            return error
        if isinstance(error, tf.errors.OpError):
            return cls(error.error_code, first_line(error.message))
        return cls(tf.errors.INTERNAL, f"Internal error: {type(error).__name__}")


def first_line(message: str) -> str:
    """Returns the line that says what happened; TensorFlow tells first where it did."""
    lines = [line.strip() for line in message.splitlines()]
    after = max((n for n, line in enumerate(lines, 1) if line.startswith("Node: ")), default=0)
    said = (line for line in lines[after:] if line and line != "Graph execution error:")
    return next(said, "unknown error")


def invalid(message: str) -> ServingError:
    """Returns an error of the sender's."""
    return ServingError(tf.errors.INVALID_ARGUMENT, message)


@dataclass(frozen=True)
class Limits:
    """What one client can ask of the server.

    Attributes:
        max_body_bytes: of a request.
        max_rows: of a request: texts, for a translation model.
        max_queue: requests that wait; one more is refused with UNAVAILABLE.
        max_batch_size: rows of a batch that requests are merged into; 1 merges nothing.
        batch_timeout: seconds that a request waits for others to be merged with.
        num_batch_threads: batches that run at a time.
        max_connections: over HTTP that are open at a time; one more is refused.
        read_timeout: seconds in which a request must have come in, head and body, and in which its
            answer must be taken.
        run_timeout: seconds that the model may take for a batch.
    """

    max_body_bytes: int = 4 << 20
    max_rows: int = 256
    max_queue: int = 256
    max_batch_size: int = 32
    batch_timeout: float = 0.002
    num_batch_threads: int = 2
    max_connections: int = 512
    read_timeout: float = 30.0
    run_timeout: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "batch_timeout" else 1
            if not least <= value < math.inf:
                raise ValueError(
                    f"`{name}` must be at least {least} and finite. Received: {name}={value}"
                )

    @property
    def stop_timeout(self) -> int:
        """Seconds that a stop waits: a batch that runs ends in them, one behind it may not."""
        return math.ceil(self.run_timeout) + STOP_SECONDS


def check_inputs(
    signature: Signature, inputs: Mapping[str, np.ndarray], max_rows: int | None = None
) -> None:
    """Refuses inputs that a signature cannot take.

    Args:
        signature: the one asked for.
        inputs: by name.
        max_rows: the largest leading dimension that is let through; None for any.

    Raises:
        ServingError: INVALID_ARGUMENT, that names the input.
    """
    if inputs.keys() != signature.inputs.keys():
        sent, wanted = sorted(inputs), sorted(signature.inputs)
        raise invalid(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({{{','.join(sent)}}}) != len({{{','.join(wanted)}}}). "
            f"Sent extra: {{{','.join(sorted(set(sent) - set(wanted)))}}}. "
            f"Missing but required: {{{','.join(sorted(set(wanted) - set(sent)))}}}."
        )
    for name, array in inputs.items():
        info = signature.inputs[name]
        if not tf.TensorShape(info.shape).is_compatible_with(array.shape):
            shape = [-1 if size is None else size for size in info.shape or ()]
            raise invalid(f"Input {name} has shape {list(array.shape)}, expected {shape}")
        if max_rows is not None and array.ndim and len(array) > max_rows:
            raise invalid(
                f"Task size {len(array)} is larger than maximum input batch size {max_rows}"
            )


def inputs_of(request: predict_pb2.PredictRequest, signature: Signature) -> dict[str, np.ndarray]:
    """Returns the tensors of a request by name; those that the signature lacks unread.

    Raises:
        ServingError: INVALID_ARGUMENT, if one of them is not what it says.
    """
    return {
        name: _array(name, proto, signature.inputs[name])
        if name in signature.inputs
        else np.empty(())
        for name, proto in request.inputs.items()
    }


def _array(name: str, proto: tensor_pb2.TensorProto, info: TensorInfo) -> np.ndarray:
    dtype = info.dtype
    if proto.dtype != dtype.as_datatype_enum:
        raise invalid(f"Input {name} has type number {proto.dtype}, expected {dtype.name}")
    shape = [dim.size for dim in proto.tensor_shape.dim]
    # Checked before anything is allocated: a few bytes may claim a shape of terabytes.
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape) or len(shape) > 32:
        raise invalid(f"Input {name} has no valid shape: {shape}")
    count = 1
    for size in shape:
        count *= size
    if proto.tensor_content and dtype != tf.string:
        num_values = len(proto.tensor_content) / dtype.size
    else:
        num_values = len(getattr(proto, FIELDS.get(dtype, "half_val")))
    # Fewer values than elements are legal, the last one stands for the rest; of one row at most.
    if num_values > count or (num_values < count and (num_values == 0 or count > 1024)):
        raise invalid(f"Input {name} holds {num_values:g} values, expected {count}: shape {shape}")
    try:
        array: np.ndarray = tf.make_ndarray(proto)
    except (TypeError, ValueError) as error:
        raise invalid(f"Input {name} cannot be read: {first_line(str(error))}") from None
    return array


def proto_of(array: np.ndarray) -> tensor_pb2.TensorProto:
    """Returns an array as TF Serving sends it: in the field of its type, not as raw content."""
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    field = FIELDS.get(dtype)
    if field is None:
        return tf.make_tensor_proto(array)
    proto = tensor_pb2.TensorProto(
        dtype=dtype.as_datatype_enum, tensor_shape=tf.TensorShape(array.shape).as_proto()
    )
    values: Any = array.ravel().tolist()
    getattr(proto, field).extend(values)
    return proto
