"""The newest version is served; a swap loses nothing; a broken version leaves the old in place."""

import re
import shutil
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from fake_models import predict_request, save_model, write_warmup

from keras_transformer.export import models
from keras_transformer.export.models import ServedModel
from keras_transformer.export.protocol import Limits, ServingError, inputs_of, proto_of
from keras_transformer.export.session import SavedModelSession


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A version to copy from."""
    return save_model(tmp_path_factory.mktemp("saved"), 3)


@pytest.fixture
def folder(saved, tmp_path):
    """A model's folder with version 3."""
    shutil.copytree(saved, tmp_path / "fake" / "3")
    return tmp_path / "fake"


@pytest.fixture
def model(folder):
    model = ServedModel(folder)
    yield model
    model.close()


def add(folder, version):
    shutil.copytree(folder / "3", folder / f".{version}")
    (folder / f".{version}").rename(folder / str(version))


def ask(loaded, text):
    (answer,) = loaded.submit("", {"text": np.array([text.encode()], object)}).result(20)[
        "translation"
    ]
    return answer


def states(model):
    return [(status.version, status.state) for status in model.states()]


def test_serves_the_newest_complete_version(model, folder):
    (folder / "12").mkdir()  # nothing in it yet
    (folder / "notes").mkdir()
    add(folder, 10)  # newer than 3, though not as text
    model.poll()
    with model.use() as loaded:
        assert loaded.number == 10
        assert ask(loaded, "abc") == b"3:ABC"  # what the copy was saved as
    assert states(model) == [(10, "AVAILABLE")]
    assert model.name == "fake"


def test_swap_answers_by_the_old_version_what_it_has_accepted(model, folder):
    model.poll()
    swap = threading.Thread(target=lambda: (add(folder, 4), model.poll()))
    with model.use() as old:
        swap.start()
        deadline = time.monotonic() + 20
        while (4, "AVAILABLE") not in states(model) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert states(model) == [(4, "AVAILABLE"), (3, "UNLOADING")]
        assert ask(old, "late") == b"3:LATE"
        with model.use() as new:
            assert new.number == 4
            assert ask(new, "new") == b"3:NEW"
        assert swap.is_alive()  # it waits for us
    swap.join(20)
    assert not swap.is_alive()
    assert states(model) == [(4, "AVAILABLE"), (3, "END")]
    wanted = r"Servable not found for request: Specific\(fake, 3\)"
    with pytest.raises(ServingError, match=wanted), model.use(3):
        pass


def test_requests_during_swaps_are_all_answered(folder):
    model = ServedModel(folder)
    model.poll()
    stop, failures, answered = threading.Event(), [], []

    def client(number):
        while not stop.is_set():
            try:
                with model.use() as loaded:
                    answer = ask(loaded, f"text {number}")
                if answer != f"3:TEXT {number}".encode():
                    failures.append(answer)
                answered.append(number)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for version in (4, 5, 6):
        add(folder, version)
        model.poll()
    stop.set()
    for thread in threads:
        thread.join(20)
    model.close()
    assert failures == []
    assert set(answered) == set(range(5))
    assert states(model) == [(version, "END") for version in (6, 5, 4, 3)]


@pytest.mark.parametrize("damage", ["truncated", "no variables", "no graph"])
def test_broken_version_is_reported_and_the_old_one_stays(model, folder, damage):
    model.poll()
    add(folder, 5)
    if damage == "no variables":
        shutil.rmtree(folder / "5" / "variables")
    else:
        content = (folder / "3" / "saved_model.pb").read_bytes()
        half = content[: len(content) // 2] if damage == "truncated" else b""
        (folder / "5" / "saved_model.pb").write_bytes(half)
    model.poll()
    failed, served = model.states()
    assert (failed.version, failed.state) == (5, "END")
    assert failed.code != tf.errors.OK
    assert "5 does not hold a whole SavedModel" in failed.message
    assert "\n" not in failed.message
    assert served == (3, "AVAILABLE", 0, "")
    with model.use() as loaded:
        assert ask(loaded, "on") == b"3:ON"


def test_broken_version_is_tried_again_when_it_has_changed(model, folder, monkeypatch):
    model.poll()
    add(folder, 5)
    good = (folder / "5" / "saved_model.pb").read_bytes()
    (folder / "5" / "saved_model.pb").write_bytes(b"half")
    loads = []
    load = models.LoadedVersion
    monkeypatch.setattr(
        models, "LoadedVersion", lambda path, limits: loads.append(path.name) or load(path, limits)
    )
    for _ in range(3):
        model.poll()
    assert loads == ["5"]
    (folder / "5" / "saved_model.pb").write_bytes(good)
    model.poll()
    assert loads == ["5", "5"]
    assert states(model) == [(5, "AVAILABLE"), (3, "END")]


def test_older_version_is_served_when_the_newest_is_deleted(model, folder):
    add(folder, 4)
    model.poll()
    shutil.rmtree(folder / "4")
    model.poll()
    assert states(model) == [(4, "END"), (3, "AVAILABLE")]
    shutil.rmtree(folder)
    model.poll()  # nothing to go to: what is loaded goes on
    with model.use() as loaded:
        assert loaded.number == 3


def test_same_number_exported_again_is_another_version(model, folder, tmp_path):
    model.poll()
    shutil.rmtree(folder / "3")
    model.poll()
    (tmp_path / "new").mkdir()
    new = save_model(tmp_path / "new", 8)
    (folder / "3").mkdir()
    shutil.copy(new / "saved_model.pb", folder / "3")  # in part: what is loaded goes on
    model.poll()
    assert states(model) == [(3, "AVAILABLE")]
    with model.use() as old:
        assert ask(old, "abc") == b"3:ABC"
        shutil.rmtree(folder / "3")
        new.rename(folder / "3")
        swap = threading.Thread(target=model.poll)
        swap.start()
        deadline = time.monotonic() + 20
        while model._loaded is old and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(old, "late") == b"3:LATE"
        with model.use(3) as loaded:
            assert ask(loaded, "abc") == b"8:ABC"
        assert states(model) == [(3, "AVAILABLE")]
    swap.join(20)
    loaded = model._loaded
    model.poll()
    assert model._loaded is loaded
    assert states(model) == [(3, "AVAILABLE")]


def test_folder_that_cannot_be_read_is_told_once(model, monkeypatch, caplog):
    polls = []

    def poll():
        polls.append(1)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(model, "poll", poll)
    model.watch(0.01)
    deadline = time.monotonic() + 20
    while len(polls) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert caplog.messages == [f"{model.folder} cannot be read: [Errno 24] Too many open files"]


def test_warmup_may_have_more_rows_than_a_client(folder):
    write_warmup(folder / "3", [("", ["a", "b", "c"])])
    model = ServedModel(folder, Limits(max_rows=1))
    model.poll()
    assert states(model) == [(3, "AVAILABLE")]
    model.close()


def test_warmup_is_replayed_before_the_version_is_available(folder, monkeypatch):
    requests = [("", ["a", "b"]), ("checked", ["c"])]
    write_warmup(folder / "3", requests)
    model = ServedModel(folder, Limits(run_timeout=7))
    runs = []
    run = SavedModelSession.run

    def watched(self, signature, inputs, timeout):
        runs.append((signature, list(inputs["text"]), timeout, states(model)))
        return run(self, signature, inputs, timeout)

    monkeypatch.setattr(SavedModelSession, "run", watched)
    model.poll()
    loading = [(3, "LOADING")]
    # The first runs are the slowest: they may take longer than those of requests.
    assert runs == [
        ("serving_default", [b"a", b"b"], None, loading),
        ("checked", [b"c"], None, loading),
    ]
    with model.use() as loaded:
        assert ask(loaded, "d") == b"3:D"
    assert runs[2] == ("serving_default", [b"d"], 7, [(3, "AVAILABLE")])
    model.close()


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([("checked", ["bad"])], r"assertion failed: \[bad\]"),
        ([("other", ["a"])], "Warm-up request 1 asks for a signature 'other'"),
    ],
)
def test_failing_warmup_fails_the_version(model, folder, requests, message):
    model.poll()
    add(folder, 4)
    write_warmup(folder / "4", requests)
    model.poll()
    assert states(model) == [(4, "END"), (3, "AVAILABLE")]
    assert re.search(message, model.states()[0].message)


def test_a_version_with_a_broken_link_stands_in_no_ones_way(model, folder):
    model.poll()
    (folder / "5").mkdir()
    (folder / "5" / "saved_model.pb").write_bytes(b"")
    (folder / "5" / "link").symlink_to("nowhere")
    model.poll()
    assert states(model)[:1] == [(5, "END")]
    add(folder, 6)
    model.poll()
    assert (6, "AVAILABLE") in states(model)


def test_watch_finds_new_versions(model, folder):
    model.poll()
    model.watch(0.01)
    add(folder, 7)
    deadline = time.monotonic() + 20
    while states(model)[0] != (7, "AVAILABLE") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert states(model)[0] == (7, "AVAILABLE")


def test_unknown_versions(tmp_path):
    model = ServedModel(tmp_path / "none")
    model.poll()
    with pytest.raises(ServingError, match="Could not find any versions of model none"):
        model.states()
    wanted = r"Servable not found for request: Latest\(none\)"
    with pytest.raises(ServingError, match=wanted), model.use():
        pass


def test_limits_of_rows_and_shapes(folder):
    model = ServedModel(folder, Limits(max_rows=2))
    model.poll()
    three = {"text": tf.make_ndarray(tf.make_tensor_proto(["a", "b", "c"]))}
    scalar = {"text": tf.make_ndarray(tf.make_tensor_proto("a"))}
    with model.use() as loaded:
        with pytest.raises(ServingError, match=r"Task size 3 is larger .* batch size 2"):
            loaded.submit("", three)
        with pytest.raises(ServingError, match=r"Input text has shape \[\], expected \[-1\]"):
            loaded.submit("", scalar)
        with pytest.raises(
            ServingError, match=r"Sent extra: \{y\}. Missing but required: \{text\}"
        ):
            loaded.submit("", {"y": three["text"]})
    model.close()


def test_protocol_buffers_that_claim_more_than_they_hold(saved):
    signature = SavedModelSession(saved).signatures["sums"]

    def read(proto):
        return inputs_of(predict_request("sums", {"x": proto}), signature)["x"]

    proto = tf.make_tensor_proto([5], tf.int32)
    assert read(proto).tolist() == [5]
    proto.tensor_shape.dim[0].size = 10**15
    with pytest.raises(ServingError, match=r"x holds 1 values, expected 1000000000000000"):
        read(proto)
    proto.tensor_shape.dim[0].size = -1
    with pytest.raises(ServingError, match=r"x has no valid shape: \[-1\]"):
        read(proto)
    with pytest.raises(ServingError, match="x has type number 7, expected int32"):
        read(tf.make_tensor_proto(["a"]))


def test_answers_are_in_the_fields_of_their_type():
    floats = proto_of(tf.make_ndarray(tf.make_tensor_proto([[1.5], [2.5]])))
    assert (list(floats.float_val), floats.tensor_content) == ([1.5, 2.5], b"")
    assert [dim.size for dim in floats.tensor_shape.dim] == [2, 1]
    assert list(proto_of(tf.make_ndarray(tf.make_tensor_proto(["a"]))).string_val) == [b"a"]
