"""The check of an export sees each fault that a server would stumble over."""

import json
import shutil

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.export import check
from keras_transformer.export.assets import FOLDER, METADATA, WARMUP, read_metadata
from keras_transformer.export.check import check_saved_model


@pytest.fixture(scope="module")
def whole(exported):
    return exported.path


@pytest.fixture
def meta_graph(whole):
    proto = saved_model_pb2.SavedModel.FromString((whole / "saved_model.pb").read_bytes())
    return proto.meta_graphs[0]


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def a_search(meta_graph):
    """The function of a loop's body."""
    return next(
        function
        for function in meta_graph.graph_def.library.function
        if "while_body" in function.signature.name
    )


def assert_refused(function, *args, match):
    with pytest.raises(check._CheckError, match=match):
        function(*args)


def test_whole(meta_graph, whole):
    assert "serving_default, greedy, nbest" in check._check_signatures(meta_graph)
    assert "no Python, no device, no XLA" in check._check_nodes(meta_graph)
    assert "stored once" in check._check_weights(whole, read_metadata(whole))
    assert check._check_warmup(whole) == "18 requests"


def test_missing_signature(meta_graph):
    del meta_graph.signature_def["nbest"]
    assert_refused(check._check_signatures, meta_graph, match="there is no signature nbest")


def test_other_outputs(meta_graph):
    outputs = meta_graph.signature_def["document"].outputs
    del outputs["sentences"]
    assert_refused(check._check_signatures, meta_graph, match="document has the outputs")


def test_scalar_input(meta_graph):
    del meta_graph.signature_def["greedy"].inputs["text"].tensor_shape.dim[:]
    assert_refused(check._check_signatures, meta_graph, match="greedy has the inputs")


def test_device_outside_of_functions(meta_graph):
    node = next(n for n in meta_graph.graph_def.node if n.op == "Placeholder")
    node.device = "/device:GPU:0"
    assert_refused(check._check_nodes, meta_graph, match="bound to devices: /device:GPU:0")


def test_device(meta_graph):
    a_search(meta_graph).node_def[3].device = "/device:GPU:0"
    assert_refused(check._check_nodes, meta_graph, match="bound to devices: /device:GPU:0")


def test_python(meta_graph):
    a_search(meta_graph).node_def[3].op = "EagerPyFunc"
    assert_refused(check._check_nodes, meta_graph, match="calls Python: EagerPyFunc")


@pytest.mark.parametrize("of_function", [True, False])
def test_xla(meta_graph, of_function):
    function = a_search(meta_graph)
    holder = function if of_function else function.node_def[2]
    holder.attr["_XlaMustCompile"].b = True
    assert_refused(check._check_nodes, meta_graph, match="asks for XLA")


def test_foreign_op(meta_graph):
    names = {node.op for node in check._nodes(meta_graph)}
    assert check._check_ops(meta_graph, names)
    a_search(meta_graph).node_def[1].op = "Addons>Flash"
    assert_refused(
        check._check_ops, meta_graph, names, match="no server knows the ops Addons>Flash"
    )


@pytest.mark.parametrize("factor", [0.4, 2.1])
def test_weights_missing_or_twice(whole, factor):
    metadata = read_metadata(whole)
    metadata["num_params"] = int(factor * metadata["num_params"])
    assert_refused(check._check_weights, whole, metadata, match="bytes of weights take")


def test_no_warmup(copy):
    (copy / FOLDER / WARMUP).unlink()
    assert_refused(check._check_warmup, copy, match="no request for attention, document, greedy")


def test_damaged_warmup(copy):
    (copy / FOLDER / WARMUP).write_bytes(b"no records" * 99)
    assert_refused(check._check_warmup, copy, match="the requests cannot be read")


def test_other_answers_and_a_damaged_loader(copy):
    """Both processes compare, and a file that does not load is no crash."""
    file = copy / FOLDER / METADATA
    metadata = json.loads(file.read_text())
    metadata["examples"][1]["translation"] += "!"
    file.write_text(json.dumps(metadata))
    found = {finding.name: finding.problem for finding in check_saved_model(copy)}
    for name in ("Session", "C API"):
        assert "but the model gives" in found.pop(name)
    assert set(found.values()) == {None}


def test_weights_are_gone(copy):
    for file in (copy / "variables").iterdir():
        file.unlink()
    found = {finding.name: finding.problem for finding in check_saved_model(copy)}
    assert "it does not run" in found["Session"]
    assert "it does not run" in found["C API"]
    assert "bytes of weights take 0" in found["weights"]


@pytest.mark.parametrize("content", [None, b"half"])
def test_damaged_graph(copy, content):
    (copy / "saved_model.pb").unlink()
    if content is not None:
        (copy / "saved_model.pb").write_bytes(content)
    with pytest.raises(InputError, match=r"saved_model\.pb is missing or damaged"):
        check_saved_model(copy)


def test_not_an_export(tmp_path):
    module = tf.Module()
    tf.saved_model.save(module, tmp_path)
    with pytest.raises(InputError, match=r"is not an export of this package: cannot read .*json"):
        check_saved_model(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", '{"format": "other"}'])
def test_damaged_metadata(copy, content):
    (copy / FOLDER / METADATA).write_text(content)
    with pytest.raises(InputError, match=r"metadata\.json (is damaged|must be of the format)"):
        check_saved_model(copy)
