"""The newest version is served; a swap loses nothing; a broken version leaves the old in place."""

import shutil

import numpy as np
import pytest
from fake_models import save_model

from keras_transformer.errors import InputError
from keras_transformer.export.server.models import ServedModel
from keras_transformer.export.session import SavedModelSession, SessionError
from keras_transformer.export.warmup import write_warmup


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
    model.poll()
    return model


def add(folder, version):
    shutil.copytree(folder / "3", folder / f".{version}")
    return (folder / f".{version}").rename(folder / str(version))


def ask(loaded, text):
    inputs = {"text": np.array([text.encode()], object)}
    return loaded.run("serving_default", inputs)["translation"][0]


def test_newest_complete_version_is_served(model, folder):
    old = model.find("fake")
    (folder / "12").mkdir()  # nothing in it yet
    (folder / "notes").mkdir()
    add(folder, 10)  # newer than 3, though not as text
    model.poll()
    assert model.find("fake").number == 10
    assert ask(model.find("fake", 10), "abc") == b"3:ABC"  # what the copy was saved as
    assert ask(old, "late") == b"3:LATE"  # a request that had begun


def test_older_version_is_served_when_the_newest_is_deleted(model, folder):
    add(folder, 4)
    model.poll()
    shutil.rmtree(folder / "4")
    model.poll()
    assert model.find("fake").number == 3
    shutil.rmtree(folder)
    model.poll()  # no other version: this one stays
    assert model.find("fake").number == 3


def test_same_number_exported_again_is_another_version(model, folder, tmp_path):
    new = save_model(tmp_path, 8)
    shutil.rmtree(folder / "3")
    new.rename(folder / "3")
    model.poll()
    loaded = model.find("fake", 3)
    assert ask(loaded, "abc") == b"8:ABC"
    model.poll()
    assert model.find("fake") is loaded


@pytest.mark.parametrize("file", ["saved_model.pb", "variables/variables.index"])
def test_broken_version_leaves_the_old_one_until_it_has_changed(model, folder, file):
    file = add(folder, 5) / file
    good = file.read_bytes()
    file.unlink()
    if file.suffix == ".pb":
        file.write_bytes(b"half")
    with pytest.raises(InputError, match=f"Version 5 of fake cannot be loaded: {folder}/5"):
        model.poll()
    model.poll()  # it is not tried again
    assert ask(model.find("fake"), "on") == b"3:ON"
    file.write_bytes(good)
    model.poll()
    assert model.find("fake").number == 5


def test_warmup_is_replayed_before_the_version_is_available(folder, monkeypatch):
    write_warmup(folder / "3", "fake", [("", {"text": ["a", "b"]}), ("checked", {"text": ["c"]})])
    model = ServedModel(folder)
    runs = []
    run = SavedModelSession.run

    def watched(self, signature, inputs):
        with pytest.raises(SessionError, match="not found"):
            model.find("fake")
        runs.append((signature, list(inputs["text"])))
        return run(self, signature, inputs)

    monkeypatch.setattr(SavedModelSession, "run", watched)
    model.poll()
    assert runs == [("serving_default", [b"a", b"b"]), ("checked", [b"c"])]
    assert model.find("fake").number == 3


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("checked", {"text": ["bad"]}), r"assertion failed: \[bad"),
        (("other", {"text": ["a"]}), '.*"other" not found'),
    ],
)
def test_failing_warmup_fails_the_version(model, folder, request_, message):
    write_warmup(add(folder, 4), "fake", [request_])
    with pytest.raises(InputError, match=f"Version 4 of fake cannot be loaded: {message}"):
        model.poll()
    assert model.find("fake").number == 3
