"""Interrupted and continued trainings: each ends as a training without interruption."""

import contextlib
import dataclasses
import os
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
from close_runs import assert_close_runs
from eager import eagerly

from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.files import locked
from keras_transformer.run import Run
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.fitting import training
from keras_transformer.trainers.fitting.averaging import average_checkpoints
from keras_transformer.trainers.fitting.callbacks import stop_signals

# The training is killed just before these files take their place.
KILLS = ["step-00000006.weights.h5", "state-00000006.npz"]
KILLS += ["averaged-00000006-00000008-2.weights.h5"]


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


def train(*args, compiled=False, **kwargs):
    with contextlib.nullcontext() if compiled else eagerly():
        return training.train(*args, verbose=0, **kwargs)


def resume(settings, path, **kwargs):
    return train(settings, path, resume=True, **kwargs)


@contextlib.contextmanager
def before_each_file(function):
    """Calls a function with the path that a file is about to take."""
    real = os.replace

    def replace(source, target):
        function(Path(target))
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        yield


def kill():
    raise KilledError


@pytest.fixture(scope="module")
def settings(short_settings):
    """All that has a state: dropout, the optimizer, a moving average, two passes, clipping."""
    return dataclasses.replace(
        short_settings,
        steps=8,
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
    """Copies of the complete training's directory, as a kill would have left it."""
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="module")
def complete(settings, snapshots, tmp_path_factory):
    """The training without interruption."""
    path = tmp_path_factory.mktemp("complete")

    def snapshot(file):
        if path in file.parents and file.name in KILLS and not (snapshots / file.name).exists():
            shutil.copytree(path, snapshots / file.name)

    update_7 = After(7, lambda: shutil.copytree(path, snapshots / "update 7"))
    with before_each_file(snapshot):
        run = train(settings, path, callbacks=[update_7])
    assert [line["step"] for line in run.metrics()] == [3, 6, 8]
    assert [checkpoint.step for checkpoint in run.checkpoints] == [3, 6, 8]
    assert [state.step for state in run.states] == [6, 8]
    return run


@pytest.fixture
def copy(complete, tmp_path):
    """A copy of `complete`, which a test may change."""
    return Run.load(shutil.copytree(complete.path, tmp_path / "copy"))


def stop_by_signal(number, after, settings, path, **kwargs):
    """Stops a training by a signal after an update; returns the step that it has saved."""
    before = signal.getsignal(number)
    send = After(after, lambda: os.kill(os.getpid(), number))
    with pytest.raises(TrainingStoppedError, match=f"Stopped by {number.name}") as caught:
        train(settings, path, callbacks=[send], **kwargs)
    assert caught.value.status == 128 + number
    assert signal.getsignal(number) == before
    step = Run.load(path).states[-1].step
    assert f"after {step} updates" in str(caught.value)
    return step


@pytest.fixture(scope="module")
def stopped_once(settings, tmp_path_factory):
    path = tmp_path_factory.mktemp("stopped") / "run"
    assert stop_by_signal(signal.SIGINT, 4, settings, path) == 5
    return path


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A training with states after 4 and 5 updates, stopped by a signal."""
    run = Run.load(shutil.copytree(stopped_once, tmp_path / "stopped"))
    assert [state.step for state in run.states] == [4, 5]
    return run


def weights(run, checkpoint="last"):
    return [weight.numpy() for weight in run.model(checkpoint).weights]


def assert_same_run(actual, expected):
    """Bit for bit: weights, metrics, and which checkpoints are kept, best and averaged."""
    assert actual.status == expected.status == "complete"
    assert actual.metrics() == expected.metrics()
    for kind in ("checkpoints", "states"):
        steps = [[saved.step for saved in getattr(run, kind)] for run in (actual, expected)]
        assert steps[0] == steps[1]
    assert actual.best.step == expected.best.step
    for checkpoint in ("last", "best", "averaged"):
        for ours, theirs in zip(
            weights(actual, checkpoint), weights(expected, checkpoint), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    kept = (*actual.checkpoints, *actual.states, actual.best, actual.averaged)
    files = {f"checkpoints/{path.name}" for path in (actual.path / "checkpoints").iterdir()}
    assert files == {saved.file for saved in kept}


# Kills and signals.


@pytest.mark.parametrize("file", KILLS)
def test_killed_while_writing(settings, complete, snapshots, file):
    assert_same_run(resume(settings, snapshots / file), complete)


@pytest.mark.distributed
def test_killed_while_resuming(settings, complete, snapshots):
    """After the seventh update, then before each of the files that resuming writes first."""
    path = snapshots / "update 7"
    assert Run.load(path).states[-1].step == 6
    for name in ("run.json", "metrics.jsonl", "step-00000008.weights.h5"):
        with (
            before_each_file(lambda file, name=name: file.name == name and kill()),
            pytest.raises(KilledError),
        ):
            resume(settings, path)
    assert_same_run(resume(settings, path), complete)


def test_killed_before_there_is_a_manifest(short_settings, tmp_path):
    prepare(short_settings, tmp_path / "corpus")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "tokenizer.model").write_bytes(b"half")
    settings = dataclasses.replace(short_settings, steps=1, data=str(tmp_path / "corpus"))
    assert resume(settings, tmp_path / "run").status == "complete"


def test_signals_save_and_stop(settings, complete, stopped):
    assert_same_run(resume(settings, stopped.path), complete)


@pytest.mark.distributed
def test_signal_before_a_validation_of_a_compiled_training(settings, tmp_path):
    expected = train(settings, tmp_path / "expected", compiled=True)
    run = tmp_path / "run"
    assert stop_by_signal(signal.SIGTERM, 5, settings, run, compiled=True) == 6
    assert_same_run(resume(settings, run, compiled=True), expected)


def test_a_second_signal_has_its_usual_effect():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with stop_signals() as received:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (received, seen) == ({signal.SIGTERM}, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.distributed
def test_resumed_on_other_devices(settings, tmp_path):
    """One device, then three that take batches in parts, then one: the updates are the same."""
    # Random values depend on the devices. The rates of the paper's schedule are too high here.
    settings = dataclasses.replace(
        settings, model={**settings.model, "dropout_rate": 0.0}, r_drop=0.0, peak_rate=0.003
    )
    mirrored = dataclasses.replace(settings, strategy="mirrored", accumulate=2)
    expected = train(settings, tmp_path / "expected")
    for step, changed, compiled in ((4, settings, False), (7, mirrored, True)):
        with pytest.raises(KilledError):
            resume(changed, tmp_path / "run", compiled=compiled, callbacks=[After(step, kill)])
    assert Run.load(tmp_path / "run").states[-1].step == 6
    assert_close_runs(resume(settings, tmp_path / "run"), expected)


# Damaged and missing files.


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_damaged_files(settings, complete, stopped, caplog):
    caplog.set_level("INFO")
    path = stopped.path
    other = shutil.copytree(path, path.with_name("other"))
    damage(path / stopped.states[-1].file)
    (path / "metrics.jsonl").unlink()
    shutil.rmtree(path / "corpus")  # it is prepared again
    assert_same_run(resume(settings, path), complete)
    for text in (
        "state-00000005.npz is damaged",
        "Resumed after 4 updates",
        "metrics.jsonl is missing: only the metrics",
    ):
        assert text in caplog.text
    for state in stopped.states:
        damage(other / state.file)
    with pytest.raises(InputError, match=r"state-00000004\.npz is damaged.* no other state"):
        resume(settings, other)


def test_state_of_another_model(settings, stopped):
    state, step = stopped.load_state()
    name = "optimizer/adam/embedding_token_embedding_embeddings_momentum"
    state.arrays[name] = state.arrays[name][:-1]
    stopped.save_state(state, step)
    with pytest.raises(InputError, match=r"/state-\d{8}\.npz does not hold the training state"):
        resume(settings, stopped.path)


def test_a_lost_tokenizer_is_that_of_the_corpus(settings, copy):
    tokenizer = copy.path / "tokenizer.model"
    expected = tokenizer.read_bytes()
    damage(tokenizer)
    resume(settings, copy.path)
    assert tokenizer.read_bytes() == expected
    os.remove(tokenizer)
    os.remove(copy.path / "corpus" / "tokenizer.model")
    with pytest.raises(InputError, match=f"delete {copy.path}/corpus, then run: .* --resume$"):
        resume(settings, copy.path)


def test_other_text(settings, stopped, tmp_path):
    text = shutil.copytree(settings.data, tmp_path / "text")
    stopped.settings["data"] = str(text)
    stopped.finish()
    shutil.rmtree(stopped.path / "corpus")
    for file in text.glob("*.train.*"):
        file.write_text("abc\n" * 50)
    advice = f"restore the text and delete {stopped.path}/corpus"
    with pytest.raises(InputError, match=f"was trained on other pairs .*: {advice}"):
        resume(dataclasses.replace(settings, data=str(text)), stopped.path)


def test_checkpoints_without_their_manifest_are_kept(settings, copy):
    (copy.path / "run.json").unlink()
    before = sorted((copy.path / "checkpoints").iterdir())
    with pytest.raises(InputError, match=r"holds checkpoints, but .*/run\.json is missing"):
        resume(settings, copy.path)
    assert sorted((copy.path / "checkpoints").iterdir()) == before


# Time, longer trainings and other settings.


def test_saves_by_minutes(short_settings, tmp_path):
    """Each update takes longer than that."""
    steps = []
    note = After(2, lambda: steps.extend(s.step for s in Run.load(tmp_path / "run").states))
    changes = {"steps": 3, "steps_per_validation": 3, "minutes_per_save": 1e-9}
    train(dataclasses.replace(short_settings, **changes), tmp_path / "run", callbacks=[note])
    assert steps == [1, 2]


def test_time_limit_counts_all_calls(short_settings, tmp_path):
    settings = dataclasses.replace(short_settings, steps=1, steps_per_validation=1)
    run = train(settings, tmp_path / "run")
    state, _ = run.load_state()
    run.save_state(state._replace(seconds=3599.99), 1)
    limited = dataclasses.replace(settings, steps=9, max_hours=1.0)
    run = resume(limited, tmp_path / "run")
    # A second update takes more than 0.01 s.
    assert (run.last.step, run.status) == (2, "complete")
    assert resume(limited, tmp_path / "run").last.step == 2


def test_longer_training(short_settings, tmp_path):
    """Two updates, validated every three, then four: metrics of the third are its own."""
    text = shutil.copytree(short_settings.data, tmp_path / "text")
    settings = dataclasses.replace(short_settings, steps=2, steps_per_validation=3, data=str(text))
    run = train(settings, tmp_path / "run")
    average_checkpoints(run, 1)
    shutil.rmtree(text)  # the prepared corpus suffices
    run = resume(dataclasses.replace(settings, steps=4), run.path)
    assert run.averaged is None
    assert not list((run.path / "checkpoints").glob("averaged*"))
    every_step = dataclasses.replace(short_settings, steps=4, steps_per_validation=1)
    expected = train(every_step, tmp_path / "expected")
    for ours, theirs in zip(weights(run), weights(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [line["step"] for line in run.metrics()] == [2, 3, 4]
    assert run.metrics()[1] == expected.metrics()[2]


def test_a_complete_run(settings, copy, monkeypatch):
    before = (copy.path / "run.json").read_bytes()
    assert resume(settings, copy.path) == copy
    folder, name = os.path.split(settings.data)
    monkeypatch.chdir(folder)
    resume(dataclasses.replace(settings, data=f"{name}/"), copy.path)
    assert (copy.path / "run.json").read_bytes() == before
    for last, steps in ((3, [3, 6, 8]), (2, [6, 8])):
        resume(dataclasses.replace(settings, average_last=last), copy.path)
        assert Run.load(copy.path).averaged.metrics == {"of_steps": steps}
    resume(dataclasses.replace(settings, average_last=0), copy.path)
    assert Run.load(copy.path).averaged is None
    assert not list((copy.path / "checkpoints").glob("averaged*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup_steps": 4}, "warmup_steps=2, .*: warmup_steps=4"),
        ({"steps": 7}, "`steps` .* 8 .*: steps=7"),
        ({"steps": 12}, "steps=8, .* cooldown.*: steps=12"),
        ({"data": "."}, "with data='.*', which cannot change"),
    ],
)
def test_settings_that_must_not_change(settings, complete, change, message):
    with pytest.raises(InputError, match=message):
        resume(dataclasses.replace(settings, **change), complete.path)


# Run directories that are refused, and what is left of them.


def test_run_directory_in_use(short_settings, tmp_path):
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(InputError, match="Another call is writing"):
        train(short_settings, tmp_path / "run")
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not empty: choose"):
        train(short_settings, tmp_path)
    with pytest.raises(InputError, match="is a file, not a folder"):
        train(short_settings, tmp_path / "thesis.txt")
    with pytest.raises(InputError, match="is not a run directory"):
        resume(short_settings, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_bad_input_leaves_a_directory_as_it_was(short_settings, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    nowhere = dataclasses.replace(short_settings, data="nowhere")
    for name in ("here", "link", "new"):
        with pytest.raises(InputError, match=r"There is no folder .*/nowhere"):
            train(nowhere, tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "link"]


def test_a_prepared_corpus_outlives_a_failure(short_settings, tmp_path):
    with pytest.raises(InputError, match=r"`patience` needs a validation split.*: patience=2$"):
        train(dataclasses.replace(short_settings, patience=2), tmp_path / "run")
    assert (tmp_path / "run" / "corpus" / "corpus.json").is_file()
    with pytest.raises(InputError, match="continue it with --resume"):
        train(short_settings, tmp_path / "run")
