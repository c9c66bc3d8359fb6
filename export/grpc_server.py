"""TF Serving's gRPC interface, for machines that have no TF Serving: a stand-in.

`PredictionService.Predict` and `GetModelMetadata`, and `ModelService.GetModelStatus`. The other
methods answer UNIMPLEMENTED.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, NoReturn, TypeVar

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from keras_transformer.export.models import ServedModel
from keras_transformer.export.protocol import ServingError, inputs_of, invalid, proto_of
from keras_transformer.export.rows import DEFAULT_SIGNATURE

GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}
SPARE_THREADS = 16  # for questions of status, while all that may wait for a batch does

_logger = logging.getLogger(__name__)
_Response = TypeVar("_Response")


class _Core:
    """What both services do, free of gRPC but for the messages."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def predict(
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        seconds = context.time_remaining()
        if seconds is not None and seconds > threading.TIMEOUT_MAX:
            seconds = None  # gRPC's way to say that there is no deadline
        spec = request.model_spec
        with self._model.use(_version(spec), spec.name) as loaded:
            name = spec.signature_name or DEFAULT_SIGNATURE
            signature = loaded.signature(name)
            if signature is None:
                raise ServingError(
                    tf.errors.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
                )
            wanted = _wanted(list(request.output_filter), list(signature.outputs))
            answer = loaded.submit(name, inputs_of(request, signature))
            # When nobody waits for it any more, it need not be run.
            if not context.add_callback(answer.cancel):
                answer.cancel()
            try:
                outputs = answer.result(seconds)
            except TimeoutError:
                answer.cancel()
                raise ServingError(tf.errors.DEADLINE_EXCEEDED, "Deadline exceeded") from None
            except futures.CancelledError:
                raise ServingError(tf.errors.CANCELLED, "The call was cancelled") from None
            response = predict_pb2.PredictResponse()
            response.model_spec.name = self._model.name
            response.model_spec.signature_name = name
            response.model_spec.version.value = loaded.number
        for output in wanted:
            response.outputs[output].CopyFrom(proto_of(outputs[output]))
        return response

    def metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"Metadata field {field} is not supported")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        spec = request.model_spec
        with self._model.use(_version(spec), spec.name) as loaded:
            response.model_spec.name = self._model.name
            response.model_spec.version.value = loaded.number
            response.metadata["signature_def"].Pack(
                get_model_metadata_pb2.SignatureDefMap(signature_def=loaded.signature_defs)
            )
        return response

    def status(
        self, request: get_model_status_pb2.GetModelStatusRequest
    ) -> get_model_status_pb2.GetModelStatusResponse:
        if not request.HasField("model_spec"):
            raise invalid("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        response = get_model_status_pb2.GetModelStatusResponse()
        for state in self._model.states(version, spec.name):
            entry = response.model_version_status.add(version=state.version)
            entry.state = get_model_status_pb2.ModelVersionStatus.State.Value(state.state)
            entry.status.error_code = state.code
            entry.status.error_message = state.message
        return response


def _version(spec: model_pb2.ModelSpec) -> int | None:
    """Returns the version that a request asks for, or None for the one that is served."""
    if not spec.name:
        raise invalid("ModelSpec has no name specified.")
    if spec.HasField("version_label"):
        raise invalid(f"Unrecognized servable version label: {spec.version_label}")
    return spec.version.value if spec.HasField("version") else None


def _wanted(filtered: list[str], outputs: list[str]) -> list[str]:
    """Returns the outputs that a request asks for, all if it names none."""
    for number, name in enumerate(filtered):
        if name not in outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} "
                f"Outputs expected to be in the set {{{','.join(sorted(outputs))}}}."
            )
        if name in filtered[:number]:
            raise invalid(f"duplicate output tensor alias: {name}")
    return filtered or outputs


def _answer(
    handle: Callable[[Any], _Response], request: object, context: grpc.ServicerContext
) -> _Response:
    """Handles a call; every exception ends it with its status, and none shows internals."""
    try:
        return handle(request)
    except Exception as error:
        answer = ServingError.of(error)
        if answer.code == tf.errors.INTERNAL:
            _logger.error("A call failed", exc_info=error)
    _abort(context, answer)


def _abort(context: grpc.ServicerContext, error: ServingError) -> NoReturn:
    context.abort(GRPC_CODES.get(error.code, grpc.StatusCode.INTERNAL), str(error))
    raise AssertionError  # abort raises


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, core: _Core) -> None:
        self._core = core

    def Predict(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return _answer(lambda asked: self._core.predict(asked, context), request, context)

    def GetModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return _answer(self._core.metadata, request, context)


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, core: _Core) -> None:
        self._core = core

    def GetModelStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return _answer(self._core.status, request, context)


class GrpcServer:
    """Serves a model over gRPC, from the moment it is made.

    Args:
        model: what is served; opened and closed by whoever owns it.
        host: address to listen at.
        port: 0 takes a free one.

    Attributes:
        address: where it listens.

    Raises:
        OSError: if it cannot listen there.
    """

    def __init__(self, model: ServedModel, host: str = "127.0.0.1", port: int = 0) -> None:
        limits = model.limits
        self._stop_timeout = limits.stop_timeout
        # A call waits for its batch in a thread of its own.
        running = limits.num_batch_threads * limits.max_batch_size
        num_threads = limits.max_queue + running + SPARE_THREADS
        self._server = grpc.server(
            futures.ThreadPoolExecutor(num_threads, thread_name_prefix="grpc"),
            options=[
                ("grpc.so_reuseport", 0),  # a port that is taken is an error
                ("grpc.max_receive_message_length", min(limits.max_body_bytes, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
            ],
            maximum_concurrent_rpcs=2 * num_threads,
        )
        core = _Core(model)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            _PredictionService(core), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(_ModelService(core), self._server)
        shown = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            reason = "the port is taken, or the address is not this machine's"
            raise OSError(reason) from error
        self.address = f"{shown}:{bound}"

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def stop(self) -> None:
        """Refuses new calls, and ends those that have begun."""
        self._server.stop(self._stop_timeout).wait()
