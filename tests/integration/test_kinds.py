"""Exports of every kind in a session, against their translators; a server has them, too."""

import numpy as np
import pytest
import tensorflow as tf
from export_answers import answer, assert_same_translations
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.export.metadata import read_metadata
from keras_transformer.export.session import SavedModelSession
from keras_transformer.parsing.trees import parse_trees

pytestmark = pytest.mark.programs

TEXTS = ["red dog .", "", "öl two one", "one two " * 31, "\u200bשלם 😀", "red %s <b>dog</b>"]
KINDS = ["pre_norm", "learned", "word_pieces", "recurrent", "ensemble", "parser", "protected"]
KINDS += ["marian", "several", "opennmt", "float16"]


@pytest.mark.parametrize("name", KINDS)
def test_answers_as_its_translator(name, kinds):
    translator, path = kinds[name]
    metadata, config = read_metadata(path), translator.model.config
    assert (metadata["architecture"], metadata["model"]) == (config.architecture, config.to_dict())
    session = SavedModelSession(path)
    expected = assert_same_translations(session, translator, TEXTS)
    assert any(text for each in expected for text, _ in each.hypotheses)
    documents = answer(session, "document", text=["One.\n\nTwo. Red", " "])
    assert documents["sentences"].tolist() == [3, 0]
    for signature in ("attention", "score", "nbest"):  # requests of nothing but empty texts
        inputs = session.signature(signature).inputs
        outputs = answer(session, signature, **{key: ["", ""] for key in inputs})
    assert {*outputs["translations"].ravel()} == {b""}
    if name != "parser":  # whose attention is of symbols
        shown = answer(session, "attention", text=TEXTS[:1])["attention"][0]
        mean = translator.attention(TEXTS[0]).cross[-1].mean(axis=0)
        np.testing.assert_allclose(shown, mean, atol=1e-5)


def test_rounded_weights_take_half(kinds):
    sizes = [
        sum(file.stat().st_size for file in (kinds[name].path / "variables").glob("*.data-*"))
        for name in ("float16", "sentencepiece")
    ]
    overhead = 8_192  # of the names
    assert sizes[0] < sizes[1] / 2 + overhead


def test_bfloat16(kinds):
    translator, path = kinds["bfloat16"]
    assert read_metadata(path)["compute"] == "bfloat16"
    proto = SavedModel.FromString((path / "saved_model.pb").read_bytes()).meta_graphs[0].graph_def
    nodes = [node for function in proto.library.function for node in function.node_def]
    products = {node.attr["T"].type for node in nodes if node.op == "MatMul"}
    assert products == {tf.bfloat16.as_datatype_enum}
    rows = SavedModelSession(path).translate(TEXTS)
    assert [row["translation"] for row in rows] == [x.text for x in translator.translate(TEXTS)]


def test_a_document_of_a_parser(kinds):
    session = SavedModelSession(kinds["parser"].path)
    (row,) = session.translate(["the dog sleeps . Ann sees the cat ."], "document")
    words = [" ".join(tree.words) for tree in parse_trees([row["translation"]], "document")]
    assert words == ["the dog sleeps .", "Ann sees the cat ."]
