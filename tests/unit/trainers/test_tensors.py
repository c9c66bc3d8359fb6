"""Files of PyTorch's weights: what is made here byte by byte, and pickles that ask for more."""

import json
import pickle
import zipfile

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.trainers.tensors import read_tensors

A = np.arange(6, dtype="<f4").reshape(2, 3)


class Torch:
    """Pickles as an object of PyTorch."""

    def __init__(self, module, name, *arguments):
        self.call = module, name, arguments


class Pickler(pickle._Pickler):
    """Writes `Torch` objects by their names, and storages as persistent ids."""

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Torch):
            module, name, arguments = value.call
            self.write(f"c{module}\n{name}\n".encode())
            if arguments:
                self.save(arguments[0])
                self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)

    def persistent_id(self, value):
        return value[1:] if isinstance(value, tuple) and value[:1] == ("PERSISTENT",) else None


def write_bin(path, value, storages):
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("model/data.pkl", "w") as file:
            Pickler(file, 2).dump(value)
        for key, content in storages.items():
            archive.writestr(f"model/data/{key}", content)
    return path


def tensor(kind, key, offset, shape, strides):
    storage = ("PERSISTENT", "storage", Torch("torch", kind), key, "cpu", 6)
    arguments = (storage, offset, shape, strides, False, {})
    return Torch("torch._utils", "_rebuild_tensor_v2", arguments)


def test_safetensors(tmp_path):
    b = np.array([1.5, -2.25], "<f4")
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [24, 28]},
    }
    text = json.dumps(header).encode()
    bfloat16 = b.view("<u4") >> 16
    content = (
        len(text).to_bytes(8, "little") + text + A.tobytes() + bfloat16.astype("<u2").tobytes()
    )
    (tmp_path / "x.safetensors").write_bytes(content)
    found = read_tensors(tmp_path / "x.safetensors")
    assert found["a"].tolist() == A.tolist()
    assert found["b"].tolist() == [1.5, -2.25]


def test_parts_of_a_storage(tmp_path):
    value = {
        "transposed": tensor("FloatStorage", "0", 0, (3, 2), (1, 3)),
        "tail": tensor("FloatStorage", "0", 2, (4,), (1,)),
        "count": 7,
    }
    found = read_tensors(write_bin(tmp_path / "x.bin", value, {"0": A.tobytes()}))
    assert list(found) == ["transposed", "tail"]
    assert found["transposed"].tolist() == A.T.tolist()
    assert found["tail"].tolist() == [2, 3, 4, 5]


def test_a_tensor_stays_in_its_storage(tmp_path):
    value = {"a": tensor("FloatStorage", "0", 3, (2, 2), (1, 3))}
    with pytest.raises(InputError, match="damaged: a tensor is longer than its storage"):
        read_tensors(write_bin(tmp_path / "x.bin", value, {"0": A.tobytes()}))


@pytest.mark.parametrize(
    ("module", "name"), [("os", "system"), ("builtins", "eval"), ("torch", "load")]
)
def test_no_other_function_is_called(module, name, tmp_path):
    path = write_bin(tmp_path / "x.bin", {"a": Torch(module, name, ("echo",))}, {})
    with pytest.raises(
        InputError, match=f"x.bin: it must hold arrays only. Received: {module}.{name}"
    ):
        read_tensors(path)
