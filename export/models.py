"""The versions of a model on disk: the newest is loaded, warmed up and served.

Errors are TensorFlow's, `tf.errors.OpError`: their codes are those of gRPC.
"""

import gc
import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse, ModelVersionStatus
from tensorflow_serving.apis.predict_pb2 import PredictRequest

from keras_transformer.export.assets import read_warmup
from keras_transformer.export.rows import DEFAULT_SIGNATURE
from keras_transformer.export.session import SavedModelSession
from keras_transformer.export.versions import version_paths

MAX_MESSAGE = 1024  # characters of an error message, as in TF Serving
STOP_SECONDS = 60  # that a server which stops gives the requests that it is computing

_logger = logging.getLogger(__name__)


def invalid(message: str) -> tf.errors.InvalidArgumentError:
    """Returns the error of a request that is not valid."""
    return tf.errors.InvalidArgumentError(None, None, message)


def message_of(error: BaseException) -> str:
    """Returns the line of an error that says what happened, without the names of nodes."""
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    message = re.split(r"^Node: .*\n", message, flags=re.MULTILINE)[-1]
    message = message.removeprefix("Graph execution error:").strip()
    return message.partition("\n")[0][:MAX_MESSAGE]


class LoadedVersion:
    """The version in `MODELS/NAME/VERSION`, loaded and warmed up."""

    def __init__(self, path: Path) -> None:
        self.number = int(path.name)
        self._session = SavedModelSession(path)
        self.signature_map = SignatureDefMap(signature_def=self._session.signatures)
        for request in read_warmup(path):
            self.predict(request)

    def signature(self, name: str) -> SignatureDef:
        """Returns a signature; raises `FailedPreconditionError` if there is none of this name."""
        if name not in self._session.signatures:
            raise tf.errors.FailedPreconditionError(
                None, None, f'Serving signature key "{name}" not found.'
            )
        return self._session.signatures[name]

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature; raises `OpError` if the graph refuses the inputs."""
        try:
            return self._session.run(signature, inputs)
        except (ValueError, TypeError) as error:  # the graph takes no such shape
            raise invalid(message_of(error)) from error

    def predict(self, request: PredictRequest) -> dict[str, np.ndarray]:
        """Returns the outputs for a request; raises `OpError` if it does not fit its signature."""
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        inputs = self.signature(name).inputs
        expected = {key: DataType.Name(info.dtype) for key, info in inputs.items()}
        received = {key: DataType.Name(tensor.dtype) for key, tensor in request.inputs.items()}
        if received != expected:
            raise invalid(f"The inputs of {name} must be {expected}. Received: {received}")
        try:
            arrays = {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
        except (TypeError, ValueError) as error:  # more or fewer values than the shape says
            raise invalid(f"An input cannot be read: {message_of(error)}") from None
        return self.run(name, arrays)


class ServedModel:
    """The newest version in a folder, `MODELS/NAME`.

    The old version answers while a new one is loaded and warmed up, and requests that have begun
    keep it in memory. If a version cannot be loaded, the old one stays in place, and the new one is
    tried again when its files change.
    """

    def __init__(self, folder: str | Path) -> None:
        self.name = os.path.basename(os.path.abspath(folder))
        self._folder = Path(folder)
        self._loaded: LoadedVersion | None = None
        self._failed: ModelVersionStatus | None = None  # a newer version
        self._tried: object = None  # the files of the last version that was loaded, or failed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Loads the newest version, if its files are not those that were tried last."""
        path = next(iter(version_paths(self._folder)), None)
        if path is None or (files := _files(path)) == self._tried:
            return
        self._tried = files
        try:
            self._loaded, self._failed = LoadedVersion(path), None
        except Exception as error:  # the files may hold anything
            message = message_of(error)
            code = error.error_code if isinstance(error, tf.errors.OpError) else tf.errors.UNKNOWN
            status = {"error_code": code, "error_message": message}
            self._failed = ModelVersionStatus(version=int(path.name), state="END", status=status)
            _logger.warning("Version %s of %s cannot be loaded: %s", path.name, self.name, message)
        else:
            _logger.info("Version %s of %s is available", path.name, self.name)
            gc.collect()  # the graph of the old version refers to itself

    def watch(self, seconds: float) -> None:
        """Starts a thread that polls, until `close`."""

        def work() -> None:
            while not self._stop.wait(seconds):
                try:
                    self.poll()
                except OSError as error:  # such as a file that vanishes: the next poll may work
                    _logger.warning("%s cannot be read: %s", self._folder, error)

        self._thread = threading.Thread(target=work, name="versions")
        self._thread.start()

    def close(self) -> None:
        """Stops polling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def find(self, name: str, version: int | None = None) -> LoadedVersion:
        """Returns the loaded version; raises `NotFoundError` if it is not the one asked for."""
        loaded = self._loaded
        if name != self.name or loaded is None or version not in (None, loaded.number):
            raise _not_found(name, version)
        return loaded

    def status(self, name: str, version: int | None = None) -> GetModelStatusResponse:
        """Returns the states of the loaded version and of a newer one that failed, or of `version`.

        It raises `NotFoundError` if there is no such model or version.
        """
        states = [] if self._failed is None else [self._failed]
        if self._loaded is not None:
            number = self._loaded.number
            states.append(ModelVersionStatus(version=number, state="AVAILABLE", status={}))
        found = [state for state in states if version in (None, state.version)]
        if name != self.name or not found:
            raise _not_found(name, version)
        return GetModelStatusResponse(model_version_status=found)


def _not_found(name: str, version: int | None) -> tf.errors.NotFoundError:
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return tf.errors.NotFoundError(None, None, f"Servable not found for request: {which}")


def _files(path: Path) -> object:
    """Returns a value that changes when a file of a version does."""
    stats = [(str(file), file.lstat()) for file in sorted(path.rglob("*"))]
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
