"""Files of PyTorch's weights as NumPy arrays, read without PyTorch.

A `pytorch_model.bin` holds a pickle, which may call any function. The reader allows only those that
make arrays.
"""

import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, one_line
from keras_transformer.trainers.models.files import read_bytes

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads `model.safetensors` or `pytorch_model.bin`; `InputError` unless it holds arrays."""
    content = read_bytes(path)
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(content)
        return _read_zip(content) if content.startswith(b"PK") else _read_legacy(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise InputError(f"{path} is damaged: {one_line(error)}") from error


def _array(content: bytes, kind: str) -> np.ndarray:
    """Returns the numbers of a file, float32 instead of bfloat16."""
    if kind not in _TYPES:
        raise ValueError(f"its numbers are of an unknown type, {kind}")
    values = np.frombuffer(content, _TYPES[kind])
    return (values.astype("<u4") << 16).view("<f4") if kind == "BF16" else values


def _read_safetensors(content: bytes) -> dict[str, np.ndarray]:
    """Reads the format of safetensors, whose own reader for NumPy has no bfloat16."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(content) - start:
            raise ValueError("a tensor is outside the file")
        values = _array(content[start + begin : start + end], entry["dtype"])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


class _Tensor(NamedTuple):
    """What a pickle says of a tensor. Its numbers are in the storage named `key`."""

    kind: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self, content: bytes) -> np.ndarray:
        values = _array(content, self.kind)
        if not all(
            isinstance(n, int) and n >= 0 for n in (*self.shape, *self.strides, self.offset)
        ):
            raise ValueError("a tensor has a size, a stride or an offset below 0")
        count = math.prod(self.shape)  # of Python's integers, which do not overflow
        pairs = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((size - 1) * stride for size, stride in pairs)
        if count > len(values) or (count and last >= len(values)):
            raise ValueError("a tensor is longer than its storage")
        strides = [stride * values.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(values[self.offset :], self.shape, strides).copy()


def _rebuild_tensor(
    storage: tuple[str, str], offset: int, shape: Any, strides: Any, *_: Any
) -> Any:
    return _Tensor(*storage, offset, shape, strides)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    **{("torch", name): kind for name, kind in _STORAGES.items()},
}


class _Unpickler(pickle._Unpickler):  # C's takes memory for any index that a pickle names
    """Reads the pickle of a state dictionary; it calls no function but those of `_ALLOWED`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise InputError(f"it must hold arrays only. Received: {module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        _, kind, key, *_ = pid
        return kind, key


def _read_zip(content: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = pickled.removesuffix("data.pkl")
        tensors = _Unpickler(archive.open(pickled)).load()
        return _arrays(tensors, lambda key: archive.read(f"{folder}data/{key}"))


def _read_legacy(content: bytes) -> dict[str, np.ndarray]:
    """Reads the format of PyTorch before version 1.6: pickles, then the storages one by one."""
    file = BytesIO(content)
    for _ in range(3):  # a magic number, a version, and facts of the system
        _Unpickler(file).load()
    tensors = _Unpickler(file).load()
    sizes = {
        tensor.key: np.dtype(_TYPES[tensor.kind]).itemsize
        for tensor in tensors.values()
        if isinstance(tensor, _Tensor)
    }
    storages = {}
    for key in _Unpickler(file).load():
        count = int.from_bytes(file.read(8), "little")
        storages[key] = file.read(count * sizes[key])
    return _arrays(tensors, storages.__getitem__)


def _arrays(tensors: Any, storage_of: Callable[[str], bytes]) -> dict[str, np.ndarray]:
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise ValueError("it must hold a dictionary of arrays by name")
    return {
        name: tensor.array(storage_of(tensor.key))
        for name, tensor in tensors.items()
        if isinstance(tensor, _Tensor)
    }
