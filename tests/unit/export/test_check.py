"""The check of an export finds each fault that would stop a server."""

import shutil

import pytest
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_transformer.errors import InputError
from keras_transformer.export import check
from keras_transformer.export.check import check_saved_model
from keras_transformer.export.metadata import FOLDER, METADATA
from keras_transformer.export.rows import columns_of
from keras_transformer.export.warmup import WARMUP


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


@pytest.fixture
def answers(export, served, monkeypatch):
    """The session's outputs by signature, some of them replaced; it runs in this process."""
    replaced = {}

    def run_session(path, requests):
        found = []
        for name, inputs in requests:
            columns = columns_of(served.run(name, inputs))
            columns |= replaced.get(name, {}) if inputs["text"] else {}
            rows = zip(*columns.values(), strict=True)
            found.append([dict(zip(columns, row, strict=True)) for row in rows])
        return found

    monkeypatch.setattr(check, "_run_session", run_session)
    return replaced


def test_other_answers(export, answers):
    assert "answers 2 examples" in check.check_session(export)
    export.metadata["examples"][1]["translation"] += "!"
    with pytest.raises(InputError, match="but the model gives"):
        check.check_session(export)


def test_hypotheses_that_tie(export, answers):
    """The model gives the second of two hypotheses with the same score."""
    example = export.metadata["examples"][1]
    scores = [example["score"]] * 2
    text = example["translation"]
    example["translation"] = "other"
    answers["nbest"] = {"translations": [[text, "other"]], "scores": [scores]}
    check.check_session(export)
    answers["nbest"] = {"translations": [[text, "third"]], "scores": [scores]}
    with pytest.raises(InputError, match="but the model gives"):
        check.check_session(export)
    answers["score"] = {"score": scores[:1]}  # the signature finds that they score alike
    check.check_session(export)


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
