"""The newest version is served; a swap loses nothing; a broken version leaves the old in place."""

import shutil
import threading

import pytest
from fake_models import save_model

from keras_transformer.errors import InputError
from keras_transformer.export.server.models import ServedModel
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
    return loaded.translate([text])[0]["translation"]


def test_newest_complete_version_is_served(model, folder):
    old = model.find("fake")
    (folder / "12").mkdir()  # nothing in it yet
    (folder / "notes").mkdir()
    add(folder, 10)  # newer than 3, though not as text
    model.poll()
    assert model.find("fake").number == 10
    assert ask(model.find("fake", 10), "abc") == "3:ABC"  # what the copy was saved as
    assert ask(old, "late") == "3:LATE"  # a request that had begun


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
    assert ask(loaded, "abc") == "8:ABC"
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
    assert ask(model.find("fake"), "on") == "3:ON"
    file.write_bytes(good)
    model.poll()
    assert model.find("fake").number == 5


def test_warmup_is_replayed(model, folder):
    """A request that fails shows that all before it were sent."""
    good = [("", {"text": ["a", "b"]}), ("checked", {"text": ["c"]})]
    write_warmup(add(folder, 4), "fake", good)
    model.poll()
    assert model.find("fake").number == 4
    write_warmup(add(folder, 5), "fake", [*good, ("checked", {"text": ["bad"]})])
    with pytest.raises(InputError, match=r"Version 5 of .* cannot .*: assertion failed: \[bad"):
        model.poll()
    assert model.find("fake").number == 4


def test_first_version_answers_before_all_signatures_are_warm(folder, caplog):
    """Requests after the first are sent in a thread, and one that fails is a warning."""
    good, bad = ("", {"text": ["a"]}), ("checked", {"text": ["bad"]})
    write_warmup(folder / "3", "fake", [good, bad])
    model = ServedModel(folder)
    model.poll()
    assert ask(model.find("fake"), "on") == "3:ON"
    for thread in threading.enumerate():
        if thread.name == "warm-up":
            thread.join(20)
    assert "Warm-up of checked: assertion failed: [bad" in caplog.text
