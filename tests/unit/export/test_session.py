"""A session of TensorFlow's C API: what it takes and returns, and how it ends."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from disk import full_disk

from keras_transformer.errors import InputError
from keras_transformer.export.session import SavedModelSession

LENGTHS = [0, 1, 22, 23, 24, 5_000]  # TensorFlow keeps up to 22 bytes in the tensor


def test_strings_and_numbers(tmp_path):
    """Fails if TensorFlow's library has another layout of strings, or other numbers of types."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.string, name="text")], autograph=False)
    def graph(text):
        length = tf.strings.length(text)
        scores = {"score": tf.cast(length, tf.float32) / 3, "long": length > 22}
        numbers = {"int32": length, "int64": tf.cast(length, tf.int64) * 2**33}
        return {"text": text, **scores, **numbers}

    tf.saved_model.save(tf.Module(), tmp_path / "1", graph)
    session = SavedModelSession(tmp_path / "1")
    texts = [[b"\0\xff\n" * length, b"x" * length] for length in LENGTHS]
    lengths = np.outer(LENGTHS, [3, 1])
    found = session.run("serving_default", {"text": texts})
    assert found["text"].tolist() == texts
    np.testing.assert_array_equal(found["int32"], lengths.astype("int32"), strict=True)
    np.testing.assert_array_equal(found["int64"], lengths * 2**33, strict=True)
    np.testing.assert_allclose(found["score"], (lengths / 3).astype("float32"), strict=True)
    np.testing.assert_array_equal(found["long"], lengths > 22, strict=True)
    assert session.run("serving_default", {"text": "ö"})["text"] == "ö".encode()
    assert session.run("serving_default", {"text": "a\ud800"})["text"] == b"a?"


def test_a_saved_model_of_another_program_may_have_assets(tmp_path):
    (tmp_path / "words.txt").write_text("red\ndog\n")
    module = tf.Module()
    module.file = tf.saved_model.Asset(str(tmp_path / "words.txt"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def graph(text):
        return {"translation": tf.fill(tf.shape(text), tf.io.read_file(module.file.asset_path))}

    tf.saved_model.save(module, tmp_path / "1", graph)
    for optimize in (False, True):
        (row,) = SavedModelSession(tmp_path / "1", optimize).translate(["a"])
        assert row["translation"] == "red\ndog\n"


@pytest.mark.parametrize("content", [None, b"no protocol buffer"])
def test_not_a_saved_model(tmp_path, content):
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    for optimize in (False, True):
        with pytest.raises(InputError, match="does not hold a complete SavedModel"):
            SavedModelSession(tmp_path, optimize)


def test_a_full_folder_of_temporary_files(tmp_path):
    tf.saved_model.save(tf.Module(), tmp_path / "1")
    message = f"^Cannot write {tempfile.gettempdir()}: File too large$"
    with full_disk(10), pytest.raises(InputError, match=message):
        SavedModelSession(tmp_path / "1")


def test_what_a_session_refuses(exported):
    session = SavedModelSession(exported.path)
    for signature, inputs, message in (
        ("serving_default", {"text": ["red", 7]}, "must hold strings"),
        ("serving_default", {"words": ["red"]}, r"\['text'\]\. Received: \['words'\]"),
        ("score", {"text": ["red"]}, "target"),
        ("none", {"text": ["red"]}, '"none" not found'),
    ):
        with pytest.raises(InputError, match=message):
            session.run(signature, inputs)
    session.close()
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run("serving_default", {"text": ["red"]})


def test_threads_of_an_operation_must_be_a_number(exported, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "many")
    with pytest.raises(InputError, match=r"`TF_NUM_INTRAOP_THREADS` must .*: .*='many'"):
        SavedModelSession(exported.path)
