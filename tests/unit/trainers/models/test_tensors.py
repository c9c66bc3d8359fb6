"""Files of PyTorch's weights: what is made here byte by byte, and pickles that ask for more."""

import contextlib
import io
import itertools
import json
import math
import operator
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.trainers.models.tensors import read_tensors

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


def pickled(value):
    file = io.BytesIO()
    Pickler(file, 2).dump(value)
    return file.getvalue()


def write_zip(path, pickle_, storages):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle_)
        for key, content in storages.items():
            archive.writestr(f"model/data/{key}", content)
    return path


def write_bin(path, value, storages):
    return write_zip(path, pickled(value), storages)


def legacy(value, storages):
    """The bytes of PyTorch's form before version 1.6."""
    pickles = [pickled(each) for each in (7, 1001, {}, value, list(storages))]
    contents = [struct.pack("<q", len(each) // 4) + each for each in storages.values()]
    return b"".join([*pickles, *contents])


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
    assert np.asarray(found["a"]).tolist() == A.tolist()
    assert np.asarray(found["b"]).tolist() == [1.5, -2.25]


def test_parts_of_a_storage(tmp_path):
    value = {
        "transposed": tensor("FloatStorage", "0", 0, (3, 2), (1, 3)),
        "tail": tensor("FloatStorage", "0", 2, (4,), (1,)),
        "count": 7,
    }
    found = read_tensors(write_bin(tmp_path / "x.bin", value, {"0": A.tobytes()}))
    assert list(found) == ["transposed", "tail"]
    assert np.asarray(found["transposed"]).tolist() == A.T.tolist()
    assert np.asarray(found["tail"]).tolist() == [2, 3, 4, 5]


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


def edit_header(**changes):
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes
    text = json.dumps({"a": entry}).encode()
    return len(text).to_bytes(8, "little") + text + A.tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "U8"}, "its numbers are of an unknown type, U8"),
        ({"data_offsets": [-24, 0]}, "a tensor is outside the file"),
        ({"data_offsets": [8, 32]}, "a tensor is outside the file"),
    ],
)
def test_damaged_safetensors(changes, message, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(edit_header(**changes))
    with pytest.raises(InputError, match=f"x.safetensors is damaged: {message}"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("value", [[A.tolist()], {3: tensor("FloatStorage", "0", 0, (6,), (1,))}])
def test_arrays_have_names(value, tmp_path):
    with pytest.raises(InputError, match="damaged: it must hold a dictionary of arrays by name"):
        read_tensors(write_bin(tmp_path / "x.bin", value, {"0": A.tobytes()}))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("tensors") / "x.bin"


far = st.sampled_from([10**9, -(10**9), 2**61, 2**62, -(2**62), 2**63, 2**64, 2**70, None, 1.0])
numbers = st.lists(st.integers(-2, 4) | far, max_size=3)


@settings(max_examples=200, deadline=None)
@given(offset=st.integers(-3, 6) | far, shape=numbers, strides=numbers, is_zip=st.booleans())
@example(offset=0, shape=[2], strides=[-(10**9)], is_zip=True)
@example(offset=3, shape=[2], strides=[-8], is_zip=True)
@example(offset=-2, shape=[2], strides=[1], is_zip=True)
@example(offset=0, shape=[2, 3], strides=[2**61, 2**62], is_zip=True)  # 2^63 in 64 bits: -2^63
@example(offset=0, shape=[10**9], strides=[0], is_zip=True)
@example(offset=10**9, shape=[0], strides=[0], is_zip=False)
@example(offset=3, shape=[4], strides=[0], is_zip=False)
def test_any_tensor_is_read_by_the_book_or_refused(path, offset, shape, strides, is_zip):
    value = {"a": tensor("FloatStorage", "0", offset, tuple(shape), tuple(strides))}
    storage = A.ravel().tolist()
    if is_zip:
        write_bin(path, value, {"0": A.tobytes()})
    else:
        path.write_bytes(legacy(value, {"0": A.tobytes()}))
    expected = None
    count = None
    if all(isinstance(n, int) and n >= 0 for n in [offset, *shape, *strides]):
        count = math.prod(shape)
    if count is not None and count < 100 and len(shape) == len(strides):
        indices = itertools.product(*map(range, shape)) if count else []
        places = [offset + sum(map(operator.mul, index, strides)) for index in indices]
        if offset <= len(storage) and all(place < len(storage) for place in places):
            expected = [storage[place] for place in places]
    try:
        found = np.asarray(read_tensors(path)["a"])
    except InputError:
        # A number may be repeated (a stride of 0), but not to more than there is. NumPy has no
        # larger sizes and strides, even where they do not count.
        assert expected is None or count > len(storage) or max([*shape, *strides]) >= 10**9
    else:
        assert expected == found.ravel().tolist()
        assert list(found.shape) == shape


PICKLE = pickled({"a": tensor("FloatStorage", "0", 0, (2, 3), (3, 1)), "count": 7})
LEGACY = legacy({"a": tensor("FloatStorage", "0", 0, (2, 3), (3, 1))}, {"0": A.tobytes()})


@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 999), st.binary(max_size=5)), min_size=1, max_size=4),
    is_zip=st.booleans(),
)
def test_any_bytes_are_read_or_refused(path, changes, is_zip):
    content = bytearray(PICKLE if is_zip else LEGACY)
    for place, replacement in changes:
        start = place % len(content)
        content[start : start + max(1, len(replacement))] = replacement
        content = content or bytearray(b".")
    if is_zip:
        write_zip(path, bytes(content), {"0": A.tobytes()})
    else:
        path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert all(np.asarray(each).size <= A.size for each in read_tensors(path).values())


def test_the_number_of_a_memo_takes_no_memory(path):
    assert read_tensors(write_zip(path, b"\x80\x02}r\xff\xff\xff\xff.", {})) == {}
