"""The check of an export sees each fault that a server would stumble over."""

import json
import shutil

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export import check
from keras_transformer.export.assets import FOLDER, METADATA, WARMUP
from keras_transformer.export.check import check_saved_model


@pytest.fixture(scope="module")
def whole(exported):
    return exported.path


@pytest.fixture
def export(whole):
    return check._Export(whole)


@pytest.fixture
def meta_graph(export):
    return export.meta_graph


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


def test_whole(export):
    assert "serving_default, greedy, nbest" in check._check_signatures(export)
    assert "no Python, no device, no XLA" in check._check_nodes(export)
    assert "stored once" in check._check_weights(export)
    assert check._check_warmup(export) == "18 requests"


def test_missing_signature(export, meta_graph):
    del meta_graph.signature_def["nbest"]
    assert_refused(check._check_signatures, export, match="there is no signature nbest")


def test_other_outputs(export, meta_graph):
    outputs = meta_graph.signature_def["document"].outputs
    del outputs["sentences"]
    assert_refused(check._check_signatures, export, match="document has the outputs")


def test_scalar_input(export, meta_graph):
    del meta_graph.signature_def["greedy"].inputs["text"].tensor_shape.dim[:]
    assert_refused(check._check_signatures, export, match="greedy has the inputs")


def test_device_outside_of_functions(export, meta_graph):
    node = next(n for n in meta_graph.graph_def.node if n.op == "Placeholder")
    node.device = "/device:GPU:0"
    assert_refused(check._check_nodes, export, match="bound to devices: /device:GPU:0")


def test_device(export, meta_graph):
    a_search(meta_graph).node_def[3].device = "/device:GPU:0"
    assert_refused(check._check_nodes, export, match="bound to devices: /device:GPU:0")


def test_python(export, meta_graph):
    a_search(meta_graph).node_def[3].op = "EagerPyFunc"
    assert_refused(check._check_nodes, export, match="calls Python: EagerPyFunc")


@pytest.mark.parametrize("of_function", [True, False])
def test_xla(export, meta_graph, of_function):
    function = a_search(meta_graph)
    holder = function if of_function else function.node_def[2]
    holder.attr["_XlaMustCompile"].b = True
    assert_refused(check._check_nodes, export, match="asks for XLA")


def test_foreign_op(export, meta_graph):
    export.core_ops = {node.op for node in export.nodes()}
    assert check._check_ops(export)
    a_search(meta_graph).node_def[1].op = "Addons>Flash"
    assert_refused(check._check_ops, export, match="no server knows the ops Addons>Flash")


@pytest.mark.parametrize("factor", [0.4, 2.1])
def test_weights_missing_or_twice(export, factor):
    export.metadata["num_params"] = int(factor * export.metadata["num_params"])
    assert_refused(check._check_weights, export, match="bytes of weights take")


def test_changed_files(copy):
    export = check._Export(copy)
    assert "as they were exported" in check._check_files(export)
    file = next((copy / "variables").glob("variables.data-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    message = rf"variables/{file.name} is not what was exported"
    assert_refused(check._check_files, export, match=message)
    file.unlink()
    assert_refused(check._check_files, export, match="cannot be read: No such file")


def test_what_breaks_a_check_is_a_finding(copy, monkeypatch):
    def broken(export):
        raise KeyError("score")

    monkeypatch.setattr(check, "_CHECKS", {"first": broken, "second": lambda export: "fine"})
    assert check_saved_model(copy) == [
        ("first", "cannot be checked: KeyError: 'score'", ""),
        ("second", None, "fine"),
    ]


def test_no_warmup(copy):
    (copy / FOLDER / WARMUP).unlink()
    assert_refused(
        check._check_warmup, check._Export(copy), match="no request for attention, document, greedy"
    )


def test_damaged_warmup(copy):
    (copy / FOLDER / WARMUP).write_bytes(b"no records" * 99)
    for function in (check._check_warmup, check._check_session):
        assert_refused(function, check._Export(copy), match="the warm-up requests cannot be read")


@pytest.mark.distributed
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
    assert found["ops"] == "not known, for the C API did not answer"


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", "int4"),
        ("num_params", None),
        ("files", None),
        ("examples", {}),
        ("examples", []),
        ("examples", ["text"]),
        ("examples", [{"text": "a", "translation": "b", "score": "1", "truncated": False}]),
    ],
)
def test_metadata_of_wrong_types(copy, name, value):
    file = copy / FOLDER / METADATA
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(InputError, match=r"metadata\.json is damaged: it must tell the "):
        check_saved_model(copy)


@pytest.mark.parametrize("content", ["{", "[1]", '{"format": "other"}'])
def test_damaged_metadata(copy, content):
    (copy / FOLDER / METADATA).write_text(content)
    with pytest.raises(InputError, match=r"metadata\.json (is damaged|must be of the format)"):
        check_saved_model(copy)
