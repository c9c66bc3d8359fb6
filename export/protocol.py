"""What the HTTP and the gRPC server share: limits, errors, and tensors as protocol buffers.

Errors are TensorFlow's, `tf.errors.OpError`: their codes are those of gRPC.
"""

import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

from keras_transformer.export.session import Signature

MAX_MESSAGE = 1024  # characters of an error message, as in TF Serving
STOP_SECONDS = 60  # that a server which stops gives the requests that it is computing
# Where TF Serving puts the values of an export's outputs. Other types are sent as raw content.
FIELDS = {
    tf.string: "string_val",
    tf.bool: "bool_val",
    tf.float32: "float_val",
    tf.int32: "int_val",
}


class Limits(NamedTuple):
    """The limits of a request."""

    max_body_bytes: int = 4 << 20
    max_rows: int = 256  # for a translation model, texts


def invalid(message: str) -> tf.errors.InvalidArgumentError:
    """Returns the error of a request that is not valid."""
    return tf.errors.InvalidArgumentError(None, None, message)


def not_found(message: str) -> tf.errors.NotFoundError:
    """Returns the error of a request for a model or a version that is not served."""
    return tf.errors.NotFoundError(None, None, message)


def message_of(error: BaseException) -> str:
    """Returns the line of an error that says what happened, without the names of nodes."""
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    message = re.split(r"^Node: .*\n", message, flags=re.MULTILINE)[-1]
    message = message.removeprefix("Graph execution error:").strip()
    return message.partition("\n")[0][:MAX_MESSAGE]


def check_rows(num_rows: int, max_rows: int) -> None:
    """Raises `InvalidArgumentError` if a request has too many rows."""
    if num_rows > max_rows:
        raise invalid(f"A request must have at most {max_rows} rows. Received: {num_rows}")


def inputs_from_proto(
    request: predict_pb2.PredictRequest, signature: Signature
) -> dict[str, np.ndarray]:
    """Returns the tensors of a request by name.

    Raises:
        tf.errors.InvalidArgumentError: if names or types are not those of the signature.
    """
    if request.inputs.keys() != signature.inputs.keys():
        raise invalid(
            f"The signature has the inputs {sorted(signature.inputs)}. "
            f"Received: {sorted(request.inputs)}"
        )
    arrays = {}
    for name, proto in request.inputs.items():
        dtype = signature.inputs[name].dtype
        if proto.dtype != dtype.as_datatype_enum:
            raise invalid(
                f"Input {name} must have the type {dtype.name}. Received: type number {proto.dtype}"
            )
        try:
            arrays[name] = tf.make_ndarray(proto)
        except (TypeError, ValueError) as error:  # more or fewer values than the shape says
            raise invalid(f"Input {name} cannot be read: {message_of(error)}") from None
    return arrays


def proto_of(array: np.ndarray) -> tensor_pb2.TensorProto:
    """Returns an array as TF Serving sends it: in the field of its type."""
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    if dtype not in FIELDS:
        return tf.make_tensor_proto(array)
    shape = tf.TensorShape(array.shape).as_proto()
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=shape)
    getattr(proto, FIELDS[dtype]).extend(array.ravel().tolist())
    return proto
