"""A SavedModel answers as the model does, in a Session and without Keras."""

import dataclasses
import json
import subprocess
import sys

import keras
import layer_weights
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.export import saved_model as saved_model_module
from keras_transformer.export import session
from keras_transformer.export.assets import read_metadata, read_warmup
from keras_transformer.export.check import Finding
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.session import SavedModelSession
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import WordPieceTokenizer
from keras_transformer.translation import (
    DecodingOptions,
    align_texts,
    score_texts,
    translate_documents,
    translate_texts,
)
from keras_transformer.translator import Translator

# Those of the fixture `exported`.
OPTIONS = DecodingOptions(beam_size=3, alpha=0.7, max_source_length=23)
TEXTS = ["red dog .", "", "😀 öl", "one two " * 31, " \t", "שלום"]


@pytest.fixture(scope="module")
def translator(exported):
    return exported.translator


@pytest.fixture(scope="module")
def tokenizer(exported):
    return exported.translator.tokenizer


@pytest.fixture(scope="module")
def saved_model(exported):
    return exported.path


@pytest.fixture(scope="module")
def loaded(saved_model):
    return SavedModelSession(saved_model)


@pytest.fixture(scope="module")
def expected(translator):
    """The translator's own answers."""
    return translator.translate(TEXTS, beam_size=3, alpha=0.7, max_source_length=23)


@pytest.fixture(scope="module")
def graph(translator):
    """A function that runs one of the model's own graphs on TEXTS."""

    def call(function, *rest, **options):
        texts = tf.constant(TEXTS)
        options = dataclasses.replace(OPTIONS, **options)
        model, tokenizer = translator.model, translator.tokenizer
        found = tf.function(lambda: function(model, tokenizer, texts, *rest, options))()
        return type(found)(*(field.numpy() for field in found))

    return call


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
        input="".join(
            json.dumps({"signature_name": "serving_default", "inputs": {"text": [text]}}) + "\n"
            for text in TEXTS
        ).encode(),
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    answers = [json.loads(line) for line in process.stdout.splitlines()]
    rows = [{name: column[0] for name, column in answer.items()} for answer in answers]
    assert_answers(rows, expected)


def test_its_own_check_finds_nothing(exported):
    names = ["files", "signatures", "nodes", "weights", "warm-up", "Session", "C API", "ops"]
    assert [finding.name for finding in exported.findings] == names
    assert [finding.problem for finding in exported.findings] == [None] * len(names)


def assert_outputs(outputs, **expected):
    assert outputs.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype == object:
            assert outputs[name].tolist() == values.tolist(), name
        else:
            np.testing.assert_allclose(outputs[name], values, atol=1e-4, err_msg=name)
            assert outputs[name].dtype == values.dtype, name


def all_translations(model, tokenizer, texts, options):
    return translate_texts(model, tokenizer, texts, options, num_best=options.beam_size)


def test_nbest_and_greedy(loaded, graph):
    found = graph(all_translations)
    scores = np.maximum(found.scores, np.float32(-1e9))
    assert -1e9 in scores  # JSON has no infinity
    nbest = loaded.run("nbest", {"text": [text.encode() for text in TEXTS]})
    assert_outputs(nbest, translations=found.translations, scores=scores)
    found = graph(translate_texts, beam_size=1)
    greedy = loaded.run("greedy", {"text": [text.encode() for text in TEXTS]})
    best = found.translations[:, 0]
    assert_outputs(greedy, translation=best, score=found.scores[:, 0], truncated=found.truncated)


def test_attention(loaded, graph, translator):
    def of_layer(*args):
        return align_texts(*args, layer=0)

    outputs = loaded.run("attention", {"text": [text.encode() for text in TEXTS]})
    assert_outputs(outputs, **graph(of_layer)._asdict())


def test_score(loaded, graph):
    targets = [b"eins", b"rot Hund", b"", b"\xff", b"zwei", b"oil"]
    found = graph(score_texts, tf.constant(targets))
    outputs = loaded.run("score", {"text": [text.encode() for text in TEXTS], "target": targets})
    expected = {"log_probability": found.log_probs, "score": found.scores}
    assert_outputs(outputs, **expected, truncated=found.truncated)


def test_document(loaded, graph):
    found = graph(translate_documents)
    outputs = loaded.run("document", {"text": [text.encode() for text in TEXTS]})
    expected = {"translation": found.translations, "score": found.scores}
    assert_outputs(outputs, **expected, sentences=found.num_sentences)


def test_metadata(saved_model, translator):
    metadata = read_metadata(saved_model)
    assert metadata["model"] == translator.model.config.to_dict()
    assert metadata["tokenizer_sha256"] == translator.tokenizer.fingerprint
    assert metadata["decoding"] == dataclasses.asdict(OPTIONS)
    assert set(metadata["versions"]) == {
        "keras3-transformer",
        "tensorflow",
        "tensorflow-text",
        "keras",
    }
    assert len(metadata["examples"]) == 3


def test_warmup_requests_are_answered(saved_model, loaded):
    requests = list(read_warmup(saved_model))
    assert {request.model_spec.signature_name for request in requests} == set(loaded.signatures)
    sizes = set()
    for request in requests:
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        outputs = loaded.run(request.model_spec.signature_name, inputs)
        assert {len(values) for values in outputs.values()} == {len(inputs["text"])}
        sizes.add(len(inputs["text"]))
    assert sizes == {1, 3}


@pytest.mark.distributed
def test_rounded_weights(saved_model, translator, tmp_path):
    weights = "bfloat16"
    path = export_saved_model(
        translator, tmp_path / "tiny", options=OPTIONS, weights=weights, check=False
    )
    sizes = [
        sum(file.stat().st_size for file in (folder / "variables").glob("*.data-*"))
        for folder in (path, saved_model)
    ]
    overhead = 8_192  # of the names
    assert sizes[0] < sizes[1] / 2 + overhead
    rounded = Transformer(translator.model.config)
    for weight, exact in zip(rounded.weights, translator.model.weights, strict=True):
        weight.assign(tf.cast(tf.cast(exact.value, weights), tf.float32))
    expected = Translator(rounded, translator.tokenizer, OPTIONS).translate(TEXTS)
    assert_answers(SavedModelSession(path).translate(TEXTS), expected)


@pytest.mark.distributed
def test_other_models(tokenizer, tmp_path):
    """Learned positions, untied embeddings and mixed precision all reach the stored weights."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        sizes = {"d_model": 10, "d_ff": 17, "num_encoder_layers": 1, "num_decoder_layers": 1}
        config = TransformerConfig(
            vocab_size=tokenizer.vocab_size,
            num_heads=2,
            share_embeddings=False,
            position_encoding="learned",
            max_length=13,
            **sizes,
        )
        model = layer_weights.randomize(Transformer(config))
        translator = Translator(model, tokenizer, OPTIONS)
        expected = translator.translate(TEXTS)
        path = export_saved_model(translator, tmp_path / "tiny", check=False)
    finally:
        keras.config.set_dtype_policy(policy)
    rows = SavedModelSession(path).translate(TEXTS)
    assert [row["truncated"] for row in rows] == [len(text) > 12 for text in TEXTS]
    for row, answer in zip(rows, expected, strict=True):
        # bfloat16 rounds in another order once TensorFlow has optimised the graph.
        assert row["score"] == pytest.approx(answer.score, rel=0.05)


def test_diverged_model_answers_in_json(translator, tmp_path):
    model = Transformer(translator.model.config)
    model.target_embedding.token_embedding.embeddings.assign(
        np.full((translator.tokenizer.vocab_size, model.config.d_model), np.nan)
    )
    module = saved_model_module.ServingModule(model, translator.tokenizer, OPTIONS)
    outputs = module.graphs["serving_default"](tf.constant(["one"]))
    assert outputs["score"].numpy().tolist() == [-1e9]


def test_session_gives_up(loaded):
    text = ["one two red dog " * 5] * 400
    with pytest.raises(tf.errors.DeadlineExceededError):
        loaded.run("document", {"text": text}, timeout=0.01)
    assert loaded.translate(["one"])


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


class NoModule(tf.Module):
    """Nothing to trace."""

    def __init__(self):
        super().__init__()
        self.stored, self.graphs = [tf.Variable(0.0)], {}


def test_export_that_fails_its_check_leaves_nothing(translator, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model_module, "ServingModule", lambda *args: NoModule())
    problem = [Finding("ops", None, "fine"), Finding("Session", "it does not run: ...", "")]
    monkeypatch.setattr(saved_model_module, "check_saved_model", lambda *args: problem)
    message = "failed its check and was deleted: Session: it does not run"
    with pytest.raises(InputError, match=message):
        export_saved_model(translator, tmp_path / "tiny")
    assert list((tmp_path / "tiny").iterdir()) == []


@pytest.mark.parametrize("layer", [2, -3])
def test_wrong_attention_layer(translator, tmp_path, layer):
    message = rf"`attention_layer` must be at least -2 and below 2\. Received: .*={layer}"
    with pytest.raises(InputError, match=message):
        export_saved_model(translator, tmp_path / "tiny", attention_layer=layer)
    assert list(tmp_path.iterdir()) == []


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
    with pytest.raises(ValueError, match="does not hold a whole SavedModel with a signature"):
        SavedModelSession(tmp_path)


@pytest.mark.distributed
def test_word_pieces(tmp_path):
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
    path = export_saved_model(translator, tmp_path / "pieces")  # its check runs in fresh processes
    texts = ["ab baab", "", "abba unknown"]
    loaded = SavedModelSession(path)
    assert_answers(loaded.translate(texts), translator.translate(texts))
    pieces = loaded.run("attention", {"text": [b"ab baab"]})["source_pieces"][0].tolist()
    joined = b" ".join(pieces[:-1]).replace(b" ##", b"")
    assert (joined, pieces[-1]) == (b"ab baab", b"</s>")
