"""A SavedModel in a session of TensorFlow's C API: the loader and the runtime of TF Serving.

It does not import TensorFlow's Python, so a command starts in half the time (docs/log.md), and
`check` runs an export without Python ops, as a server does.
"""

import copy
import ctypes
import itertools
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError, as_input_error, require
from keras_transformer.export import c_api
from keras_transformer.export.c_api import FAILED_PRECONDITION, INVALID_ARGUMENT, SessionError
from keras_transformer.export.options import DEFAULT_SIGNATURE
from keras_transformer.export.rows import Row, rows_of
from keras_transformer.files import named_failure

__all__ = ["INVALID_ARGUMENT", "SavedModelSession", "SessionError", "open_saved_model"]

SHORT_BYTES = 1_000  # a text of more is likely to be a document of several sentences
SMALL_BYTES = 2**25  # weights of a model whose matmuls are too short to be handed to a thread


class SavedModelSession:
    """Runs the signatures of a SavedModel. Threads may share it.

    Each operation takes one thread, unless `TF_NUM_INTRAOP_THREADS` is set: the graph searches many
    texts side by side on all cores. All sessions of a process have the number of the first.

    Args:
        path: the folder of a version, `MODELS/NAME/VERSION`.
        optimize: whether TensorFlow optimizes the functions of the graph before the first run of
            each signature. That takes a second or more, and later runs take less time.

    Attributes:
        signatures: the protocol buffers of the signatures, by name.

    Raises:
        InputError: if it does not hold a complete SavedModel, or `TF_NUM_INTRAOP_THREADS` is not a
            number.
    """

    def __init__(self, path: str | Path, optimize: bool = False) -> None:
        num_threads = os.environ.get("TF_NUM_INTRAOP_THREADS") or "1"
        rule = "`TF_NUM_INTRAOP_THREADS` must be a number of threads, or 0 for all cores"
        require(num_threads.isdecimal(), rule, TF_NUM_INTRAOP_THREADS=num_threads)
        self._graph, self._session = c_void_p(c_api.library.TF_NewGraph()), c_void_p()
        in_caller = c_api.config_pb2.RunOptions(inter_op_thread_pool=-1).SerializeToString()
        length = c_size_t(len(in_caller))
        self._in_caller = c_void_p(c_api.library.TF_NewBufferFromString(in_caller, length))
        self._free = weakref.finalize(self, _free, self._graph, self._session, self._in_caller)
        self._free.atexit = False
        # Rows are searched side by side, so an operation needs no threads (docs/speed.md).
        config = c_api.config_pb2.ConfigProto(intra_op_parallelism_threads=int(num_threads))
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        # The files may hold anything.
        incomplete = f"{path} does not hold a complete SavedModel"
        with as_input_error(incomplete):
            # TensorFlow's own message says less. It checks paths such as "gs://" itself.
            if Path(path).is_dir() and not Path(path, "variables", "variables.index").is_file():
                raise ValueError("variables/variables.index is missing")
            # Another program's export may have assets, which must stay beside the graph.
            keeps_folder = optimize or any(Path(path, "assets").glob("*"))
            weights = Path(path, "variables").glob("variables.data-*")
            self._is_small = sum(file.stat().st_size for file in weights) <= SMALL_BYTES
            content = b"" if keeps_folder else with_config(Path(path, "saved_model.pb"), config)
        temporary = Path(tempfile.gettempdir())
        with named_failure(temporary), tempfile.TemporaryDirectory() as folder:
            if not keeps_folder:
                Path(folder, "saved_model.pb").write_bytes(content)
                Path(folder, "variables").symlink_to(Path(path, "variables").resolve())
            with as_input_error(incomplete):
                loaded = str(path) if keeps_folder else folder
                self.signatures = self._load(loaded, config.SerializeToString())

    def _load(self, path: str, config: bytes) -> dict[str, Any]:
        options = c_void_p(c_api.library.TF_NewSessionOptions())
        buffer = c_api.library.TF_NewBuffer()
        tags = (c_char_p * 1)(b"serve")
        try:
            c_api.call("TF_SetConfig", options, config, c_size_t(len(config)))
            arguments = (options, None, path.encode(), tags, len(tags), self._graph, buffer)
            self._session.value = c_api.call("TF_LoadSessionFromSavedModel", *arguments)
            meta_graph = c_api.saved_model_pb2.SavedModel().meta_graphs.add()
            meta_graph.ParseFromString(ctypes.string_at(buffer[0].data, buffer[0].length))
        finally:
            c_api.library.TF_DeleteBuffer(buffer)
            c_api.library.TF_DeleteSessionOptions(options)
        signatures = copy.deepcopy(dict(meta_graph.signature_def))  # without the graph
        return {name: signatures[name] for name in signatures if not name.startswith("__")}

    def signature(self, name: str) -> Any:
        """Returns a signature, or raises `SessionError`."""
        if name not in self.signatures:
            message = f'Serving signature key "{name:.100}" not found.'
            raise SessionError(message, FAILED_PRECONDITION)
        return self.signatures[name]

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature by name, strings as bytes.

        Args:
            signature: its name.
            inputs: an array or nested lists of strings for each input by name, except those that
                have a default.

        Raises:
            SessionError: if there is no such signature, or it refuses the inputs.
        """
        if not self._session:
            raise SessionError("The session is closed", FAILED_PRECONDITION)
        tensors = self.signature(signature)
        if not set(tensors.inputs) - set(tensors.defaults) <= inputs.keys() <= set(tensors.inputs):
            expected, received = sorted(tensors.inputs), sorted(inputs)
            raise SessionError(f"{signature} must have the inputs {expected}. Received: {received}")
        given = {name: tensor for name, tensor in tensors.inputs.items() if name in inputs}
        feeds: list[c_void_p] = []
        results = (c_void_p * len(tensors.outputs))()
        try:
            feeds.extend(c_api.make_strings(inputs[name]) for name in given)
            fed = self._places(given), (c_void_p * len(feeds))(*feeds), len(feeds)
            fetched = self._places(tensors.outputs), results, len(results)
            # A short text of a small model is fastest in this thread.
            options = self._in_caller if self._is_small and _is_short(inputs) else None
            c_api.call("TF_SessionRun", self._session, options, *fed, *fetched, None, 0, None)
            arrays = [c_api.take_array(c_void_p(result)) for result in results]
            return dict(sorted(zip(tensors.outputs, arrays, strict=True)))
        finally:  # no earlier: an output may be an input
            for feed in feeds:
                c_api.delete_strings(feed)

    def _places(self, tensors: Mapping[str, Any]) -> Any:
        places = (c_api.Output * len(tensors))()
        for place, tensor in zip(places, tensors.values(), strict=True):
            name, _, index = tensor.name.rpartition(":")
            place.operation = c_api.library.TF_GraphOperationByName(self._graph, name.encode())
            place.index = int(index)
            if place.operation is None:
                raise SessionError(f"The graph has no operation {name}")
        return places

    def translate(
        self, texts: Sequence[str | bytes], signature: str = DEFAULT_SIGNATURE, **others: str
    ) -> list[Row]:
        """Returns the outputs for each text by name, with strings decoded.

        Args:
            texts: any number up to the graph's limit; bytes are UTF-8.
            signature: one with the input `text`.
            others: its other inputs, the same for all texts.
        """
        same = {name: [value] * len(texts) for name, value in others.items()}
        return rows_of(self.run(signature, {"text": texts, **same}))

    def close(self) -> None:
        """Frees the weights. No run may be in progress."""
        self._free()


def _free(graph: c_void_p, session: c_void_p, options: c_void_p) -> None:
    if session:
        c_api.call("TF_DeleteSession", session)
    c_api.library.TF_DeleteGraph(graph)
    c_api.library.TF_DeleteBuffer(options)
    session.value = None


def _is_short(inputs: Mapping[str, Any]) -> bool:
    """Returns whether there is one text, and little of it."""
    texts = [text for column in inputs.values() for text in np.array(column, object).ravel()]
    return len(texts) <= len(inputs) and sum(map(len, texts)) <= SHORT_BYTES


def with_config(file: Path, config: Any) -> bytes:
    """Returns a SavedModel's graph whose functions are called with `config`, not the session's."""
    saved_model = c_api.saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        graph = meta_graph.graph_def
        for node in itertools.chain(graph.node, *(f.node_def for f in graph.library.function)):
            if "config_proto" in node.attr:
                node.attr["config_proto"].s = config.SerializeToString()
    return bytes(saved_model.SerializeToString())


def open_saved_model(
    path: str, signature: str, optimize: bool = False, output: str = "translation", **others: str
) -> Callable[[Sequence[str | bytes]], list[Row]]:
    """Loads a version; returns a function from texts to rows, by a signature that has `output`."""
    session = SavedModelSession(path, optimize)
    suitable = [
        name
        for name, tensors in session.signatures.items()
        if tensors.inputs.keys() == {"text", *others} and output in tensors.outputs
    ]
    if signature not in suitable:
        raise InputError(
            f"{path} has no signature {signature} that translates. There are: "
            f"{', '.join(sorted(suitable)) or 'none'}"
        )
    return lambda texts: session.translate(texts, signature, **others)
