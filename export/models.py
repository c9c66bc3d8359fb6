"""The versions of a model on disk: the newest is loaded, warmed up and served.

A folder is polled as TF Serving polls it. Two things are kinder: a version's folder that does not
hold a `saved_model.pb` yet is not touched, and a model whose versions are all gone goes on being
served.
"""

import contextlib
import ctypes
import functools
import gc
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from keras_transformer.export.assets import read_warmup
from keras_transformer.export.batching import Batcher
from keras_transformer.export.protocol import (
    Limits,
    ServingError,
    check_inputs,
    first_line,
    inputs_of,
    invalid,
)
from keras_transformer.export.rows import DEFAULT_SIGNATURE
from keras_transformer.export.session import SavedModelSession, Signature
from keras_transformer.export.versions import version_paths

KEPT_STATES = 20  # versions that the status tells of

_logger = logging.getLogger(__name__)


class VersionStatus(NamedTuple):
    """Where a version is in its life.

    Attributes:
        version: its number.
        state: LOADING, AVAILABLE, UNLOADING or END.
        code: a canonical status code; not OK only for a version that could not be loaded.
        message: why it could not.
    """

    version: int
    state: str
    code: int = tf.errors.OK
    message: str = ""


class LoadedVersion:
    """A version in memory.

    Args:
        path: `MODELS/NAME/VERSION`.
        limits: of requests and batches.

    Attributes:
        number: the version.
        identity: of its graph's file, which another export under the same number has not.
        signatures: by name.
        signature_defs: the same as protocol buffers, those for TensorFlow's own use included.
        users: requests that hold it; whoever changes it holds the lock of the model.

    Raises:
        ValueError: if it cannot be loaded.
        ServingError: if a warm-up request fails.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.number = int(path.name)
        self.identity = _identity(path)  # before it is read: what changes meanwhile is read again
        self.users = 0
        self._limits = limits
        self._session = SavedModelSession(path)
        try:
            self.signatures = self._session.signatures
            self.signature_defs = _signature_defs(path)
            self._warm_up(path)
        except BaseException:
            self._session.close()
            raise
        run = functools.partial(self._run, timeout=limits.run_timeout)
        self._batcher = Batcher(run, self.signatures, limits)

    def signature(self, name: str) -> Signature | None:
        """Returns a signature, the default one for an empty name, or None."""
        return self.signatures.get(name or DEFAULT_SIGNATURE)

    def submit(
        self, signature: str, inputs: Mapping[str, np.ndarray]
    ) -> Future[dict[str, np.ndarray]]:
        """Queues a request for a signature that exists.

        Args:
            signature: its name, or empty.
            inputs: by name.

        Returns:
            What will hold the outputs by name.

        Raises:
            ServingError: if the inputs do not fit, or too many requests wait.
        """
        name = signature or DEFAULT_SIGNATURE
        check_inputs(self.signatures[name], inputs, self._limits.max_rows)
        return self._batcher.submit(name, inputs)

    def close(self) -> None:
        """Answers what waits, and frees the memory."""
        self._batcher.close()
        self._session.close()
        del self._batcher, self._session  # the graph, which weighs as much as a small model

    def _run(
        self, signature: str, inputs: Mapping[str, np.ndarray], timeout: float | None
    ) -> dict[str, np.ndarray]:
        try:
            return self._session.run(signature, inputs, timeout)
        except (ValueError, TypeError) as error:  # a value that the graph does not take
            raise invalid(first_line(str(error))) from error

    def _warm_up(self, path: Path) -> None:
        """Answers the requests that were exported with the model, so that no user waits for it."""
        for number, request in enumerate(read_warmup(path), start=1):
            name = request.model_spec.signature_name
            signature = self.signature(name)
            if signature is None:
                raise invalid(f"Warm-up request {number} asks for a signature {name!r}")
            inputs = inputs_of(request, signature)
            check_inputs(signature, inputs)
            # The first runs are the slowest, and nobody waits for them.
            self._run(name or DEFAULT_SIGNATURE, inputs, timeout=None)


class ServedModel:
    """The newest version in a folder, whichever that is.

    A new version is loaded and warmed up while the old one still answers; requests that the old
    one has accepted are answered by it, and only then it is unloaded. A version that fails to load
    leaves the old one in place, and is tried again when its files change.

    Args:
        folder: `MODELS/NAME`.
        limits: of requests and batches.

    Attributes:
        name: the folder's.
    """

    def __init__(self, folder: str | Path, limits: Limits | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))  # a link's own name is the model's
        self.name = self.folder.name
        self.limits = limits or Limits()
        self._loaded: LoadedVersion | None = None
        self._states: dict[int, VersionStatus] = {}
        self._failed: dict[int, object] = {}  # files of versions that could not be loaded
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Loads the newest version, if that is not the one that is served.

        One that was exported again, under the same number, is another.
        """
        path = next(iter(version_paths(self.folder)), None)
        if path is None:
            return
        number = int(path.name)
        again = self._loaded is not None and self._loaded.number == number
        if self._loaded is not None and again and self._loaded.identity == _identity(path):
            return
        files = _fingerprint(path)
        if number in self._failed and self._failed[number] == files:
            return
        if not again:  # the number is available all the time
            self._set(VersionStatus(number, "LOADING"))
        try:
            loaded = LoadedVersion(path, self.limits)
        except Exception as error:
            code, message = _reason(error)
            _logger.warning("Version %d of %s cannot be loaded: %s", number, self.name, message)
            self._failed[number] = files
            if not again:
                self._set(VersionStatus(number, "END", code, message))
            return
        with self._changed:
            old, self._loaded = self._loaded, loaded
            self._set(VersionStatus(number, "AVAILABLE"))
        _logger.info("Version %d of %s is available", number, self.name)
        if old is not None:
            self._unload(old)

    def watch(self, seconds: float) -> None:
        """Starts a thread that polls, until `close`."""

        def work() -> None:
            told = ""
            while not self._stop.wait(seconds):
                try:
                    self.poll()
                    told = ""
                except OSError as error:  # a folder that cannot be read now may be at the next poll
                    if told != str(error):
                        told = str(error)
                        _logger.warning("%s cannot be read: %s", self.folder, told)
                except Exception:
                    _logger.exception("Polling %s failed", self.folder)

        self._thread = threading.Thread(target=work, name="versions", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def use(self, version: int | None = None, name: str | None = None) -> Iterator[LoadedVersion]:
        """Lends a version, which is not unloaded meanwhile.

        Args:
            version: its number; None for the one that is served.
            name: of the model that is asked for; None for this one.

        Raises:
            ServingError: NOT_FOUND, if it is not loaded, or the name is another.
        """
        name = self.name if name is None else name
        with self._changed:
            loaded = self._loaded
            if name != self.name or loaded is None or version not in (None, loaded.number):
                which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
                raise ServingError(tf.errors.NOT_FOUND, f"Servable not found for request: {which}")
            loaded.users += 1
        try:
            yield loaded
        finally:
            with self._changed:
                loaded.users -= 1
                self._changed.notify_all()

    def states(self, version: int | None = None, name: str | None = None) -> list[VersionStatus]:
        """Returns the states of a version, or of all, the newest first.

        Args:
            version: its number; None for all.
            name: of the model that is asked for; None for this one.

        Raises:
            ServingError: NOT_FOUND, if there is no such version, or the name is another.
        """
        name = self.name if name is None else name
        with self._changed:
            states = sorted(self._states.values(), reverse=True) if name == self.name else []
        if version is not None:
            states = [state for state in states if state.version == version]
        if not states:
            what = "any versions" if version is None else f"version {version}"
            raise ServingError(tf.errors.NOT_FOUND, f"Could not find {what} of model {name}")
        return states

    def close(self) -> None:
        """Stops polling, answers what was accepted, and unloads."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._changed:
            old, self._loaded = self._loaded, None
        if old is not None:
            self._unload(old)

    def _unload(self, old: LoadedVersion) -> None:
        replaced = self._loaded is not None and self._loaded.number == old.number
        if not replaced:
            self._set(VersionStatus(old.number, "UNLOADING"))
        with self._changed:
            self._changed.wait_for(lambda: old.users == 0)
        old.close()
        gc.collect()  # graphs hold themselves in cycles
        with contextlib.suppress(OSError, AttributeError):  # glibc's, and no other library's
            ctypes.CDLL(None).malloc_trim(0)  # which keeps what is freed for itself otherwise
        if not replaced:
            self._set(VersionStatus(old.number, "END"))
        _logger.info("Version %d of %s is unloaded", old.number, self.name)

    def _set(self, status: VersionStatus) -> None:
        with self._changed:
            self._states.pop(status.version, None)  # the latest change comes last
            self._states[status.version] = status
            for version in list(self._states)[:-KEPT_STATES]:
                if self._states[version].state == "END":
                    del self._states[version]


def _identity(path: Path) -> object:
    stat = (path / "saved_model.pb").stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _fingerprint(path: Path) -> object:
    """Something that changes when files of a folder do."""
    files = [(str(file), file.lstat()) for file in sorted(path.rglob("*"))]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]


def _signature_defs(path: Path) -> dict[str, meta_graph_pb2.SignatureDef]:
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta_graph,) = [
        graph for graph in saved_model.meta_graphs if "serve" in graph.meta_info_def.tags
    ]
    defs = {}
    for name, signature in meta_graph.signature_def.items():
        # A copy, for the original keeps the whole graph in memory.
        defs[name] = meta_graph_pb2.SignatureDef()
        defs[name].CopyFrom(signature)
    return defs


def _reason(error: Exception) -> tuple[int, str]:
    """Returns the status code and the message of a failed load; the cause knows more."""
    if not isinstance(error, ValueError):
        reason = ServingError.of(error)
        return reason.code, str(reason)
    cause = error.__cause__
    if not isinstance(cause, tf.errors.OpError):
        return tf.errors.INVALID_ARGUMENT, str(error)
    reason = ServingError.of(cause)
    return reason.code, f"{error}: {reason}"
