"""What a session needs of TensorFlow's C API, by ctypes: the library, strings, and numbers."""

import ctypes
import re
import sys
from ctypes import c_char_p, c_int64, c_size_t, c_void_p
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from keras_transformer.errors import InputError

TEXT_OPS = "sentencepiece_tokenizer", "fast_wordpiece_tokenizer", "regex_split_ops", "normalize_ops"
# tensorflow/c/tf_datatype.h
STRING, NUMBERS = 7, {1: np.float32, 3: np.int32, 9: np.int64, 10: np.bool_}
STRING_BYTES = 24  # the size of a TF_TString
POINTERS = [
    "TF_AllocateTensor",
    "TF_GraphOperationByName",
    "TF_LoadLibrary",
    "TF_LoadSessionFromSavedModel",
    "TF_NewBufferFromString",
    "TF_NewGraph",
    "TF_NewSessionOptions",
    "TF_NewStatus",
    "TF_StringGetDataPointer",
    "TF_TensorData",
]
INVALID_ARGUMENT, FAILED_PRECONDITION = 3, 9  # of `tf.errors`


class SessionError(InputError):
    """A request that a SavedModel refuses."""

    def __init__(self, message: str, code: int = INVALID_ARGUMENT) -> None:
        without_nodes = re.sub(r"\{\{\w+ [^}]*\}\} *", "", message)
        super().__init__(without_nodes.strip().partition("\n")[0])
        self.code = code  # as in `tf.errors` and gRPC


class Output(ctypes.Structure):
    _fields_ = (("operation", c_void_p), ("index", ctypes.c_int))


class Buffer(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p))


def _load_library(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    results = {**dict.fromkeys(POINTERS, c_void_p), "TF_NewBuffer": ctypes.POINTER(Buffer)}
    results |= {"TF_Dim": c_int64, "TF_Message": c_char_p, "TF_StringGetSize": c_size_t}
    for name, result in results.items():
        getattr(loaded, name).restype = result
    return loaded


def call(name: str, *arguments: Any) -> Any:
    """Calls a function whose last argument is a status, and raises its error."""
    status = c_void_p(library.TF_NewStatus())
    try:
        result = getattr(library, name)(*arguments, status)
        if code := library.TF_GetCode(status):
            raise SessionError(library.TF_Message(status).decode(errors="replace"), code)
        return result
    finally:
        library.TF_DeleteStatus(status)


def _import_protocol_buffers(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Imports these without TensorFlow's Python; no other thread may import that meanwhile."""
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
library = _load_library(_FOLDER / "libtensorflow_cc.so.2")
config_pb2, saved_model_pb2 = _import_protocol_buffers(_FOLDER)
for _name in TEXT_OPS:
    _file = f"tensorflow_text/python/ops/_{_name}.so"
    _path = metadata.distribution("tensorflow-text").locate_file(_file)
    call("TF_LoadLibrary", str(_path).encode())


def _string_at(tensor: c_void_p, place: int) -> c_void_p:
    return c_void_p(library.TF_TensorData(tensor) + place * STRING_BYTES)


def make_strings(values: Any) -> c_void_p:
    """Makes a tensor from an array or nested lists of strings."""
    array = np.array(values, object)
    # A lone surrogate, which UTF-8 does not have, becomes a question mark.
    strings = [
        value.encode(errors="replace") if isinstance(value, str) else value
        for value in array.ravel()
    ]
    for string in strings:
        if not isinstance(string, bytes):
            raise SessionError(f"An input must hold strings. Received: {string!r:.100}")
    sizes, num_bytes = (c_int64 * array.ndim)(*array.shape), c_size_t(STRING_BYTES * array.size)
    tensor = c_void_p(library.TF_AllocateTensor(STRING, sizes, array.ndim, num_bytes))
    for place, string in enumerate(strings):
        library.TF_StringInit(_string_at(tensor, place))
        library.TF_StringCopy(_string_at(tensor, place), string, c_size_t(len(string)))
    return tensor


def delete_strings(tensor: c_void_p) -> None:
    """Frees what `make_strings` made."""
    for place in range(library.TF_TensorElementCount(tensor)):
        library.TF_StringDealloc(_string_at(tensor, place))
    library.TF_DeleteTensor(tensor)


def take_array(tensor: c_void_p) -> np.ndarray:
    """Copies a tensor, strings as bytes in an array of objects, and frees it."""
    try:
        dtype = library.TF_TensorType(tensor)
        if dtype not in (STRING, *NUMBERS):
            raise SessionError(f"Outputs of TensorFlow's type {dtype} cannot be read")
        shape = [library.TF_Dim(tensor, axis) for axis in range(library.TF_NumDims(tensor))]
        values: np.ndarray = np.empty(shape, NUMBERS.get(dtype, object))
        if dtype in NUMBERS:
            ctypes.memmove(values.ctypes.data, library.TF_TensorData(tensor), values.nbytes)
        for place in range(values.size if dtype == STRING else 0):
            string = _string_at(tensor, place)
            data = library.TF_StringGetDataPointer(string)
            values.flat[place] = ctypes.string_at(data, library.TF_StringGetSize(string))
        return values
    finally:
        library.TF_DeleteTensor(tensor)
