"""A SavedModel through TensorFlow's C API, in a process without TensorFlow's Python.

It is the loader and the runtime that TF Serving is built on, and a script of its own:

    python c_api.py < request.json

takes {"path": a version's folder, "libraries": op libraries, "runs": [{"inputs": {tensor:
strings}, "outputs": {name: tensor}}]} and prints {"core_ops": a serialized OpList, "outputs":
[{name: values}]}. Values stand in the order of memory; all bytes are written as Latin-1. Nothing
is freed, for the process ends.
"""

import ctypes
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLOAT, INT32, STRING, BOOL = 1, 3, 7, 10  # tensorflow/c/tf_datatype.h
NUMBERS: dict[int, Any] = {FLOAT: ctypes.c_float, INT32: ctypes.c_int32, BOOL: ctypes.c_bool}
TSTRING_BYTES = 24  # sizeof(TF_TString)

_POINTER = ctypes.c_void_p
# Results of the functions that do not return an int, or nothing.
_RESULTS = {
    "TF_AllocateTensor": _POINTER,
    "TF_Dim": ctypes.c_int64,
    "TF_GetAllOpList": _POINTER,
    "TF_GraphOperationByName": _POINTER,
    "TF_LoadLibrary": _POINTER,
    "TF_LoadSessionFromSavedModel": _POINTER,
    "TF_Message": ctypes.c_char_p,
    "TF_NewGraph": _POINTER,
    "TF_NewSessionOptions": _POINTER,
    "TF_NewStatus": _POINTER,
    "TF_StringGetDataPointer": _POINTER,
    "TF_StringGetSize": ctypes.c_size_t,
    "TF_TensorData": _POINTER,
}


class _Output(ctypes.Structure):
    _fields_ = (("operation", _POINTER), ("index", ctypes.c_int))


class _Buffer(ctypes.Structure):
    _fields_ = (("data", _POINTER), ("length", ctypes.c_size_t), ("deallocator", _POINTER))


class CSession:
    """A session of the C API.

    Args:
        libraries: op libraries that the SavedModel needs.

    Attributes:
        core_ops: serialized OpList of the ops that need no library.

    Raises:
        RuntimeError: with the C API's message, here and in the methods.
    """

    def __init__(self, libraries: list[str]) -> None:
        spec = importlib.util.find_spec("tensorflow")
        if spec is None or spec.origin is None:
            raise RuntimeError("tensorflow is not installed")
        self._lib = ctypes.CDLL(str(Path(spec.origin).parent / "libtensorflow_cc.so.2"))
        for name, result in _RESULTS.items():
            getattr(self._lib, name).restype = result
        self._status = _POINTER(self._lib.TF_NewStatus())
        buffer = ctypes.cast(self._lib.TF_GetAllOpList(), ctypes.POINTER(_Buffer)).contents
        self.core_ops = ctypes.string_at(buffer.data, buffer.length)
        for library in libraries:
            self._lib.TF_LoadLibrary(library.encode(), self._status)
            self._check()

    def load(self, path: str) -> None:
        """Loads the SavedModel in a version's folder."""
        self._graph = _POINTER(self._lib.TF_NewGraph())
        tags = (ctypes.c_char_p * 1)(b"serve")
        self._session = _POINTER(
            self._lib.TF_LoadSessionFromSavedModel(
                _POINTER(self._lib.TF_NewSessionOptions()),
                None,
                path.encode(),
                tags,
                1,
                self._graph,
                None,
                self._status,
            )
        )
        self._check()

    def run(self, inputs: dict[str, list[bytes]], outputs: dict[str, str]) -> dict[str, list[Any]]:
        """Feeds vectors of strings by tensor name; returns the outputs' values."""
        feeds = [self._strings(values) for values in inputs.values()]
        results = (_POINTER * len(outputs))()
        self._lib.TF_SessionRun(
            self._session,
            None,
            self._endpoints(inputs),
            (_POINTER * len(feeds))(*feeds),
            len(feeds),
            self._endpoints(outputs.values()),
            results,
            len(outputs),
            None,
            0,
            None,
            self._status,
        )
        self._check()
        return {
            name: list(self._values(_POINTER(tensor)))
            for name, tensor in zip(outputs, results, strict=True)
        }

    def _check(self) -> None:
        if self._lib.TF_GetCode(self._status):
            raise RuntimeError(self._lib.TF_Message(self._status).decode())

    def _endpoints(self, names: Any) -> Any:
        endpoints = []
        for name in names:
            operation, index = name.rsplit(":", 1)
            found = self._lib.TF_GraphOperationByName(self._graph, operation.encode())
            if not found:
                raise RuntimeError(f"The graph has no operation {operation}")
            endpoints.append(_Output(found, int(index)))
        return (_Output * len(endpoints))(*endpoints)

    def _strings(self, values: list[bytes]) -> int:
        shape = (ctypes.c_int64 * 1)(len(values))
        num_bytes = ctypes.c_size_t(TSTRING_BYTES * len(values))
        tensor = self._lib.TF_AllocateTensor(STRING, shape, 1, num_bytes)
        start = self._lib.TF_TensorData(_POINTER(tensor))
        for i, value in enumerate(values):
            string = _POINTER(start + i * TSTRING_BYTES)
            self._lib.TF_StringInit(string)
            self._lib.TF_StringCopy(string, value, ctypes.c_size_t(len(value)))
        return int(tensor)

    def _values(self, tensor: Any) -> Iterator[Any]:
        dtype, size = self._lib.TF_TensorType(tensor), 1
        for dimension in range(self._lib.TF_NumDims(tensor)):
            size *= self._lib.TF_Dim(tensor, dimension)
        start = self._lib.TF_TensorData(tensor)
        if dtype != STRING:
            if size:
                yield from ctypes.cast(start, ctypes.POINTER(NUMBERS[dtype]))[:size]
            return
        for i in range(size):
            string = _POINTER(start + i * TSTRING_BYTES)
            data = self._lib.TF_StringGetDataPointer(string)
            yield ctypes.string_at(data, self._lib.TF_StringGetSize(string)).decode("latin-1")


def _main() -> None:
    request = json.load(sys.stdin)
    session = CSession(request["libraries"])
    session.load(request["path"])
    outputs = [
        session.run(
            {
                tensor: [value.encode("latin-1") for value in values]
                for tensor, values in run["inputs"].items()
            },
            run["outputs"],
        )
        for run in request["runs"]
    ]
    if "tensorflow" in sys.modules:
        raise RuntimeError("This process has imported TensorFlow's Python")
    json.dump({"core_ops": session.core_ops.decode("latin-1"), "outputs": outputs}, sys.stdout)


if __name__ == "__main__":
    _main()
