"""A SavedModel in a session of TensorFlow's C API: the loader and the runtime of TF Serving.

It loads the libraries of TensorFlow and TF.Text, and does not import the packages, which takes
seconds. As a script, it does not need this package either:

    python session.py MODELS/NAME/1 < requests.jsonl

It reads one request from each line, {"signature_name": "serving_default", "inputs": {"text":
["Two dogs."]}}, and prints the outputs of each request on one line, {"translation": [...], ...}.
"""

import copy
import ctypes
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from tensorflow.core.protobuf.config_pb2 import ConfigProto
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

MAX_MESSAGE = 1024  # characters of an error message, as in TF Serving
TEXT_OPS = (
    "sentencepiece_tokenizer",
    "fast_wordpiece_tokenizer",
    "regex_split_ops",
    "normalize_ops",
)
# Codes of errors, which are those of gRPC.
INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 5, 8
FAILED_PRECONDITION, UNIMPLEMENTED, UNAVAILABLE = 9, 12, 14
# tensorflow/c/tf_datatype.h
DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 4: np.uint8, 9: np.int64, 10: np.bool_}
STRING, STRING_BYTES = 7, 24  # the size of a TF_TString
# What the functions of the C API return, unless it is an int or nothing.
RESULTS = {
    "TF_AllocateTensor": c_void_p,
    "TF_Dim": c_int64,
    "TF_GraphOperationByName": c_void_p,
    "TF_LoadLibrary": c_void_p,
    "TF_LoadSessionFromSavedModel": c_void_p,
    "TF_Message": c_char_p,
    "TF_NewBufferFromString": c_void_p,
    "TF_NewGraph": c_void_p,
    "TF_NewSessionOptions": c_void_p,
    "TF_NewStatus": c_void_p,
    "TF_StringGetDataPointer": c_void_p,
    "TF_StringGetSize": c_size_t,
    "TF_TensorData": c_void_p,
}


class SessionError(Exception):
    """An error of TensorFlow.

    Attributes:
        code: its number, which is that of gRPC.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class _Output(ctypes.Structure):
    _fields_ = (("operation", c_void_p), ("index", c_int))


class _Buffer(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p))


class _Status:
    """The status of a call. At the end of the context, a failure is raised as `SessionError`."""

    def __enter__(self) -> c_void_p:
        self._status = c_void_p(_C.TF_NewStatus())
        return self._status

    def __exit__(self, *_: object) -> None:
        code = _C.TF_GetCode(self._status)
        message = _C.TF_Message(self._status).decode(errors="replace")
        _C.TF_DeleteStatus(self._status)
        if code:
            raise SessionError(code, message)


def _load_library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, result in RESULTS.items():
        getattr(library, name).restype = result
    library.TF_NewBuffer.restype = ctypes.POINTER(_Buffer)
    return library


def _import_protocol_buffers(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Imports protocol buffers of TensorFlow, and not TensorFlow, unless it is imported already.

    No other thread may import TensorFlow meanwhile.
    """
    is_imported = "tensorflow" in sys.modules
    if not is_imported:
        package = sys.modules["tensorflow"] = ModuleType("tensorflow")
        package.__path__ = [str(folder)]
    try:
        from tensorflow.core.protobuf import config_pb2, saved_model_pb2
    finally:
        if not is_imported:  # so that a later import finds the real package
            for name in [name for name in sys.modules if name.split(".")[0] == "tensorflow"]:
                del sys.modules[name]
    return config_pb2, saved_model_pb2


_FOLDER = Path(str(metadata.distribution("tensorflow").locate_file("tensorflow")))
_C = _load_library(_FOLDER / "libtensorflow_cc.so.2")
config_pb2, saved_model_pb2 = _import_protocol_buffers(_FOLDER)
for _name in TEXT_OPS:
    _path = metadata.distribution("tensorflow-text").locate_file(
        f"tensorflow_text/python/ops/_{_name}.so"
    )
    with _Status() as _status:
        _C.TF_LoadLibrary(str(_path).encode(), _status)


class SavedModelSession:
    """Runs the signatures of a SavedModel. Threads may share it.

    Args:
        path: the folder of a version, `MODELS/NAME/VERSION`.
        optimize: whether TensorFlow optimizes the functions of the graph before the first run of
            each signature. That takes a second or more, and later runs take less time. TF Serving
            also optimizes the graph around them, which takes as long and saves nothing.

    Attributes:
        signatures: the protocol buffers of the signatures, by name.

    Raises:
        ValueError: if it does not hold a complete SavedModel.
    """

    signatures: "dict[str, SignatureDef]"

    def __init__(self, path: str | Path, optimize: bool = False) -> None:
        config = config_pb2.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        self._session = c_void_p()
        self._graph = c_void_p(_C.TF_NewGraph())
        # In the caller's thread: other threads cost a small model 10 % of the time.
        run_options = config_pb2.RunOptions(inter_op_thread_pool=-1).SerializeToString()
        self._run_options = c_void_p(
            _C.TF_NewBufferFromString(run_options, c_size_t(len(run_options)))
        )
        try:
            with tempfile.TemporaryDirectory() as folder:
                loaded = str(path) if optimize else _unoptimized(Path(path), folder, config)
                signatures = self._load(loaded, config.SerializeToString())
        except (OSError, ValueError, DecodeError, SessionError) as error:
            self.close()
            raise ValueError(f"{path} does not hold a complete SavedModel: {error}") from error
        self.signatures = {
            name: copy.deepcopy(signature)  # without the graph that it is a part of
            for name, signature in signatures.items()
            if not name.startswith("__")  # TensorFlow's own
        }

    def _load(self, path: str, config: bytes) -> "Mapping[str, SignatureDef]":
        """Loads the SavedModel, which may be on a file system of TensorFlow, such as "gs://"."""
        if Path(path).is_dir() and not Path(path, "variables", "variables.index").is_file():
            raise ValueError("variables/variables.index is missing")  # TensorFlow does not say
        options = c_void_p(_C.TF_NewSessionOptions())
        buffer = _C.TF_NewBuffer()
        tags = (c_char_p * 1)(b"serve")
        try:
            with _Status() as status:
                _C.TF_SetConfig(options, config, c_size_t(len(config)), status)
            with _Status() as status:
                self._session.value = _C.TF_LoadSessionFromSavedModel(
                    options, None, path.encode(), tags, 1, self._graph, buffer, status
                )
            meta_graph = saved_model_pb2.SavedModel().meta_graphs.add()
            meta_graph.ParseFromString(ctypes.string_at(buffer[0].data, buffer[0].length))
        finally:
            _C.TF_DeleteBuffer(buffer)
            _C.TF_DeleteSessionOptions(options)
        signatures: Mapping[str, SignatureDef] = meta_graph.signature_def
        return signatures

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the outputs of a signature by name.

        Args:
            signature: its name.
            inputs: all its inputs by name; strings as bytes.

        Raises:
            KeyError: if there is no such signature, or if an input is missing.
            TypeError: if an input holds other values than strings.
            ValueError: if the session is closed.
            SessionError: if the graph refuses the inputs.
        """
        if not self._session:
            raise ValueError("The session is closed")
        tensors = self.signatures[signature]
        arrays = [_bytes(inputs[name]) for name in tensors.inputs]
        feeds = [_tensor(array) for array in arrays]
        results = (c_void_p * len(tensors.outputs))()
        try:
            with _Status() as status:
                _C.TF_SessionRun(
                    self._session,
                    self._run_options,
                    self._endpoints(info.name for info in tensors.inputs.values()),
                    (c_void_p * len(feeds))(*feeds),
                    len(feeds),
                    self._endpoints(info.name for info in tensors.outputs.values()),
                    results,
                    len(results),
                    None,
                    0,
                    None,
                    status,
                )
            return {
                name: _array(c_void_p(result))
                for name, result in zip(tensors.outputs, results, strict=True)
            }
        finally:
            for feed, array in zip(feeds, arrays, strict=True):
                for place in range(array.size):
                    _C.TF_StringDealloc(_string_at(feed, place))
            for tensor in (*feeds, *map(c_void_p, filter(None, results))):
                _C.TF_DeleteTensor(tensor)

    def _endpoints(self, names: Iterable[str]) -> Any:
        """Returns the places "operation:index" as an array."""
        outputs = []
        for name in names:
            operation, index = name.rsplit(":", 1)
            found = _C.TF_GraphOperationByName(self._graph, operation.encode())
            if found is None:
                raise SessionError(NOT_FOUND, f"The graph has no operation {operation}")
            outputs.append(_Output(found, int(index)))
        return (_Output * len(outputs))(*outputs)

    def translate(
        self, texts: Sequence[str | bytes], signature: str = "serving_default"
    ) -> list[dict[str, Any]]:
        """Returns the outputs for each text by name, with strings decoded.

        Args:
            texts: any number up to the graph's limit; bytes are UTF-8.
            signature: one whose only input is `text`.
        """
        encoded = [
            text if isinstance(text, bytes) else text.encode(errors="replace") for text in texts
        ]
        return rows_of(self.run(signature, {"text": encoded}))

    def close(self) -> None:
        """Frees the weights. No run may be in progress."""
        if self._session:
            with _Status() as status:
                _C.TF_DeleteSession(self._session, status)
        if self._graph:
            _C.TF_DeleteGraph(self._graph)
            _C.TF_DeleteBuffer(self._run_options)
        self._session.value = self._graph.value = None

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of Python, what `close` uses may be gone, and the weights go anyway.
        if not is_exiting() and hasattr(self, "_run_options"):
            self.close()


def _bytes(values: Any) -> np.ndarray:
    """Returns strings as an array of bytes; str becomes UTF-8."""
    array = np.array(values, object)
    for place, value in enumerate(array.flat):
        if isinstance(value, str):
            array.flat[place] = value.encode()
        elif not isinstance(value, bytes):
            raise TypeError(f"An input must hold strings. Received: {value!r:.100}")
    return array


def _string_at(tensor: c_void_p, place: int) -> c_void_p:
    return c_void_p(_C.TF_TensorData(tensor) + place * STRING_BYTES)


def _tensor(array: np.ndarray) -> c_void_p:
    """Makes a tensor of bytes."""
    sizes = (c_int64 * array.ndim)(*array.shape)
    num_bytes = c_size_t(STRING_BYTES * array.size)
    tensor = c_void_p(_C.TF_AllocateTensor(STRING, sizes, array.ndim, num_bytes))
    for place, value in enumerate(array.ravel()):
        string = _string_at(tensor, place)
        _C.TF_StringInit(string)
        _C.TF_StringCopy(string, value, c_size_t(len(value)))
    return tensor


def _array(tensor: c_void_p) -> np.ndarray:
    """Copies a tensor: strings as bytes in an array of objects."""
    shape = [_C.TF_Dim(tensor, axis) for axis in range(_C.TF_NumDims(tensor))]
    dtype = _C.TF_TensorType(tensor)
    if dtype in DTYPES:
        numbers: np.ndarray = np.empty(shape, DTYPES[dtype])
        ctypes.memmove(numbers.ctypes.data, _C.TF_TensorData(tensor), numbers.nbytes)
        return numbers
    if dtype != STRING:
        raise SessionError(UNIMPLEMENTED, f"Outputs of TensorFlow's type {dtype} cannot be read")
    values = np.empty(shape, object)
    for place in range(values.size):
        string = _string_at(tensor, place)
        data = _C.TF_StringGetDataPointer(string)
        values.flat[place] = ctypes.string_at(data, _C.TF_StringGetSize(string))
    return values


def message_of(error: BaseException) -> str:
    """Returns the line of an error that says what happened, without the names of nodes."""
    message = re.sub(r"\{\{\w+ [^}]*\}\} *", "", str(error)).strip()
    return message.partition("\n")[0][:MAX_MESSAGE]


def _unoptimized(path: Path, folder: str, config: "ConfigProto") -> str:
    """Fills a folder with a SavedModel whose functions are called with `config`, and returns it.

    A function is called with the config of its export, and not with that of the session.
    """
    for file in path.iterdir():
        Path(folder, file.name).symlink_to(file.resolve())
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for graph in (each.graph_def for each in saved_model.meta_graphs):
        nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
        for node in nodes:
            if "config_proto" in node.attr:
                node.attr["config_proto"].s = config.SerializeToString()
    Path(folder, "saved_model.pb").unlink()
    Path(folder, "saved_model.pb").write_bytes(saved_model.SerializeToString())
    return folder


def columns_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns arrays as nested lists of numbers and strings."""
    return {name: _decoded(array.tolist()) for name, array in arrays.items()}


def rows_of(arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Turns arrays with a leading dimension of B into B rows of numbers and strings."""
    columns = columns_of(arrays)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _main() -> None:
    session = SavedModelSession(sys.argv[1], optimize=True)
    for line in sys.stdin:
        request = json.loads(line)
        outputs = session.run(request["signature_name"], request["inputs"])
        sys.stdout.write(json.dumps(columns_of(outputs)) + "\n")


if __name__ == "__main__":
    _main()
