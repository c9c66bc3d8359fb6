"""A SavedModel answers as the model does, in a Session."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.export import saved_model
from keras_transformer.export.check import Finding
from keras_transformer.export.graphs import ServingModule
from keras_transformer.export.metadata import read_metadata
from keras_transformer.export.options import SIGNATURES, ExportOptions
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.session import SavedModelSession
from keras_transformer.model.transformer import Transformer
from keras_transformer.texts.texts import TextSearch
from keras_transformer.translator import Translator

# Those of the fixture `exported`.
OPTIONS = DecodingOptions(beam_size=3, length_penalty=0.7, max_source_length=23)
TEXTS = ["red dog .", "", "😀 öl", "one two " * 31, " \t", "שלום"]


@pytest.fixture(scope="module")
def translator(exported):
    return exported.translator


@pytest.fixture(scope="module")
def expected(translator):
    """The translator's own answers."""
    return translator.translate(TEXTS)


@pytest.fixture(scope="module")
def graph(translator):
    """A function that runs one of the model's own graphs on TEXTS."""

    def call(function, *rest, **options):
        texts = tf.constant(TEXTS)
        options = dataclasses.replace(OPTIONS, **options)
        search = TextSearch(translator.model, translator.tokenizer, options)
        found = tf.function(lambda: function(search, texts, *rest), autograph=False)()
        return tf.nest.map_structure(lambda field: None if field is None else field.numpy(), found)

    return call


def assert_answers(rows, expected):
    assert [row["translation"] for row in rows] == [answer.text for answer in expected]
    assert [row["score"] for row in rows] == pytest.approx(
        [answer.score for answer in expected], abs=1e-4
    )
    assert [row["truncated"] for row in rows] == [answer.truncated for answer in expected]


def assert_outputs(outputs, **expected):
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype == object:
            assert outputs[name].tolist() == values.tolist(), name
        else:
            np.testing.assert_allclose(outputs[name], values, atol=1e-4, err_msg=name)
            assert outputs[name].dtype == values.dtype, name


def test_nbest_and_greedy(served, graph):
    found = graph(TextSearch.translate, OPTIONS.beam_size)
    scores = np.maximum(found.scores, np.float32(-1e9))
    assert -1e9 in scores  # JSON has no infinity
    nbest = served.run("nbest", {"text": TEXTS})
    expected = {"translations": found.translations, "truncated": found.truncated}
    assert_outputs(nbest, scores=scores, **expected)
    found = graph(TextSearch.translate, beam_size=1)
    greedy = served.run("greedy", {"text": TEXTS})
    best = found.translations[:, 0]
    assert_outputs(greedy, translation=best, score=found.scores[:, 0], truncated=found.truncated)


def test_attention(served, graph):
    outputs = served.run("attention", {"text": TEXTS})
    assert_outputs(outputs, **graph(TextSearch.align, 0)._asdict())


def test_score(served, graph):
    targets = [b"eins", b"rot Hund", b"", b"\xff", "5\u00a0m² …".encode(), b"oil"]
    found = graph(TextSearch.score, tf.constant(targets))
    outputs = served.run("score", {"text": TEXTS, "target": targets})
    expected = {"log_probability": found.log_probs, "score": found.scores}
    assert_outputs(outputs, **expected, truncated=found.truncated)


def test_document(served, graph):
    found, num_sentences = graph(TextSearch.translate_documents)
    outputs = served.run("document", {"text": TEXTS})
    expected = {"translation": found.translations[:, 0], "score": found.scores[:, 0]}
    assert_outputs(outputs, **expected, sentences=num_sentences)


def test_each_kind_of_search_is_stored_once(exported):
    proto = SavedModel.FromString((exported.path / "saved_model.pb").read_bytes())
    functions = proto.meta_graphs[0].graph_def.library.function
    names = [function.signature.name for function in functions]
    assert sum(name.startswith("__inference_search_") for name in names) == 2  # beams and greedy
    usual = [name for name, signature in SIGNATURES.items() if not signature.needs]
    assert sum(name.startswith("__inference_graph_") for name in names) == len(usual)


def test_metadata(exported, translator):
    metadata = read_metadata(exported.path)
    assert metadata["model"] == translator.model.config.to_dict()
    assert metadata["tokenizer_sha256"] == translator.tokenizer.fingerprint
    assert metadata["decoding"] == dataclasses.asdict(OPTIONS)
    assert metadata["versions"]["keras"] == keras.__version__


def test_diverged_model_answers_in_json(translator):
    model = Transformer(translator.model.config)
    model.target_embedding.token_embedding.embeddings.assign(
        np.full((translator.tokenizer.vocab_size, model.config.d_model), np.nan)
    )
    diverged = Translator(model, translator.tokenizer, OPTIONS)
    module = ServingModule(diverged, ExportOptions())
    outputs = module.graphs["serving_default"](tf.constant(["one"]))
    assert outputs["score"].numpy().tolist() == [-1e9]


def test_session_answers_as_the_translator(served, expected):
    assert [answer.truncated for answer in expected].count(True) == 1
    assert_answers(served.translate(TEXTS), expected)
    for text, answer in zip(TEXTS, expected, strict=True):
        assert_answers(served.translate([text]), [answer])
    assert served.translate([]) == []


def test_session_takes_bytes(served):
    for text, replaced in ((b"red \xff\xfe dog", "red \ufffd\ufffd dog"), ("\ud800 dog", b"? dog")):
        found, expected = served.translate([text, replaced])
        assert found == pytest.approx(expected)


def test_session_need_not_optimize(exported, served):
    loaded = SavedModelSession(exported.path)
    for signature in ("serving_default", "document"):
        expected = served.run(signature, {"text": TEXTS})
        assert_outputs(loaded.run(signature, {"text": TEXTS}), **expected)


def test_session_answers_as_that_of_python(exported, served):
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(exported.path))
        signature = loaded.signature_def["serving_default"]
        outputs = {name: info.name for name, info in signature.outputs.items()}
        answers = session.run(outputs, {signature.inputs["text"].name: TEXTS})
    assert_outputs(answers, **served.run("serving_default", {"text": TEXTS}))


def test_export_that_fails_its_check_leaves_nothing(translator, tmp_path, monkeypatch):
    module = tf.Module()  # nothing is traced
    module.stored, module.graphs, module.inputs = [tf.Variable(0.0)], {}, {}
    monkeypatch.setattr(saved_model, "ServingModule", lambda *_: module)
    problems = [Finding("nodes", None, "fine"), Finding("Session", "it does not run: ...", "")]
    monkeypatch.setattr(saved_model, "check_saved_model", lambda *_: problems)
    with pytest.raises(InputError, match="Session: it does not run"):
        export_saved_model(translator, tmp_path / "tiny")
    assert list((tmp_path / "tiny").iterdir()) == []


def test_existing_version_is_refused(exported, tiny_translator):
    with pytest.raises(InputError, match="7 exists already"):
        export_saved_model(tiny_translator, exported.path.parent, version=7)
    with pytest.raises(InputError, match="7 is a version of an export: name the folder"):
        export_saved_model(tiny_translator, exported.path)
    assert [path.name for path in exported.path.parent.iterdir()] == ["7"]
    assert exported.path.stat().st_mode & 0o777 == 0o755
    file = exported.path / "saved_model.pb"
    with pytest.raises(InputError, match=r"Cannot write .*\.pb: it is a file, not a folder"):
        export_saved_model(tiny_translator, file)


@pytest.mark.parametrize(("option", "value"), [("attention_layer", -3), ("version", 0)])
def test_wrong_options(tiny_translator, tmp_path, option, value):
    arguments = {"version": 0}
    if option == "attention_layer":
        arguments = {"options": ExportOptions(attention_layer=value)}
    with pytest.raises(InputError, match=rf"`{option}` .*={value}"):
        export_saved_model(tiny_translator, tmp_path / "tiny", **arguments)
    assert list(tmp_path.iterdir()) == []
