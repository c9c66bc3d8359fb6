"""A SavedModel answers as the translator does, in a Session and without Keras."""

import json
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.export import session
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.session import SavedModelSession
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import WordPieceTokenizer
from keras_transformer.translator import DecodingOptions, Translator

MAX_SOURCE_LENGTH = 23
OPTIONS = DecodingOptions(beam_size=3, alpha=0.7, max_source_length=MAX_SOURCE_LENGTH)
TEXTS = ["red dog .", "", "😀 öl", "one two " * 31, " \t", "שלום"]


@pytest.fixture(scope="module")
def saved_model(tiny_translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return export_saved_model(tiny_translator, folder, version=7, options=OPTIONS)


@pytest.fixture(scope="module")
def loaded(saved_model):
    return SavedModelSession(saved_model)


@pytest.fixture(scope="module")
def meta_graph(saved_model):
    proto = saved_model_pb2.SavedModel.FromString((saved_model / "saved_model.pb").read_bytes())
    (meta_graph,) = proto.meta_graphs
    return meta_graph


@pytest.fixture(scope="module")
def expected(tiny_translator):
    """The translator's own answers."""
    return tiny_translator.translate(
        TEXTS, beam_size=3, alpha=0.7, max_source_length=MAX_SOURCE_LENGTH
    )


def assert_answers(rows, expected):
    assert [row["translation"] for row in rows] == [answer.text for answer in expected]
    assert [row["score"] for row in rows] == pytest.approx(
        [answer.score for answer in expected], abs=1e-4
    )
    assert [row["truncated"] for row in rows] == [answer.truncated for answer in expected]


def test_fresh_process_answers_as_the_translator(saved_model, expected):
    assert [answer.truncated for answer in expected].count(True) == 1
    process = subprocess.run(
        [sys.executable, "-P", session.__file__, str(saved_model)],
        input="\n".join(TEXTS).encode(),
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    assert_answers([json.loads(line) for line in process.stdout.splitlines()], expected)


def test_session_answers_as_the_translator(loaded, expected):
    assert_answers(loaded.translate(TEXTS), expected)
    for text, answer in zip(TEXTS, expected, strict=True):
        assert_answers(loaded.translate([text]), [answer])
    assert loaded.translate([]) == []


def test_session_takes_bytes(loaded, expected):
    assert_answers(loaded.translate([text.encode() for text in TEXTS]), expected)
    invalid, replaced = loaded.translate([b"red \xff\xfe dog", "red \ufffd\ufffd dog"])
    assert invalid == pytest.approx(replaced)


def test_session_takes_lone_surrogates(loaded):
    surrogate, replaced = loaded.translate(["red \ud800 dog", "red ? dog"])
    assert surrogate == pytest.approx(replaced)


def test_path_is_the_version(saved_model):
    assert saved_model.name == "7"
    assert [path.name for path in saved_model.parent.iterdir()] == ["7"]
    assert saved_model.stat().st_mode & 0o777 == 0o755


def test_signature(meta_graph):
    signature = meta_graph.signature_def["serving_default"]

    def described(tensors):
        return {
            name: (info.dtype, [dim.size for dim in info.tensor_shape.dim])
            for name, info in tensors.items()
        }

    assert described(signature.inputs) == {"text": (tf.string.as_datatype_enum, [-1])}
    assert described(signature.outputs) == {
        "translation": (tf.string.as_datatype_enum, [-1]),
        "score": (tf.float32.as_datatype_enum, [-1]),
        "truncated": (tf.bool.as_datatype_enum, [-1]),
    }


def test_graph_runs_anywhere(meta_graph):
    functions = [
        function
        for function in meta_graph.graph_def.library.function
        # TensorFlow's own saver names the CPU, which every machine has.
        if not re.search("_traced_(save|restore)_", function.signature.name)
    ]
    nodes = [node for function in functions for node in function.node_def]
    assert {"SentencepieceOp", "While"} <= {node.op for node in nodes}  # the search is among them
    assert not [node.name for node in nodes if "PyFunc" in node.op]
    assert {node.device for node in nodes} == {""}
    for holder in (*nodes, *functions):
        assert not holder.attr["_XlaMustCompile"].b


def test_weights_are_stored_once(saved_model, tiny_translator):
    stored = sum(path.stat().st_size for path in (saved_model / "variables").glob("*.data-*"))
    needed = 4 * tiny_translator.model.count_params()
    assert needed <= stored < 1.2 * needed


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_existing_version_is_refused(saved_model, tiny_translator):
    before = contents(saved_model.parent)
    with pytest.raises(InputError, match="7 exists already: choose another version, or delete it"):
        export_saved_model(tiny_translator, saved_model.parent, version=7)
    assert contents(saved_model.parent) == before


def test_failed_export_leaves_nothing(tiny_translator, tmp_path, monkeypatch):
    def save(module, folder, signatures):
        (folder / "saved_model.pb").write_bytes(b"half")
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        export_saved_model(tiny_translator, tmp_path / "tiny")
    assert list((tmp_path / "tiny").iterdir()) == []


def test_wrong_version(tiny_translator, tmp_path):
    with pytest.raises(InputError, match=r"`version` must be at least 1 .*=0"):
        export_saved_model(tiny_translator, tmp_path / "tiny", version=0)
    assert list(tmp_path.iterdir()) == []


def test_folder_is_a_file(tiny_translator, tmp_path):
    (tmp_path / "tiny").write_text("here")
    with pytest.raises(InputError, match=r"Cannot write .*tiny/1: "):
        export_saved_model(tiny_translator, tmp_path / "tiny")
    assert (tmp_path / "tiny").read_text() == "here"


@pytest.mark.parametrize("content", [None, b"", b"no protocol buffer"])
def test_not_a_saved_model(tmp_path, content):
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(ValueError, match="does not hold a SavedModel with a signature"):
        SavedModelSession(tmp_path)


def test_word_pieces_in_a_fresh_process(tmp_path):
    tokenizer = WordPieceTokenizer.train(["ab ba abba", "baab bab"] * 3, 17)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=10,
        d_ff=14,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    translator = Translator(Transformer(config), tokenizer, OPTIONS)
    path = export_saved_model(translator, tmp_path / "pieces")
    texts = ["ab baab", "", "abba unknown"]
    process = subprocess.run(
        [sys.executable, "-P", session.__file__, str(path)],
        input="".join(f"{text}\n" for text in texts),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    assert_answers(rows, translator.translate(texts))
