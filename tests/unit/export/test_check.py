"""The check of an export finds each fault that would stop a server."""

import json
import shutil

import layer_weights
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.export import check
from keras_transformer.export.check import check_saved_model
from keras_transformer.export.metadata import FOLDER, METADATA
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.warmup import WARMUP
from keras_transformer.model.transformer import Transformer
from keras_transformer.texts.texts import TextSearch
from keras_transformer.translator import Translator


@pytest.fixture
def export(exported):
    return check.open_export(exported.path)


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported.path, tmp_path / "copy")


def a_search(meta_graph):
    """Returns the function of a loop's body."""
    return next(
        function
        for function in meta_graph.graph_def.library.function
        if "while_body" in function.signature.name
    )


def test_no_problem(exported):
    names = ["files", "signatures", "nodes", "weights", "warm-up", "Session"]
    assert [finding.name for finding in exported.findings] == names
    assert [finding.problem for finding in exported.findings] == [None] * len(names)


def test_missing_signature_and_output(export):
    signatures = export.meta_graph.signature_def
    del signatures["nbest"].outputs["scores"]
    with pytest.raises(InputError, match="nbest must take"):
        check.check_signatures(export)
    del signatures["nbest"]
    with pytest.raises(InputError, match="nbest must take"):
        check.check_signatures(export)


@pytest.mark.parametrize("in_function", [True, False])
def test_device(export, in_function):
    nodes = export.meta_graph.graph_def.node
    node = a_search(export.meta_graph).node_def[3] if in_function else nodes[0]
    node.name, node.device = "node", "/device:GPU:0"
    with pytest.raises(InputError, match="devices: /device:GPU:0"):
        check.check_nodes(export)


def test_python_and_xla(export):
    function = a_search(export.meta_graph)
    function.attr["_XlaMustCompile"].b = True
    with pytest.raises(InputError, match="XLA"):
        check.check_nodes(export)
    function.attr["_XlaMustCompile"].b = False
    function.node_def[2].attr["_XlaMustCompile"].b = True
    with pytest.raises(InputError, match="XLA"):
        check.check_nodes(export)
    function.node_def[3].op = "EagerPyFunc"
    with pytest.raises(InputError, match="Python: EagerPyFunc"):
        check.check_nodes(export)


@pytest.mark.parametrize("factor", [0.4, 2.1])
def test_weights_missing_or_twice(export, factor):
    export.metadata["num_params"] = int(factor * export.metadata["num_params"])
    with pytest.raises(InputError, match="bytes of weights take"):
        check.check_weights(export)


def test_changed_file(copy):
    file = next((copy / "variables").glob("variables.data-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"variables/{file.name}"):
        check.check_files(check.open_export(copy))


def test_a_check_that_crashes_is_a_finding(copy, monkeypatch):
    checks = {"first": lambda export: {}["score"], "second": lambda export: "fine"}
    monkeypatch.setattr(check, "CHECKS", checks)
    first, second = check_saved_model(copy)
    assert first == ("first", "cannot be checked: KeyError: 'score'", "")
    assert second == ("second", None, "fine")


def test_no_warmup(copy):
    (copy / FOLDER / WARMUP).unlink()
    with pytest.raises(InputError, match="no request for attention, document, greedy"):
        check.check_warmup(check.open_export(copy))


@pytest.mark.distributed
def test_other_answers(copy):
    file = copy / FOLDER / METADATA
    metadata = json.loads(file.read_text())
    metadata["examples"][1]["translation"] += "!"
    file.write_text(json.dumps(metadata))
    found = {finding.name: finding.problem for finding in check_saved_model(copy)}
    assert "but the model gives" in found.pop("Session")
    assert set(found.values()) == {None}


@pytest.mark.distributed
def test_a_model_with_two_hypotheses_that_tie(tiny_translator, tmp_path):
    """Two pieces have the same embedding, so that each may stand for the other."""
    # So few tokens that the beams hold all hypotheses with equal scores.
    tokenizer, text = tiny_translator.tokenizer, "."
    options = DecodingOptions(beam_size=6, max_source_length=23, extra_length=0)
    model = layer_weights.randomize(Transformer(tiny_translator.model.config))
    source = tokenizer.encode(tf.constant([text]))
    first = int(TextSearch(model, tokenizer, options).search(source).ids[0, 0, 0])
    (embeddings,) = (each for each in model.weights if each.shape == (290, 16))
    other = 288 if first == 289 else 289
    embeddings.assign(tf.tensor_scatter_nd_update(embeddings, [[other]], [embeddings[first]]))
    tied = Translator(model, tokenizer, options)
    (found,) = tied.translate([text], num_best=3)
    best, second, *_ = found.hypotheses
    assert best.text != second.text
    assert best.score == pytest.approx(second.score, abs=1e-5)
    path = export_saved_model(tied, tmp_path, examples=[text], check=False)
    exported = check.open_export(path)
    (example,) = exported.metadata["examples"]
    example["translation"] = second.text
    check.check_session(exported)
    example["translation"] += "!"
    with pytest.raises(InputError, match="but the model gives"):
        check.check_session(exported)


def test_foreign_op(copy):
    """An op that neither TensorFlow nor TF.Text has."""
    file = copy / "saved_model.pb"
    proto = SavedModel.FromString(file.read_bytes())
    a_search(proto.meta_graphs[0]).node_def[1].op = "Addons>Flash"
    file.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="it does not run"):
        check.check_session(check.open_export(copy))


@pytest.mark.parametrize("content", [None, b"half"])
@pytest.mark.parametrize("name", ["saved_model.pb", f"{FOLDER}/{METADATA}"])
def test_missing_and_damaged_files(copy, name, content):
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        check_saved_model(copy)
