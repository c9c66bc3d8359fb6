"""Interrupted trainings: at any moment, by any means, the end is that of an uninterrupted one."""

import dataclasses
import os
import re
import shutil
import signal

import numpy as np
import pytest

from keras_transformer import run as run_module
from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.run import Run
from keras_transformer.trainers import training
from keras_transformer.trainers.callbacks import SaveRun, StepLimit, StopSignals
from keras_transformer.trainers.preparation import prepare
from keras_transformer.trainers.prepared import TokenizedPairs
from keras_transformer.trainers.training import train


@pytest.fixture(scope="module")
def long_settings(short_settings):
    """All that has a state: dropout, the optimizer, a moving average, two passes, clipping.

    The rate depends on the step alone, and the cooldown begins amid the training.
    """
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
def whole(long_settings, tmp_path_factory):
    """The training that nothing interrupts."""
    return train(long_settings, tmp_path_factory.mktemp("whole"), verbose=0)


class KilledError(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def weights(run, checkpoint="last"):
    return [weight.numpy() for weight in run.model(checkpoint).weights]


def assert_same_run(actual, expected):
    """Bit for bit: weights, metrics, and which checkpoints are kept, best and averaged."""
    assert actual.status == expected.status == "complete"
    assert actual.metrics() == expected.metrics()
    assert [kept.step for kept in actual.checkpoints] == [
        kept.step for kept in expected.checkpoints
    ]
    assert [state.step for state in actual.states] == [state.step for state in expected.states]
    assert actual.best.step == expected.best.step
    for checkpoint in ("last", "best", "averaged"):
        for ours, theirs in zip(
            weights(actual, checkpoint), weights(expected, checkpoint), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    named = {kept.file for kept in (*actual.checkpoints, *actual.states, actual.best)}
    named.add(actual.averaged.file)
    files = {f"checkpoints/{path.name}" for path in (actual.path / "checkpoints").iterdir()}
    assert files == named


def test_the_uninterrupted_run(whole):
    assert [line["step"] for line in whole.metrics()] == [3, 6, 9, 11]
    assert [kept.step for kept in whole.checkpoints] == [6, 9, 11]
    assert [state.step for state in whole.states] == [10, 11]


# Killed.


NUM_FILES = 25  # that a whole training puts in their places, corpus excluded
QUICK = (4,)  # a checkpoint; `make test-distributed` has all of them


@pytest.mark.parametrize(
    "replaced",
    [
        n if n in QUICK else pytest.param(n, marks=pytest.mark.distributed)
        for n in range(NUM_FILES + 1)
    ],
)
def test_killed_while_writing(long_settings, whole, tmp_path, monkeypatch, replaced):
    """Before and after any file takes its place: manifest, checkpoint, state, metrics, average."""
    real, calls = os.replace, []

    def replace(source, target):
        if str(target).startswith(str(tmp_path / "run")) and "corpus" not in str(target):
            calls.append(target)
            if len(calls) > replaced:
                raise KilledError
        real(source, target)

    monkeypatch.setattr(run_module.os, "replace", replace)
    killed = False
    try:
        train(long_settings, tmp_path / "run", verbose=0)
    except KilledError:
        killed = True
    assert killed == (replaced < NUM_FILES)
    monkeypatch.undo()
    assert_same_run(train(long_settings, tmp_path / "run", verbose=0, resume=True), whole)


@pytest.mark.distributed
def test_killed_while_resuming(long_settings, whole, tmp_path, monkeypatch):
    """After the seventh update, then before each of the files that resuming writes first."""
    real_end, real_replace = StepLimit.on_train_batch_end, os.replace

    def kill(limit, batch, logs=None):
        if limit.step == 7:
            raise KilledError
        real_end(limit, batch, logs)

    monkeypatch.setattr(StepLimit, "on_train_batch_end", kill)
    with pytest.raises(KilledError):
        train(long_settings, tmp_path / "run", verbose=0)
    monkeypatch.undo()
    for name in ("run.json", "metrics.jsonl", "state-00000008.npz"):

        def replace(source, target, name=name):
            if str(target).endswith(name):
                raise KilledError
            real_replace(source, target)

        monkeypatch.setattr(run_module.os, "replace", replace)
        with pytest.raises(KilledError):
            train(long_settings, tmp_path / "run", verbose=0, resume=True)
        monkeypatch.undo()
    assert_same_run(train(long_settings, tmp_path / "run", verbose=0, resume=True), whole)


@pytest.mark.parametrize("torn", [False, True])
def test_killed_before_anything_is_saved(short_settings, tmp_path, monkeypatch, torn):
    """Metrics are written, and no state yet."""
    settings = dataclasses.replace(short_settings, steps=4)

    def kill(run, *args, **kwargs):
        raise KilledError

    monkeypatch.setattr(Run, "save_checkpoint", kill)
    with pytest.raises(KilledError):
        train(settings, tmp_path / "run", verbose=0)
    monkeypatch.undo()
    if torn:
        lines = tmp_path / "run" / "metrics.jsonl"
        lines.write_bytes(lines.read_bytes()[:-9])
    run = train(settings, tmp_path / "run", verbose=0, resume=True)
    assert [line["step"] for line in run.metrics()] == [3, 4]


@pytest.mark.parametrize("made", [set(), {"tokenizer.model"}, {"tokenizer.model", "checkpoints"}])
def test_killed_before_there_is_a_manifest(short_settings, tmp_path, made):
    """Of a corpus that was prepared once and for all elsewhere."""
    prepare(short_settings, tmp_path / "corpus")
    (tmp_path / "run").mkdir()
    if "tokenizer.model" in made:
        (tmp_path / "run" / "tokenizer.model").write_bytes(b"half")
    if "checkpoints" in made:
        (tmp_path / "run" / "checkpoints").mkdir()
    settings = dataclasses.replace(short_settings, data=str(tmp_path / "corpus"))
    assert train(settings, tmp_path / "run", verbose=0, resume=True).status == "complete"


def test_killed_after_an_update(long_settings, whole, tmp_path, monkeypatch):
    real = StepLimit.on_train_batch_end

    def kill(limit, batch, logs=None):
        if limit.step == 7:
            raise KilledError
        real(limit, batch, logs)

    monkeypatch.setattr(StepLimit, "on_train_batch_end", kill)
    with pytest.raises(KilledError):
        train(long_settings, tmp_path / "run", verbose=0)
    monkeypatch.undo()
    assert Run.load(tmp_path / "run").states[-1].step == 6
    assert_same_run(train(long_settings, tmp_path / "run", verbose=0, resume=True), whole)


@pytest.mark.parametrize(
    "strategy", ["one", pytest.param("mirrored", marks=pytest.mark.distributed)]
)
def test_kill_between_the_last_update_and_the_end(short_settings, tmp_path, monkeypatch, strategy):
    settings = dataclasses.replace(short_settings, steps=3, average_last=1, strategy=strategy)

    def kill(run, last):
        raise KilledError

    monkeypatch.setattr(training, "average_checkpoints", kill)
    with pytest.raises(KilledError):
        train(settings, tmp_path / "run", verbose=0)
    monkeypatch.undo()
    run = train(settings, tmp_path / "run", verbose=0, resume=True)
    assert (run.status, run.last.step, run.averaged.step) == ("complete", 3, 3)


# Told to stop.


@pytest.mark.parametrize(
    ("number", "step"),
    [
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.distributed),
        (signal.SIGINT, 5),
        pytest.param(signal.SIGTERM, 6, marks=pytest.mark.distributed),
    ],
)
def test_signals_save_and_stop(long_settings, whole, tmp_path, monkeypatch, number, step):
    """After the update at hand; where a validation follows, after that."""
    real = SaveRun.on_train_batch_end

    def send(callback, batch, logs=None):
        if callback.limit.step == step:
            os.kill(os.getpid(), number)
        real(callback, batch, logs)

    before = signal.getsignal(number)
    monkeypatch.setattr(SaveRun, "on_train_batch_end", send)
    with pytest.raises(
        TrainingStoppedError, match=f"Stopped by {number.name} after {step} up"
    ) as e:
        train(long_settings, tmp_path / "run", verbose=0)
    monkeypatch.undo()
    assert e.value.status == 128 + number
    assert signal.getsignal(number) == before
    assert Run.load(tmp_path / "run").states[-1].step == step
    assert_same_run(train(long_settings, tmp_path / "run", verbose=0, resume=True), whole)


def test_a_second_signal_has_its_usual_effect(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.received == {signal.SIGTERM}
            assert not seen
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


# Damaged files.


@pytest.fixture
def stopped(long_settings, tmp_path, monkeypatch):
    """A training with states after 6 and 8 updates, killed after the eighth."""
    real = SaveRun.on_train_batch_end

    def kill(callback, batch, logs=None):
        real(callback, batch, logs)
        if callback.limit.step == 8:
            raise KilledError

    monkeypatch.setattr(SaveRun, "on_train_batch_end", kill)
    with pytest.raises(KilledError):
        train(long_settings, tmp_path / "stopped", verbose=0)
    monkeypatch.undo()
    run = Run.load(tmp_path / "stopped")
    assert [state.step for state in run.states] == [6, 8]
    return run


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", [damage, os.remove])
def test_damaged_state_gives_way_to_the_one_before(long_settings, whole, stopped, caplog, how):
    caplog.set_level("INFO")
    how(stopped.path / stopped.states[-1].file)
    run = train(long_settings, stopped.path, verbose=0, resume=True)
    assert "state-00000008.npz is " in caplog.text
    assert "Resumed after 6 updates" in caplog.text
    assert_same_run(run, whole)


def test_no_whole_state(long_settings, stopped):
    for state in stopped.states:
        damage(stopped.path / state.file)
    before = {path: path.read_bytes() for path in stopped.path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"state-00000006\.npz is damaged: its SHA-256 is not"):
        train(long_settings, stopped.path, verbose=0, resume=True)
    assert before == {path: path.read_bytes() for path in before}


def test_state_of_another_model(long_settings, stopped):
    state, step = stopped.load_state()
    state.arrays["00000"] = state.arrays["00000"][:-1]
    stopped.save_state(state, step)
    with pytest.raises(
        InputError,
        match=r"/state-\d{8}\.npz: The training state is of another model: its \d+ arrays",
    ):
        train(long_settings, stopped.path, verbose=0, resume=True)


@pytest.mark.parametrize("part", [pytest.param("record", marks=pytest.mark.distributed), "index"])
def test_damaged_corpus(long_settings, stopped, whole, part):
    shard = stopped.path / "corpus" / "train-00000.array_record"
    data = bytearray(shard.read_bytes())
    # Riegeli's last block begins at 64 KiB, and holds the index.
    source, _ = TokenizedPairs(shard.parent, "train").read([7])[0]
    data[data.index(source.tobytes()) if part == "record" else 2**16] ^= 1
    shard.write_bytes(data)
    again = re.escape(f"): delete {shard.parent} and prepare it again")
    with pytest.raises(InputError, match=rf"^{re.escape(str(shard))} is damaged \([^\n]+{again}$"):
        train(long_settings, stopped.path, verbose=0, resume=True)
    shutil.rmtree(shard.parent)
    assert_same_run(train(long_settings, stopped.path, verbose=0, resume=True), whole)


# On other devices.


@pytest.mark.distributed
def test_resumed_on_other_devices(long_settings, tmp_path, monkeypatch):
    """One device, then three that take batches in parts, then one: the updates are the same."""
    # What is random depends on the devices. Rates of the paper's schedule are far too high here.
    settings = dataclasses.replace(
        long_settings,
        model={**long_settings.model, "dropout_rate": 0.0},
        r_drop=0.0,
        peak_rate=0.003,
    )
    expected = train(settings, tmp_path / "expected", verbose=0)
    for steps, changes in (
        (4, {}),
        (8, {"strategy": "mirrored", "accumulate": 2}),
        (11, {}),
    ):
        changed = dataclasses.replace(settings, **changes)
        real = SaveRun.on_train_batch_end

        def stop(callback, batch, logs=None, steps=steps, real=real):
            if callback.limit.step == steps:
                callback.signals.received.add(signal.SIGTERM)
            real(callback, batch, logs)

        monkeypatch.setattr(SaveRun, "on_train_batch_end", stop)
        try:
            run = train(changed, tmp_path / "run", verbose=0, resume=True)
        except TrainingStoppedError:
            assert Run.load(tmp_path / "run").states[-1].step == steps
        monkeypatch.undo()
    assert run.status == "complete"
    for ours, theirs in zip(run.model("last").weights, expected.model("last").weights, strict=True):
        if not theirs.path.endswith("key/bias"):  # whose gradient is rounding error
            largest = np.abs(theirs).max()
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)
    for ours, theirs in zip(run.metrics(), expected.metrics(), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


# Time.


def test_saves_by_minutes(short_settings, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.trainers.callbacks.time.monotonic", Clock().read)
    saved = []
    real = Run.save_state

    def save(run, state, step):
        saved.append(step)
        real(run, state, step)

    monkeypatch.setattr(Run, "save_state", save)
    settings = dataclasses.replace(
        short_settings, steps=7, steps_per_validation=7, minutes_per_save=0.9
    )
    train(settings, tmp_path / "run", verbose=0)
    assert 2 <= len(saved) <= 5


class Clock:
    """Twenty seconds pass whenever it is looked at."""

    def __init__(self):
        self.now = 0.0

    def read(self):
        self.now += 20.0
        return self.now


def test_time_limit_counts_all_calls(short_settings, tmp_path, monkeypatch):
    settings = dataclasses.replace(
        short_settings, steps=9, steps_per_validation=1, minutes_per_save=None
    )
    stopping = dataclasses.replace(settings, steps=1)
    train(stopping, tmp_path / "run", verbose=0)
    run = Run.load(tmp_path / "run")
    state, _ = run.load_state()
    run.save_state(state._replace(seconds=3599.9), 1)
    limited = dataclasses.replace(settings, max_hours=1.0)
    run = train(limited, tmp_path / "run", verbose=0, resume=True)
    # A second update takes more than 0.1 s: it is compiled.
    assert (run.last.step, run.status) == (2, "complete")
    assert train(limited, tmp_path / "run", verbose=0, resume=True).last.step == 2
