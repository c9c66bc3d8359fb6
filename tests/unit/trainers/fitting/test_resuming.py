"""Interrupted and continued trainings: each ends as a training without interruption."""

import contextlib
import dataclasses
import hashlib
import os
import shutil
import signal

import keras
import numpy as np
import pytest
from close_runs import assert_close_runs
from eager import eagerly

from keras_transformer import run as run_module
from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.files import locked
from keras_transformer.run import Run
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.fitting import training
from keras_transformer.trainers.fitting.averaging import average_checkpoints
from keras_transformer.trainers.fitting.callbacks import stop_signals


def train(*args, **kwargs):
    """A training without compilation."""
    with eagerly():
        return training.train(*args, verbose=0, **kwargs)


@pytest.fixture
def compiled(monkeypatch):
    """Trainings in this test are compiled."""
    monkeypatch.setitem(globals(), "eagerly", contextlib.nullcontext)


# Of the numbers of files that have taken their place, those at which a training is killed.
KILLS = {
    0: "before the first manifest",
    3: "after a state",
    4: "before a checkpoint",
    6: "after a checkpoint and its state",
    22: "before the average",
    24: "before the last manifest",
}


class KilledError(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class After(keras.callbacks.Callback):
    """Calls a function after an update, and after the save that follows it."""

    def __init__(self, step, function):
        super().__init__()
        self.step = step
        self.function = function

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == self.step:
            self.function()


@pytest.fixture(scope="module")
def long_settings(short_settings):
    """All that has a state: dropout, the optimizer, a moving average, two passes, clipping."""
    return dataclasses.replace(
        short_settings,
        steps=11,
        steps_per_validation=3,
        steps_per_save=2,
        ema_decay=0.75,
        r_drop=2.0,
        clip_norm=1.0,
        cooldown=0.4,
        keep_checkpoints=3,
        average_last=2,
    )


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory):
    """A folder of copies of the complete training's directory, as a kill would have left it.

    They are named by the number of files that had taken their place, or "update 7".
    """
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="module")
def complete(long_settings, snapshots, tmp_path_factory):
    """The training without interruption."""
    path, real, replaced = tmp_path_factory.mktemp("complete"), os.replace, []

    def copy(name):
        shutil.copytree(path, snapshots / str(name))

    def replace(source, target):
        if str(target).startswith(str(path)) and "corpus" not in str(target):
            if len(replaced) in KILLS:
                copy(len(replaced))
            replaced.append(target)
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module.os, "replace", replace)
        return train(long_settings, path, callbacks=[After(7, lambda: copy("update 7"))])


@pytest.fixture
def copy(complete, tmp_path):
    """A copy of `complete`, which a test may change."""
    return Run.load(shutil.copytree(complete.path, tmp_path / "copy"))


def killed_after(step, settings, path):
    def kill():
        raise KilledError

    with pytest.raises(KilledError):
        train(settings, path, resume=True, callbacks=[After(step, kill)])


def stop_by_signal(number, after, settings, path):
    """Trains until a signal comes after an update; returns the step at which it stopped."""
    before = signal.getsignal(number)
    send = After(after, lambda: os.kill(os.getpid(), number))
    with pytest.raises(TrainingStoppedError, match=f"Stopped by {number.name}") as caught:
        train(settings, path, callbacks=[send])
    assert caught.value.status == 128 + number
    assert signal.getsignal(number) == before
    step = Run.load(path).states[-1].step
    assert f"after {step} updates" in str(caught.value)
    return step


@pytest.fixture(scope="module")
def stopped_once(long_settings, tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped") / "run"
    assert stop_by_signal(signal.SIGINT, 4, long_settings, path) == 5
    return path


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A training with states after 4 and 5 updates, stopped by a signal."""
    run = Run.load(shutil.copytree(stopped_once, tmp_path / "stopped"))
    assert [state.step for state in run.states] == [4, 5]
    return run


def resume(settings, path):
    return train(settings, path, resume=True)


def weights(run, checkpoint="last"):
    return [weight.numpy() for weight in run.model(checkpoint).weights]


def assert_same_run(actual, expected):
    """Bit for bit: weights, metrics, and which checkpoints are kept, best and averaged."""
    assert actual.status == expected.status == "complete"
    assert actual.metrics() == expected.metrics()
    for kept in ("checkpoints", "states"):
        steps = [[each.step for each in getattr(run, kept)] for run in (actual, expected)]
        assert steps[0] == steps[1]
    assert actual.best.step == expected.best.step
    for checkpoint in ("last", "best", "averaged"):
        for ours, theirs in zip(
            weights(actual, checkpoint), weights(expected, checkpoint), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    kept = (*actual.checkpoints, *actual.states, actual.best, actual.averaged)
    files = {f"checkpoints/{path.name}" for path in (actual.path / "checkpoints").iterdir()}
    assert files == {each.file for each in kept}


def test_the_uninterrupted_run(complete):
    assert [line["step"] for line in complete.metrics()] == [3, 6, 9, 11]
    assert [kept.step for kept in complete.checkpoints] == [6, 9, 11]
    assert [state.step for state in complete.states] == [10, 11]


# Kills.


@pytest.mark.parametrize(
    "replaced",
    [
        pytest.param(number, id=name, marks=[pytest.mark.distributed] * (number in (0, 3, 6)))
        for number, name in KILLS.items()
    ],
)
def test_killed_while_writing(long_settings, complete, snapshots, replaced):
    assert_same_run(resume(long_settings, snapshots / str(replaced)), complete)


@pytest.mark.distributed
def test_killed_while_resuming(long_settings, complete, snapshots, monkeypatch):
    """After the seventh update, then before each of the files that resuming writes first."""
    path = snapshots / "update 7"
    assert Run.load(path).states[-1].step == 6
    real = os.replace
    for name in ("run.json", "metrics.jsonl", "state-00000008.npz"):

        def replace(source, target, name=name):
            if str(target).endswith(name):
                raise KilledError
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(run_module.os, "replace", replace)
            with pytest.raises(KilledError):
                resume(long_settings, path)
    assert_same_run(resume(long_settings, path), complete)


def test_killed_before_there_is_a_manifest(short_settings, tmp_path):
    prepare(short_settings, tmp_path / "corpus")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "tokenizer.model").write_bytes(b"half")
    settings = dataclasses.replace(short_settings, data=str(tmp_path / "corpus"))
    assert resume(settings, tmp_path / "run").status == "complete"


# Signals.


def test_signals_save_and_stop(long_settings, complete, stopped):
    assert_same_run(resume(long_settings, stopped.path), complete)


@pytest.mark.distributed
@pytest.mark.usefixtures("compiled")
def test_signal_before_a_validation(long_settings, tmp_path):
    expected = train(long_settings, tmp_path / "expected")
    assert stop_by_signal(signal.SIGTERM, 5, long_settings, tmp_path / "run") == 6
    assert_same_run(resume(long_settings, tmp_path / "run"), expected)


def test_a_second_signal_has_its_usual_effect():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with stop_signals() as received:
            os.kill(os.getpid(), signal.SIGTERM)
            assert received == {signal.SIGTERM}
            assert not seen
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


# Damaged and missing files.


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_damaged_files(long_settings, complete, stopped, caplog):
    """The last state, the metrics, the corpus; and variables are found by name, in any order."""
    caplog.set_level("INFO")
    path = stopped.path
    other = shutil.copytree(path, path.with_name("other"))
    first, last = (path / state.file for state in stopped.states)
    with np.load(first) as arrays:
        reverse = dict(reversed(list(arrays.items())))
    np.savez(first, **reverse)
    manifest = (path / "run.json").read_text()
    sha256 = hashlib.sha256(first.read_bytes()).hexdigest()
    (path / "run.json").write_text(manifest.replace(stopped.states[0].sha256, sha256))
    damage(last)
    (path / "metrics.jsonl").unlink()
    shutil.rmtree(path / "corpus")  # it is prepared again
    assert_same_run(resume(long_settings, path), complete)
    assert f"{last.name} is damaged" in caplog.text
    assert "Resumed after 4 updates" in caplog.text
    assert "metrics.jsonl is missing: only the metrics" in caplog.text
    for state in stopped.states:
        damage(other / state.file)
    with pytest.raises(InputError, match=r"state-00000004\.npz is damaged.* no other state"):
        resume(long_settings, other)


def test_state_of_another_model(long_settings, stopped):
    state, step = stopped.load_state()
    name = "optimizer/adam/embedding_token_embedding_embeddings_momentum"
    state.arrays[name] = state.arrays[name][:-1]
    stopped.save_state(state, step)
    with pytest.raises(InputError, match=r"/state-\d{8}\.npz does not hold the training state"):
        resume(long_settings, stopped.path)


def test_missing_tokenizer_is_restored_from_the_corpus(long_settings, copy):
    tokenizer = copy.path / "tokenizer.model"
    expected = tokenizer.read_bytes()
    damage(tokenizer)
    resume(long_settings, copy.path)
    assert tokenizer.read_bytes() == expected
    os.remove(tokenizer)
    os.remove(copy.path / "corpus" / "tokenizer.model")
    with pytest.raises(InputError, match=f"delete {copy.path}/corpus, then run: .* --resume$"):
        resume(long_settings, copy.path)


def test_text_of_another_tokenizer(long_settings, stopped, tmp_path):
    text = shutil.copytree(long_settings.data, tmp_path / "text")
    stopped.settings["data"] = str(text)
    stopped.finish()
    settings = dataclasses.replace(long_settings, data=str(text))
    shutil.rmtree(stopped.path / "corpus")
    for file in text.glob("*.train.*"):
        file.write_text("abc\n" * 50)
    advice = f"restore the text and delete {stopped.path}/corpus"
    with pytest.raises(InputError, match=f"was trained on other pairs .*: {advice}"):
        resume(settings, stopped.path)


def test_checkpoints_without_their_manifest_are_kept(long_settings, copy):
    (copy.path / "run.json").unlink()
    before = sorted((copy.path / "checkpoints").iterdir())
    with pytest.raises(InputError, match=r"holds checkpoints, but .*/run\.json is missing"):
        resume(long_settings, copy.path)
    assert sorted((copy.path / "checkpoints").iterdir()) == before


# Other devices.


@pytest.mark.distributed
@pytest.mark.usefixtures("compiled")
def test_resumed_on_other_devices(long_settings, tmp_path):
    """One device, then three that take batches in parts, then one: the updates are the same."""
    # Random values depend on the devices. The rates of the paper's schedule are too high here.
    settings = dataclasses.replace(
        long_settings,
        model={**long_settings.model, "dropout_rate": 0.0},
        r_drop=0.0,
        peak_rate=0.003,
    )
    expected = train(settings, tmp_path / "expected")
    killed_after(4, settings, tmp_path / "run")
    mirrored = dataclasses.replace(settings, strategy="mirrored", accumulate=2)
    killed_after(8, mirrored, tmp_path / "run")
    assert Run.load(tmp_path / "run").states[-1].step == 8
    assert_close_runs(resume(settings, tmp_path / "run"), expected)


# Time.


def test_saves_by_minutes(short_settings, tmp_path):
    """Each update takes longer than that."""
    changes = {"steps": 5, "steps_per_validation": 5, "minutes_per_save": 1e-9}
    steps = []

    def note():
        steps.extend(state.step for state in Run.load(tmp_path / "run").states)

    settings = dataclasses.replace(short_settings, **changes)
    train(settings, tmp_path / "run", callbacks=[After(4, note)])
    assert steps == [3, 4]


def test_time_limit_counts_all_calls(short_settings, tmp_path):
    settings = dataclasses.replace(
        short_settings, steps=1, steps_per_validation=1, minutes_per_save=None
    )
    run = train(settings, tmp_path / "run")
    state, _ = run.load_state()
    run.save_state(state._replace(seconds=3599.99), 1)
    limited = dataclasses.replace(settings, steps=9, max_hours=1.0)
    run = resume(limited, tmp_path / "run")
    # A second update takes more than 0.01 s.
    assert (run.last.step, run.status) == (2, "complete")
    assert resume(limited, tmp_path / "run").last.step == 2


# Longer trainings and other settings.


def test_longer_training(short_settings, tmp_path):
    """Two updates, validated every three, then four: metrics of the third are its own."""
    folder = tmp_path / "text"
    shutil.copytree(short_settings.data, folder)
    settings = dataclasses.replace(
        short_settings, steps=2, steps_per_validation=3, data=str(folder)
    )
    run = train(settings, tmp_path / "run")
    average_checkpoints(run, 1)
    shutil.rmtree(folder)  # the prepared corpus suffices
    longer = dataclasses.replace(settings, steps=4)
    run = resume(longer, run.path)
    assert run.averaged is None
    assert not list((run.path / "checkpoints").glob("averaged*"))
    each = dataclasses.replace(short_settings, steps=4, steps_per_validation=1, keep_checkpoints=1)
    expected = train(each, tmp_path / "expected")
    for ours, theirs in zip(weights(run), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [line["step"] for line in run.metrics()] == [2, 3, 4]
    assert run.metrics()[1] == expected.metrics()[2]
    shutil.rmtree(run.path / "corpus")
    run = resume(dataclasses.replace(longer, average_last=1), run.path)
    assert run.averaged.step == 4


def test_another_average_for_a_complete_run(long_settings, copy):
    for last, steps in ((3, [6, 9, 11]), (2, [9, 11])):
        resume(dataclasses.replace(long_settings, average_last=last), copy.path)
        assert Run.load(copy.path).averaged.metrics == {"of_steps": steps}
    resume(dataclasses.replace(long_settings, average_last=0), copy.path)
    assert Run.load(copy.path).averaged is None
    assert not list((copy.path / "checkpoints").glob("averaged*"))


def test_resuming_a_complete_run_changes_nothing(long_settings, copy):
    before = (copy.path / "run.json").read_bytes()
    assert resume(long_settings, copy.path) == copy
    assert (copy.path / "run.json").read_bytes() == before
    del copy.settings["jit"]  # as an older version has written it
    copy.finish()
    assert resume(long_settings, copy.path).settings == long_settings.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup_steps": 4}, "warmup_steps=2, .*: warmup_steps=4"),
        ({"steps": 10}, "`steps` .* 11 .*: steps=10"),
        ({"steps": 12}, "steps=11, .* cooldown.*: steps=12"),
    ],
)
def test_settings_that_must_not_change(long_settings, complete, change, message):
    with pytest.raises(InputError, match=message):
        resume(dataclasses.replace(long_settings, **change), complete.path)


def test_another_name_of_the_same_folder(long_settings, copy, monkeypatch):
    folder, name = os.path.split(long_settings.data)
    monkeypatch.chdir(folder)
    resume(dataclasses.replace(long_settings, data=f"{name}/"), copy.path)
    with pytest.raises(InputError, match=r"with data='.*', which cannot change"):
        resume(dataclasses.replace(long_settings, data="."), copy.path)


# Run directories that are refused, and what is left of them.


def test_run_directory_in_use(tiny_settings, tmp_path):
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(InputError, match="Another call is writing"):
        train(tiny_settings, tmp_path / "run")
    (tmp_path / "thesis.txt").write_text("years of work")
    for path, message in (
        ("", "exists and is not empty: choose"),
        ("thesis.txt", "is a file, not a folder"),
    ):
        with pytest.raises(InputError, match=message):
            train(tiny_settings, tmp_path / path)
    with pytest.raises(InputError, match="is not a run directory"):
        resume(tiny_settings, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_bad_input_leaves_a_directory_as_it_was(short_settings, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    nowhere = dataclasses.replace(short_settings, data="nowhere")
    for name in ("here", "link", "new"):
        with pytest.raises(InputError, match=r"There is no folder .*/nowhere"):
            train(nowhere, tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "link"]


def test_a_prepared_corpus_outlives_a_failure(short_settings, tmp_path, monkeypatch):
    def fail(*args):
        raise InputError("Cannot write run.json: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "create", fail)
        with pytest.raises(InputError, match="No space left"):
            train(short_settings, tmp_path / "run")
    assert (tmp_path / "run" / "corpus" / "corpus.json").is_file()
    with pytest.raises(InputError, match="continue it with --resume"):
        train(short_settings, tmp_path / "run")


def test_patience_needs_validation(short_settings, tmp_path):
    with pytest.raises(InputError, match=r"`patience` needs a validation split.*: patience=2$"):
        train(dataclasses.replace(short_settings, patience=2), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
