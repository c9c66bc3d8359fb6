"""The run directory: what is written is read back, and what is damaged is refused."""

import dataclasses
import hashlib
import json
import math
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from disk import full_disk

from keras_transformer.checkpoints import Checkpoint, State
from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.model.transformer import Transformer
from keras_transformer.run import Run
from keras_transformer.tokenizers import SentencePieceTokenizer

SIZES = {"d_model": 10, "d_ff": 17, "num_heads": 2, "num_encoder_layers": 1}
SIZES |= {"num_decoder_layers": 1}
SETTINGS = {"data": "corpus", "steps": 7, "peak_rate": None, "model": {"d_ff": 17}}
VOCAB_SIZE = 270


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(["ab ba", "abba baab ab"], VOCAB_SIZE)


@pytest.fixture(scope="module")
def model():
    return Transformer(TransformerConfig(vocab_size=VOCAB_SIZE, **SIZES))


@pytest.fixture
def new_run(tokenizer, model, tmp_path):
    """A run without a checkpoint."""
    return Run.create(tmp_path / "new", model.config, tokenizer, "en", "de", SETTINGS)


@pytest.fixture
def saved_run(new_run, model):
    """A run with a checkpoint."""
    new_run.save_checkpoint(model, step=5, metrics={"loss": 1.25}, is_best=True)
    return new_run


def set_weights(model, value):
    for variable in model.trainable_variables:
        variable.assign(np.full(variable.shape, value, "float32"))


def edit_manifest(run, **changes):
    path = run.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def replace_file(run, content):
    """Replaces the weights of the best checkpoint, and their hash in the manifest."""
    (run.path / run.best.file).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edit_manifest(run, best={**dataclasses.asdict(run.best), "sha256": digest})


def test_no_initial_values_are_computed_for_a_saved_model(saved_run, model, monkeypatch):
    were_computed = []

    def compute(initializer, shape, dtype=None):
        were_computed.append(tf.executing_eagerly())
        return tf.zeros(shape, dtype)

    monkeypatch.setattr(keras.initializers.GlorotUniform, "__call__", compute)
    loaded = saved_run.model()
    assert set(were_computed) == {False}
    for own, other in zip(loaded.weights, model.weights, strict=True):
        assert own.path == other.path
        np.testing.assert_array_equal(own, other)


def test_create_and_load(saved_run, tokenizer):
    loaded = Run.load(str(saved_run.path))
    assert loaded == saved_run
    assert (loaded.status, loaded.source, loaded.target) == ("training", "en", "de")
    assert loaded.settings == SETTINGS
    assert loaded.config == TransformerConfig(vocab_size=VOCAB_SIZE, **SIZES)
    assert loaded.best == loaded.last
    assert (loaded.best.step, loaded.best.metrics) == (5, {"loss": 1.25})
    assert loaded.tokenizer().model == tokenizer.model
    assert {"python", "keras_transformer", "tensorflow"} <= loaded.versions.keys()


def test_a_new_run_replaces_no_run(saved_run, model, tokenizer):
    with pytest.raises(InputError, match=f"^{saved_run.path} holds a run already"):
        Run.create(saved_run.path, model.config, tokenizer, "en", "de", SETTINGS)
    assert Run.load(saved_run.path).model() is not None


def test_parameters_are_counted_without_reading_them(saved_run, model):
    assert saved_run.folder.count_parameters(saved_run.last) == model.count_params()
    (saved_run.path / saved_run.last.file).write_bytes(b"")
    with pytest.raises(InputError, match=r"weights\.h5 is missing or damaged"):
        saved_run.folder.count_parameters(saved_run.last)


def test_best_and_last_checkpoints_are_kept(new_run, model):
    kept = []
    for step, is_best in ((1, True), (2, False), (3, False), (4, True), (5, False)):
        set_weights(model, step)
        new_run.save_checkpoint(model, step, {"loss": 0.5}, is_best)
        files = sorted(path.name for path in (new_run.path / "checkpoints").iterdir())
        kept.append([int(re.fullmatch(r"step-(\d{8})\.weights\.h5", name)[1]) for name in files])
        if step == 3:
            loaded = Run.load(new_run.path)
            for checkpoint, value in (("best", 1.0), ("last", 3.0)):
                restored = loaded.model(checkpoint).trainable_variables[0]
                np.testing.assert_array_equal(restored, np.full(restored.shape, value))
    assert kept == [[1], [1, 2], [1, 3], [4], [4, 5]]


# What resuming needs.


def state_of(value):
    return State({"00000": np.full((3, 5), value, "float32"), "00001": np.array(7)}, value)


def test_the_two_newest_states_are_kept(saved_run):
    for step in (6, 8, 11):
        saved_run.save_state(state_of(float(step)), step)
    run = Run.load(saved_run.path)
    assert [state.step for state in run.states] == [8, 11]
    names = {path.name for path in (run.path / "checkpoints").iterdir()}
    assert names == {
        "state-00000008.npz", "state-00000011.npz", "step-00000005.weights.h5",
    }  # fmt: skip
    state, step = run.load_state()
    assert (step, state.seconds) == (11, 11.0)
    assert state.arrays.keys() == {"00000", "00001"}
    np.testing.assert_array_equal(state.arrays["00000"], np.full((3, 5), 11.0))


def test_an_older_state_forgets_what_came_after_it(saved_run, model):
    saved_run.save_state(state_of(6.0), 6)
    saved_run.save_checkpoint(model, 9, {"loss": 1.0}, is_best=True, keep=2, state=state_of(9.0))
    (saved_run.path / saved_run.states[-1].file).write_bytes(b"PK")
    state, step = saved_run.load_state()
    assert (step, state.seconds) == (6, 6.0)
    assert [kept.step for kept in saved_run.checkpoints] == [5]
    assert saved_run.best is None


@pytest.mark.parametrize("name", ["step-00000007.weights.h5", "state-00000007.npz", "run.json"])
def test_full_disk(saved_run, model, name):
    before = Run.load(saved_run.path)
    files = {path: path.read_bytes() for path in saved_run.path.rglob("*") if path.is_file()}
    saved_run.settings["long"] = "x" * 3_000

    def write():
        if name.startswith("step"):
            saved_run.save_checkpoint(model, 7, {}, is_best=True)
        large = State({"00000": np.zeros(3_000)}, 1.0)
        saved_run.save_state(large if name.startswith("state") else state_of(1.0), 7)

    refused = rf"Cannot write .*/{name}: File too large.*--resume"
    with pytest.raises(InputError, match=refused), full_disk(2_000):
        write()
    assert Run.load(saved_run.path) == before
    left = {path: path.read_bytes() for path in saved_run.path.rglob("*") if path.is_file()}
    assert left.items() >= files.items()
    assert not any("tmp" in path.name for path in left)


def test_what_a_run_does_not_hold(new_run, model):
    with pytest.raises(InputError, match="holds no last checkpoint: `train --resume`"):
        new_run.model()
    new_run.save_checkpoint(model, 5, {}, is_best=True)
    with pytest.raises(InputError, match=r"averaged, best and last .* Received: 'latest'"):
        new_run.checkpoint("latest")
    with pytest.raises(InputError, match="holds no averaged checkpoint"):
        new_run.checkpoint("averaged")
    with pytest.raises(InputError, match="holds no training state to resume from"):
        new_run.load_state()


def test_no_run_directory(tmp_path):
    with pytest.raises(InputError, match="There is no run directory"):
        Run.load(tmp_path / "some")
    with pytest.raises(InputError, match=r"is not a run directory: it holds no file run\.json"):
        Run.load(tmp_path)


def test_foreign_manifest(tmp_path):
    for content in (b"", b"\xff\xfe\x00", b"[]", b'{"name": "left-pad"}'):
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(InputError, match=r"run\.json is damaged, or"):
            Run.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 97}, "must have .*: 4}. Received: .*: 97}"),
        ({"format": "joey"}, "must have .*keras-transformer run.* Received: .*joey"),
        ({"architecture": "convolutional"}, "is damaged.*convolutional"),
        ({"config": {"vocab_size": 7, "d_model": -1}}, "is damaged.*d_model"),
        ({"config": None}, "is damaged.*NoneType"),
        ({"checkpoints": [{"file": "a"}]}, "is damaged.*sha256"),
        ({"surprise": 1}, "is damaged.*surprise"),
    ],
)
def test_damaged_manifest(saved_run, changes, message):
    edit_manifest(saved_run, **changes)
    with pytest.raises(InputError, match=rf"run\.json {message}"):
        Run.load(saved_run.path)


@pytest.mark.parametrize("name", ["tokenizer.model", "checkpoints/step-00000005.weights.h5"])
def test_missing_and_damaged_files(saved_run, name):
    file = saved_run.path / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    read = saved_run.tokenizer if name == "tokenizer.model" else saved_run.model
    with pytest.raises(InputError, match=f"{name} is damaged"):
        read()
    file.unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        read()


@pytest.mark.parametrize("sizes", [{"d_ff": 19}, {"d_model": 14}, None])
def test_weights_of_another_model(saved_run, tmp_path, sizes):
    content = b"text"
    if sizes:
        other = Transformer(TransformerConfig(vocab_size=VOCAB_SIZE, **SIZES | sizes))
        other.save_weights(tmp_path / "other.weights.h5")
        content = (tmp_path / "other.weights.h5").read_bytes()
    replace_file(saved_run, content)
    with pytest.raises(InputError, match="does not hold the weights of this model"):
        Run.load(saved_run.path).model()


def test_files_of_the_user_are_kept(saved_run, model):
    folder = saved_run.path / "checkpoints"
    saved_run.save_checkpoint(model, 7, {}, is_best=True)
    shutil.copy(folder / "step-00000007.weights.h5", folder / "keep.weights.h5")
    (folder / "backup").mkdir()
    (folder / "tmp-state-00000005.npz").write_bytes(b"half")
    for step in (8, 9):
        saved_run.save_checkpoint(model, step, {}, is_best=True)
    names = {path.name for path in folder.iterdir()}
    assert {"keep.weights.h5", "backup", "step-00000009.weights.h5"} <= names
    assert not names & {"step-00000007.weights.h5", "tmp-state-00000005.npz"}


@pytest.mark.parametrize(
    ("metric", "average", "name"),
    [
        (None, {"val_bleu": 26.0, "val_token_loss": 1.0}, "averaged"),
        (None, {"val_bleu": 24.0, "val_token_loss": 1.9}, "averaged"),
        (None, {"val_bleu": 24.0, "val_token_loss": 2.1}, "best"),
        (None, {"val_bleu": 23.9, "val_token_loss": 1.0}, "best"),
        (None, {"val_bleu": math.nan, "val_token_loss": math.nan}, "best"),
        ("loss", {"val_bleu": 20.0, "val_token_loss": 1.0}, "averaged"),
        ("loss", {"val_bleu": 30.0, "val_token_loss": 3.0}, "best"),
        (None, {}, "averaged"),  # not validated
    ],
)
def test_commands_take_what_validates_better(metric, average, name, new_run):
    assert new_run.choice() == ("last", "the newest")
    new_run.best = Checkpoint("file", "hash", 7, {"loss": 1.0})
    assert new_run.choice() == ("best", "the newest, not validated")
    new_run.settings["metric"] = metric
    new_run.best = Checkpoint("file", "hash", 7, {"val_bleu": 25.0, "val_token_loss": 2.0})
    assert new_run.choice() == ("best", "the best validation")
    new_run.averaged = Checkpoint("file", "hash", 9, average)
    assert new_run.choice()[0] == name
    assert new_run.checkpoint() == getattr(new_run, name)


# Metrics.


def test_metrics_of_what_is_trained_again_are_dropped(new_run, model):
    for step in (3, 5, 7):
        new_run.save_checkpoint(model, step, {"loss": 1 / step}, is_best=step == 5)
    new_run.rewind(5)
    expected = [{"step": 3, "loss": 1 / 3}, {"step": 5, "loss": 1 / 5}]
    assert new_run.metrics() == expected
    file = new_run.path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 7')  # a killed training
    assert new_run.metrics() == expected
    file.unlink()
    assert new_run.metrics() == [expected[1], {"step": 7, "loss": 1 / 7}]  # the checkpoints'


@pytest.mark.parametrize("line", ["{", "7", "\x00"])
def test_damaged_metrics(saved_run, line):
    path = saved_run.path / "metrics.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InputError, match=f"^Line 2 of {path} is damaged: delete"):
        saved_run.metrics()
