"""The versions of a model on disk: the newest is loaded, warmed up and served."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse, ModelVersionStatus

from keras_transformer.errors import InputError, as_input_error, one_line
from keras_transformer.export.metadata import version_paths
from keras_transformer.export.session import SavedModelSession, SessionError
from keras_transformer.export.warmup import read_warmup

_logger = logging.getLogger(__name__)


class LoadedVersion(SavedModelSession):
    """The version in `MODELS/NAME/VERSION`, loaded and warmed up.

    Unless it should `wait`, a thread replays all warm-up requests but the first, and a request to a
    signature that is not warm yet takes longer.
    """

    def __init__(self, path: Path, wait: bool) -> None:
        super().__init__(path, optimize=True)
        self.path, self.number = path, int(path.name)
        self.signature_map = SignatureDefMap(signature_def=self.signatures)
        requests = list(read_warmup(path))
        num_now = len(requests) if wait else 1
        for request in requests[:num_now]:
            self.run(*request)

        def warm_up() -> None:
            for signature, inputs in requests[num_now:]:
                try:
                    self.run(signature, inputs)
                except SessionError as error:
                    _logger.warning("Warm-up of %s: %s", signature, one_line(error))

        threading.Thread(target=warm_up, name="warm-up", daemon=True).start()


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
        self._tried: object = None  # the files of the last version that was loaded, or failed

    def poll(self) -> None:
        """Loads the newest version unless its files were tried last; `InputError` if that fails."""
        path = next(iter(version_paths(self._folder)), None)
        if path is None or (files := _files(path)) == self._tried:
            return
        self._tried = files
        # The files may hold anything.
        with as_input_error(f"Version {path.name} of {self.name} cannot be loaded"):
            self._loaded = LoadedVersion(path, wait=self._loaded is not None)
        _logger.info("Version %s of %s is available", path.name, self.name)

    @contextmanager
    def watched(self, seconds: float) -> Iterator[None]:
        """Polls in a thread while the context lasts."""
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(seconds):
                try:
                    self.poll()
                except (InputError, OSError) as error:  # such as a file that vanishes
                    _logger.warning("%s", error)

        thread = threading.Thread(target=work, name="versions")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def find(self, name: str, version: int | None = None) -> LoadedVersion:
        """Returns the loaded version; raises `SessionError` if it is not the one asked for."""
        loaded = self._loaded
        if name != self.name or loaded is None or version not in (None, loaded.number):
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            message = f"Servable not found for request: {which}"
            raise SessionError(message, tf.errors.NOT_FOUND)
        return loaded

    def status(self, name: str, version: int | None = None) -> GetModelStatusResponse:
        """Returns the state of the loaded version; raises `SessionError` as `find` does."""
        try:
            number = self.find(name, version).number
        except SessionError:
            which = "any versions" if version is None else f"version {version}"
            message = f"Could not find {which} of model {name}"
            raise SessionError(message, tf.errors.NOT_FOUND) from None
        state = ModelVersionStatus(version=number, state="AVAILABLE", status={})
        return GetModelStatusResponse(model_version_status=[state])


def _files(path: Path) -> object:
    """Returns a value that changes when a file of a version does."""
    stats = [(str(file), file.lstat()) for file in sorted(path.rglob("*"))]
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
