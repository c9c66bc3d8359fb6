"""TF Serving's gRPC interface, served locally.

`PredictionService.Predict` and `GetModelMetadata`, and `ModelService.GetModelStatus`. The other
methods answer UNIMPLEMENTED.
"""

from collections.abc import Callable
from concurrent import futures
from functools import wraps
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.errors import one_line
from keras_transformer.export.options import DEFAULT_SIGNATURE
from keras_transformer.export.server.http import STOP_SECONDS, address_of, cannot_listen
from keras_transformer.export.server.models import ServedModel
from keras_transformer.export.session import SessionError

# The fields in which TF Serving sends the values of an output, by the kind of its NumPy type.
FIELDS = {"O": "string_val", "b": "bool_val", "f": "float_val", "i": "int_val"}
CODES = {code.value[0]: code for code in grpc.StatusCode}


def _errors_as_status(method: Callable[..., Any]) -> Callable[..., Any]:
    """Ends a call that raises a `SessionError` with its status. gRPC logs other exceptions."""

    @wraps(method)
    def call(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request)
        except SessionError as error:
            context.abort(CODES[error.code], str(error))

    return call


class _Service(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    @_errors_as_status
    def Predict(  # noqa: N802
        self, request: predict_pb2.PredictRequest
    ) -> predict_pb2.PredictResponse:
        spec = request.model_spec
        loaded = self._model.find(*_model_and_version(spec))
        spec.signature_name = spec.signature_name or DEFAULT_SIGNATURE
        try:
            inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        except (TypeError, ValueError) as error:  # more or fewer values than the shape says
            raise SessionError(f"An input cannot be read: {one_line(error)}") from None
        outputs = loaded.run(spec.signature_name, inputs)
        names = request.output_filter or outputs.keys()
        if unknown := set(names) - outputs.keys():
            raise SessionError(f"There are no outputs {sorted(unknown)}")
        spec.version.value = loaded.number
        protos = {name: _proto_of(outputs[name]) for name in names}
        return predict_pb2.PredictResponse(model_spec=spec, outputs=protos)

    @_errors_as_status
    def GetModelMetadata(  # noqa: N802
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        if list(request.metadata_field) != ["signature_def"]:
            raise SessionError("`metadata_field` must be signature_def")
        spec = request.model_spec
        loaded = self._model.find(*_model_and_version(spec))
        spec.version.value = loaded.number
        response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=spec)
        response.metadata["signature_def"].Pack(loaded.signature_map)
        return response

    @_errors_as_status
    def GetModelStatus(  # noqa: N802
        self, request: get_model_status_pb2.GetModelStatusRequest
    ) -> get_model_status_pb2.GetModelStatusResponse:
        return self._model.status(*_model_and_version(request.model_spec))


def _model_and_version(spec: model_pb2.ModelSpec) -> tuple[str, int | None]:
    """Returns the model and the version that a request asks for; None is any version."""
    if not spec.name:
        raise SessionError("ModelSpec has no name specified.")
    if spec.HasField("version_label"):
        raise SessionError(f"Unrecognized servable version label: {spec.version_label}")
    return spec.name, spec.version.value if spec.HasField("version") else None


def _proto_of(array: np.ndarray) -> TensorProto:
    """Returns an output of an export as TF Serving sends it."""
    proto = TensorProto(
        dtype=tf.as_dtype(array.dtype).as_datatype_enum,
        tensor_shape=tf.TensorShape(array.shape).as_proto(),
    )
    getattr(proto, FIELDS[array.dtype.kind]).extend(array.ravel().tolist())
    return proto


class GrpcServer:
    """Serves a model over gRPC at `address`, from `start` on; `InputError` if it cannot listen."""

    def __init__(self, model: ServedModel, host: str, port: int, max_body_bytes: int) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=40),  # more calls wait
            options=[
                ("grpc.so_reuseport", 0),  # so that a port in use is an error
                ("grpc.max_receive_message_length", max_body_bytes),
                ("grpc.max_send_message_length", -1),
            ],
        )
        service = _Service(model)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, self._server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, self._server)
        try:
            port = self._server.add_insecure_port(address_of(host, port))
        except RuntimeError as error:
            raise cannot_listen(host, port, error) from error
        self.address = address_of(host, port)

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Refuses new calls, and waits for those that have begun."""
        self._server.stop(STOP_SECONDS).wait()
