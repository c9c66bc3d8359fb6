"""The versions of a model on disk: the newest is loaded, warmed up and served."""

import gc
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse, ModelVersionStatus

from keras_transformer.export.assets import read_warmup
from keras_transformer.export.protocol import (
    Limits,
    inputs_from_proto,
    invalid,
    message_of,
    not_found,
)
from keras_transformer.export.rows import DEFAULT_SIGNATURE
from keras_transformer.export.session import SavedModelSession, Signature
from keras_transformer.export.versions import version_paths

_logger = logging.getLogger(__name__)


class LoadedVersion:
    """The version in `MODELS/NAME/VERSION`, loaded and warmed up.

    Raises:
        ValueError: if it cannot be loaded.
        tf.errors.OpError: if a warm-up request fails.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, int(path.name)
        self._session = SavedModelSession(path)
        saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        self.signature_map = SignatureDefMap(signature_def=saved_model.meta_graphs[0].signature_def)
        for request in read_warmup(path):
            name = request.model_spec.signature_name or DEFAULT_SIGNATURE
            self.run(name, inputs_from_proto(request, self.signature(name)))

    def signature(self, name: str) -> Signature:
        """Returns a signature; raises `FailedPreconditionError` if there is none of this name."""
        if name not in self._session.signatures:
            raise tf.errors.FailedPreconditionError(
                None, None, f'Serving signature key "{name}" not found.'
            )
        return self._session.signatures[name]

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature; raises `OpError` if the graph refuses the inputs."""
        try:
            outputs: dict[str, Any] = self._session.run(signature, inputs)
        except (ValueError, TypeError) as error:  # the graph takes no such value or shape
            raise invalid(message_of(error)) from error
        # A Session returns a scalar string as bytes, not as an array.
        return {
            name: np.array(value, object) if isinstance(value, bytes) else value
            for name, value in outputs.items()
        }


class ServedModel:
    """The newest version in a folder.

    The old version answers while a new one is loaded and warmed up, and requests that have begun
    keep it in memory. If a version cannot be loaded, the old one stays in place, and the new one is
    tried again when its files change.

    Args:
        folder: `MODELS/NAME`.
        limits: the limits of a request; None for the defaults.
    """

    def __init__(self, folder: str | Path, limits: Limits | None = None) -> None:
        self.name = os.path.basename(os.path.abspath(folder))
        self.limits = limits or Limits()
        self._folder = Path(folder)
        self._loaded: LoadedVersion | None = None
        self._states: dict[int, ModelVersionStatus] = {}
        self._tried: object = None  # the files of the last version that was loaded, or failed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Loads the newest version, if its files are not those that were tried last."""
        path = next(iter(version_paths(self._folder)), None)
        if path is None or (files := _files(path)) == self._tried:
            return
        self._tried = files
        number = int(path.name)
        try:
            loaded = LoadedVersion(path)
        except Exception as error:  # the files may hold anything
            failed = _failed(number, error)
            message = failed.status.error_message
            _logger.warning("Version %d of %s cannot be loaded: %s", number, self.name, message)
            available = {} if self._loaded is None else _available(self._loaded.number)
            self._states = {number: failed, **available}
        else:
            _logger.info("Version %d of %s is available", number, self.name)
            self._loaded, self._states = loaded, _available(number)
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
        """Returns the loaded version, for a request to a model and to a version; None is any.

        Raises:
            tf.errors.NotFoundError: if this model or this version is not loaded.
        """
        loaded = self._loaded
        if name != self.name or loaded is None or version not in (None, loaded.number):
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise not_found(f"Servable not found for request: {which}")
        return loaded

    def status(self, name: str, version: int | None = None) -> GetModelStatusResponse:
        """Returns the states of the loaded version and of a newer one that failed, or of `version`.

        Raises:
            tf.errors.NotFoundError: if there is no such model or version.
        """
        states = self._states if name == self.name else {}
        found = [states[number] for number in states if version in (None, number)]
        if not found:
            what = "any versions" if version is None else f"version {version}"
            raise not_found(f"Could not find {what} of model {name}")
        return GetModelStatusResponse(model_version_status=found)


def _available(number: int) -> dict[int, ModelVersionStatus]:
    return {number: ModelVersionStatus(version=number, state="AVAILABLE", status={})}


def _failed(number: int, error: Exception) -> ModelVersionStatus:
    message = message_of(error)
    if error.__cause__ is not None:
        message += f": {message_of(error.__cause__)}"
    code = error.error_code if isinstance(error, tf.errors.OpError) else tf.errors.UNKNOWN
    status = {"error_code": code, "error_message": message}
    return ModelVersionStatus(version=number, state="END", status=status)


def _files(path: Path) -> object:
    """Returns a value that changes when a file of a version does."""
    stats = [(str(file), file.lstat()) for file in sorted(path.rglob("*"))]
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
