"""Files of PyTorch's weights as arrays that are read one by one, without PyTorch.

A `pytorch_model.bin` holds a pickle, which may call any function. The reader allows only those that
make arrays.
"""

import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from keras_transformer.errors import InputError, one_line
from keras_transformer.files import read_failure

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
}


class Tensor(NamedTuple):
    """An array in a file, which `np.asarray` reads."""

    path: Path
    kind: str
    start: int  # of the bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in numbers

    @property
    def _span(self) -> int:
        """How many numbers there are from the first one to the last."""
        if 0 in self.shape:
            return 0
        pairs = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in pairs)

    def checked(self, end: int) -> Self:
        """Returns the tensor; `ValueError` unless it ends before a byte of the file."""
        if not all(isinstance(n, int) and n >= 0 for n in (*self.shape, *self.strides)):
            raise ValueError("a tensor has a size or a stride below 0")
        if len(self.shape) != len(self.strides):
            raise ValueError("a tensor has another number of strides than of sizes")
        width = np.dtype(_TYPES[self.kind]).itemsize
        # A tensor may repeat numbers, but is never larger than the file. Python's integers do not
        # overflow.
        if max(self.start + self._span * width, math.prod(self.shape) * width) > end:
            raise ValueError("a tensor is longer than its storage")
        if max((*self.shape, *self.strides), default=0) >= 2**59:  # in bytes, NumPy's maximum
            raise ValueError("a tensor has a size or a stride of 2^59 or more")
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the array, of float32 instead of bfloat16."""
        if 0 in self.shape:
            return np.zeros(self.shape, dtype or np.float32)
        with read_failure(self.path):
            values = np.fromfile(self.path, _TYPES[self.kind], self._span, offset=self.start)
        if len(values) < self._span:
            raise InputError(f"{self.path} is damaged: it is too short")
        if self.kind == "BF16":
            values = values.astype("<u4")
            values <<= 16
            values = values.view("<f4")
        strides = [stride * values.itemsize for stride in self.strides]
        array = np.lib.stride_tricks.as_strided(values, self.shape, strides)
        return array.astype(dtype or array.dtype, copy=False)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Finds the arrays of `model.safetensors` or `pytorch_model.bin`.

    Raises:
        InputError: unless it holds arrays.
    """
    try:
        with read_failure(path), path.open("rb") as file:
            size = path.stat().st_size
            if path.suffix == ".safetensors":
                return _read_safetensors(path, file, size)
            is_zip = file.read(2) == b"PK"
            file.seek(0)
            return _read_zip(path, file) if is_zip else _read_legacy(path, file, size)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise InputError(f"{path} is damaged: {one_line(error)}") from error


def _read_safetensors(path: Path, file: BinaryIO, size: int) -> dict[str, Tensor]:
    """Reads the format of safetensors, whose own reader for NumPy has no bfloat16."""
    start = 8 + int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(start - 8))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= size - start:
            raise ValueError("a tensor is outside the file")
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"its numbers are of an unknown type, {entry['dtype']}")
        shape = tuple(entry["shape"])
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        tensor = Tensor(path, entry["dtype"], start + begin, shape, strides)
        tensors[name] = tensor.checked(start + end)
    return tensors


class _Stored(NamedTuple):
    """What a pickle says of a tensor. Its numbers are in the storage named `key`."""

    kind: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def tensor(self, path: Path, start: int, end: int) -> Tensor:
        """Returns the tensor, for a storage that is these bytes of a file."""
        if not isinstance(self.offset, int) or self.offset < 0:
            raise ValueError("a tensor has an offset below 0")
        start += self.offset * np.dtype(_TYPES[self.kind]).itemsize
        return Tensor(path, self.kind, start, self.shape, self.strides).checked(end)


def _rebuild_tensor(
    storage: tuple[str, str], offset: int, shape: Any, strides: Any, *_: Any
) -> Any:
    return _Stored(*storage, offset, shape, strides)


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


def _read_zip(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    with zipfile.ZipFile(file) as archive:
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = pickled.removesuffix("data.pkl")
        tensors = _Unpickler(archive.open(pickled)).load()

        def place(key: str) -> tuple[int, int]:
            entry = archive.getinfo(f"{folder}data/{key}")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError("its arrays must not be compressed")
            file.seek(entry.header_offset + 26)
            lengths = int.from_bytes(file.read(2), "little"), int.from_bytes(file.read(2), "little")
            start = entry.header_offset + 30 + sum(lengths)
            return start, start + entry.file_size

        return _tensors(path, tensors, place)


def _read_legacy(path: Path, file: BinaryIO, size: int) -> dict[str, Tensor]:
    """Reads the format of PyTorch before version 1.6: pickles, then the storages one by one."""
    for _ in range(3):  # a magic number, a version, and facts of the system
        _Unpickler(file).load()
    tensors = _Unpickler(file).load()
    widths = {
        tensor.key: np.dtype(_TYPES[tensor.kind]).itemsize
        for tensor in tensors.values()
        if isinstance(tensor, _Stored)
    }
    places = {}
    for key in _Unpickler(file).load():
        count = int.from_bytes(file.read(8), "little")
        start = file.tell()
        end = start + count * widths[key]
        if end > size:
            raise ValueError("a storage is longer than the file")
        places[key] = start, end
        file.seek(end)
    return _tensors(path, tensors, places.__getitem__)


def _tensors(
    path: Path, tensors: Any, place: Callable[[str], tuple[int, int]]
) -> dict[str, Tensor]:
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise ValueError("it must hold a dictionary of arrays by name")
    return {
        name: tensor.tensor(path, *place(tensor.key))
        for name, tensor in tensors.items()
        if isinstance(tensor, _Stored)
    }
