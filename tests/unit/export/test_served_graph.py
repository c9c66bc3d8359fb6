"""The exported graph itself refuses bad requests and merges good ones, whatever the server does."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export.graphs import MAX_BYTES, check_requests, merge_requests
from keras_transformer.export.options import SIGNATURES, ExportOptions
from keras_transformer.export.rows import columns_of
from keras_transformer.export.saved_model import warmup_requests
from keras_transformer.export.session import SavedModelSession, SessionError
from keras_transformer.languages import Languages

INPUTS = {name: x.inputs for name, x in SIGNATURES.items() if not x.needs}
LIMITS = ExportOptions()  # of the fixture `exported`
WAIT = 10_000_000  # microseconds, the maximum; all batches are full, so none waits


def send(session, *requests):
    """Returns the outputs or the error of each request, a signature and inputs; all at one time."""

    def answer(signature, inputs):
        arrays = {name: np.array(value, object) for name, value in inputs.items()}
        try:
            return columns_of(session.run(signature, arrays))
        except SessionError as error:
            return str(error) if error.code == tf.errors.INVALID_ARGUMENT else error

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(answer, *zip(*requests, strict=True)))


def everywhere(value):
    """A request with this value to each signature."""
    return [(name, dict.fromkeys(inputs, value)) for name, inputs in INPUTS.items()]


@pytest.mark.parametrize("value", [[["red", "dog"]], "red"])
def test_other_ranks_are_refused(served, value):
    for answer in send(served, *everywhere(value)):
        assert "is not compatible with expected shape [?]" in answer


def test_score_takes_as_many_targets_as_texts(served):
    matrix = {"text": ["red", "dog"], "target": [["rot", "Hund"]]}
    longer = {"text": ["red"], "target": ["rot", "Hund"]}
    rank, size = send(served, ("score", matrix), ("score", longer))
    assert "is not compatible with expected shape [?]" in rank
    assert "inputs of one size. Received:] [1] [2]" in size


def test_empty_requests_are_answered_at_once(served):
    for outputs in send(served, *everywhere([])):
        assert {len(column) for column in outputs.values()} == {0}


def test_large_requests_are_refused(served):
    for answer in send(served, *everywhere(["a"] * (LIMITS.max_texts + 1))):
        assert "at most 1024 texts. Received:] [1025]" in answer


def test_many_bytes_are_refused(served):
    for answer in send(served, *everywhere(["a" * MAX_BYTES, "b"])):
        assert re.search(r"at most 4194304 bytes of text. Received:\] \[\d+\]", answer)


def test_warm_up_is_a_short_request_to_each_signature_and_one_of_all_texts():
    requests = warmup_requests(["one two", "red", "one dog"], INPUTS, Languages("en", "de"))
    expected = [(name, ["red"]) for name in INPUTS]
    expected.append(("serving_default", ["one two", "red", "one dog"]))
    assert sorted((name, inputs["text"]) for name, inputs in requests) == sorted(expected)


def test_large_documents_are_refused(served):
    sentences = {"text": ["a. " * 3_000, "a a"]}  # two tokens and the end of each sentence
    one_sentence = {"text": ["a " * 10_000]}
    characters = {"text": ["x" * 16 * LIMITS.max_document_tokens, "b"]}
    answers = send(served, *(("document", each) for each in (sentences, one_sentence, characters)))
    assert "at most 8192 tokens. Received:] [" in answers[0]
    assert "at most 8192 tokens. Received:] [" in answers[1]
    assert "at most 131072 bytes of text. Received:] [131073]" in answers[2]


def test_bad_requests_fail_alone(served):
    texts = [["red"], [["red", "dog"]], "dog", ["two"] * 67, [], ["cat"]]
    (alone,) = send(served, ("serving_default", {"text": ["red"]}))
    answers = send(served, *(("serving_default", {"text": value}) for value in texts))
    good, matrix, scalar, large, empty, other = answers
    assert "expected shape" in matrix
    assert "expected shape" in scalar
    assert good["translation"] == alone["translation"]
    assert good["score"] == pytest.approx(alone["score"], abs=1e-4)
    assert len(set(large["translation"])) == 1
    assert [len(found["translation"]) for found in (large, empty, other)] == [67, 0, 1]


@pytest.mark.parametrize("merges", [True, False])
def test_merging(tmp_path, merges):
    """Good requests share a batch, which a bad request of the same time does not join."""

    def count(text):
        sizes = tf.strings.as_string(tf.fill([tf.size(text)], tf.size(text)))
        return {"rows": tf.stack([text, sizes], axis=1)}

    options = ExportOptions(max_batch_size=4, batch_timeout_micros=WAIT)
    module = tf.Module()
    function = merge_requests(count, options, {"rows": [2]}) if merges else count
    module.graph = check_requests(function, options, ["text"])
    folder = tmp_path / "1"
    tf.saved_model.save(module, folder, signatures=module.graph)
    session = SavedModelSession(folder, optimize=True)
    texts = [*([name] for name in "abcd"), [["e", "f"]]]
    *found, refused = send(session, *(("serving_default", {"text": text}) for text in texts))
    assert "is not compatible with expected shape" in refused
    size = "4" if merges else "1"
    assert [outputs["rows"] for outputs in found] == [[[name, size]] for name in "abcd"]
    (split,) = send(session, ("serving_default", {"text": list("abcdefgh")}))
    sizes = "44444444" if merges else "88888888"
    assert split["rows"] == [list(row) for row in zip("abcdefgh", sizes, strict=True)]


@pytest.mark.parametrize(("name", "value"), [("batch_timeout_micros", -1), ("max_texts", True)])
def test_wrong_options(name, value):
    with pytest.raises(InputError, match=f"`{name}`.*{value}"):
        ExportOptions(**{name: value})


def test_options_of_merging_need_it():
    with pytest.raises(InputError, match="`num_batch_threads` needs `batching`"):
        ExportOptions(batching=False, num_batch_threads=3)
