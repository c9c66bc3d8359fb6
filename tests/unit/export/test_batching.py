"""Requests are merged by rows, within bounds, and each gets its own answer."""

import math
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export.batching import Batcher, can_merge
from keras_transformer.export.protocol import Limits, ServingError
from keras_transformer.export.session import Signature, TensorInfo

BATCHED = TensorInfo("x:0", tf.float32, (None, 3))
SIGNATURES = {
    "double": Signature({"x": BATCHED}, {"y": BATCHED}),
    "whole": Signature({"x": BATCHED}, {"count": TensorInfo("c:0", tf.int32, ())}),
}


class Model:
    """Doubles what it gets, and writes down how many rows it got; waits while it is held."""

    def __init__(self):
        self.batches = []
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()

    def run(self, signature, inputs):
        self.busy.set()
        assert self.free.wait(20)
        (x,) = inputs.values()
        self.batches.append((signature, len(x)))
        if np.isnan(x).any():
            raise ValueError("a nan")
        return {"y": 2 * x} if signature == "double" else {"count": np.int32(len(x))[...]}


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batcher(model):
    """Merges up to 7 rows, in one thread, and lets 11 requests wait."""
    limits = Limits(max_batch_size=7, batch_timeout=0, max_queue=11, num_batch_threads=1)
    batcher = Batcher(model.run, SIGNATURES, limits)
    yield batcher
    model.free.set()
    batcher.close()


def rows(first, count):
    return {"x": np.arange(first, first + 3 * count, dtype=np.float32).reshape(count, 3)}


def held(model, batcher):
    """Makes the only thread busy with a request."""
    model.free.clear()
    answer = batcher.submit("double", rows(0, 1))
    assert model.busy.wait(20)
    return answer


def test_merges_what_waits_and_splits_the_answers(model, batcher):
    held(model, batcher)
    requests = [rows(10 * n, n) for n in (1, 3, 2, 4)]
    answers = [batcher.submit("double", request) for request in requests]
    model.free.set()
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer.result(20)["y"], 2 * request["x"])
    # 1 + 3 + 2 rows fit into 7, the next 4 do not.
    assert model.batches == [("double", 1), ("double", 6), ("double", 4)]


def test_larger_than_a_batch_runs_alone(model, batcher):
    held(model, batcher)
    answers = [batcher.submit("double", rows(0, n)) for n in (2, 9, 3)]
    model.free.set()
    assert [len(answer.result(20)["y"]) for answer in answers] == [2, 9, 3]
    assert model.batches == [("double", 1), ("double", 2), ("double", 9), ("double", 3)]


def test_without_batch_dimension_runs_alone(model, batcher):
    held(model, batcher)
    answers = [batcher.submit("whole", rows(0, n)) for n in (1, 2)]
    model.free.set()
    assert [int(answer.result(20)["count"]) for answer in answers] == [1, 2]


def test_other_shapes_and_signatures_are_not_merged(model, batcher):
    held(model, batcher)
    wide = {"x": np.ones((2, 5), np.float32)}
    answers = [batcher.submit("double", inputs) for inputs in (rows(0, 1), wide, rows(3, 1))]
    model.free.set()
    assert [answer.result(20)["y"].shape for answer in answers] == [(1, 3), (2, 5), (1, 3)]
    assert model.batches == [("double", 1), ("double", 2), ("double", 2)]


def test_waits_for_others_for_the_timeout():
    model = Model()
    limits = Limits(max_batch_size=2, batch_timeout=30, num_batch_threads=1)
    batcher = Batcher(model.run, SIGNATURES, limits)
    first = batcher.submit("double", rows(0, 1))
    time.sleep(0.05)
    assert not first.done()  # it waits for a second
    batcher.submit("double", rows(0, 1)).result(20)
    first.result(20)
    assert model.batches == [("double", 2)]
    last = batcher.submit("double", rows(0, 1))
    batcher.close()  # does not wait for the timeout, and loses nothing
    assert last.result(0)["y"].shape == (1, 3)


def test_only_the_guilty_request_fails(model, batcher):
    held(model, batcher)
    bad = {"x": np.full((1, 3), np.nan, np.float32)}
    answers = [batcher.submit("double", inputs) for inputs in (rows(0, 2), bad, rows(9, 1))]
    model.free.set()
    np.testing.assert_array_equal(answers[0].result(20)["y"], 2 * rows(0, 2)["x"])
    with pytest.raises(ValueError, match="a nan"):
        answers[1].result(20)
    np.testing.assert_array_equal(answers[2].result(20)["y"], 2 * rows(9, 1)["x"])


def test_short_texts_do_not_wait_for_a_long_one():
    free, first = threading.Event(), threading.Event()
    batches = []

    def run(_, inputs):
        first.set()
        assert free.wait(20)
        batches.append([len(text) for text in inputs["x"]])
        return {"y": inputs["x"]}

    info = TensorInfo("x:0", tf.string, (None,))
    limits = Limits(max_batch_size=7, batch_timeout=0, max_queue=11, num_batch_threads=1)
    batcher = Batcher(run, {"echo": Signature({"x": info}, {"y": info})}, limits)
    answers = []
    for sizes in ([1], [2, 3], [2**14, 2**14 + 1], [4, 2**14]):
        texts = np.array([b"x" * size for size in sizes], object)
        answers.append(batcher.submit("echo", {"x": texts}))
        assert first.wait(20)
    free.set()
    assert [answer.result(20)["y"].size for answer in answers] == [1, 2, 2, 2]
    batcher.close()
    assert batches == [[1], [2, 3, 4, 2**14], [2**14, 2**14 + 1]]


def test_full_queue_is_unavailable(model, batcher):
    held(model, batcher)
    answers = [batcher.submit("double", rows(0, 1)) for _ in range(11)]
    with pytest.raises(ServingError, match=r"queue .* is full: 11 requests wait") as error:
        batcher.submit("double", rows(0, 1))
    assert error.value.name == "UNAVAILABLE"
    model.free.set()
    assert all(answer.result(20) for answer in answers)


def test_cancelled_request_is_not_run(model, batcher):
    held(model, batcher)
    answer = batcher.submit("double", rows(0, 5))
    assert answer.cancel()
    model.free.set()
    batcher.submit("double", rows(0, 1)).result(20)
    assert model.batches == [("double", 1), ("double", 1)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((None,), True), ((None, 3), True), ((), False), ((2,), False), (None, False)],
)
def test_can_merge(shape, expected):
    output = TensorInfo("y:0", tf.float32, shape)
    assert can_merge(Signature({"x": BATCHED}, {"y": output})) is expected
    assert can_merge(Signature({"x": output}, {"y": BATCHED})) is expected
    assert not can_merge(Signature({}, {"y": BATCHED}))


def test_answers_that_are_padded_are_not_merged():
    padded = TensorInfo("y:0", tf.float32, (None, None))
    assert can_merge(Signature({"x": padded}, {"y": BATCHED}))
    assert not can_merge(Signature({"x": BATCHED}, {"y": padded}))


def test_limits_are_checked():
    message = r"`max_rows` must be at least 1 and finite\. Received: max_rows=0"
    with pytest.raises(ValueError, match=message):
        Limits(max_rows=0)
    for value in (math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"Received: run_timeout={value}"):
            Limits(run_timeout=value)
