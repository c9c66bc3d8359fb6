"""Another call on a run directory: what goes on, and what is refused and leaves it as it was."""

import dataclasses
import json
import shutil
import signal

import numpy as np
import pytest

from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.files import locked
from keras_transformer.run import Run
from keras_transformer.trainers import preparation, training
from keras_transformer.trainers.callbacks import SaveRun
from keras_transformer.trainers.prepared import corpus_folder
from keras_transformer.trainers.training import train


@pytest.fixture
def stop_at(monkeypatch):
    """Returns a function that trains until an update, saves and stops."""

    def stop_at(step, settings, path):
        real = SaveRun.on_train_batch_end

        def stop(callback, batch, logs=None):
            if callback.limit.step == step:
                callback.signals.received.add(signal.SIGTERM)
            real(callback, batch, logs)

        with monkeypatch.context() as patch:
            patch.setattr(SaveRun, "on_train_batch_end", stop)
            with pytest.raises(TrainingStoppedError):
                train(settings, path, verbose=0)
        return Run.load(path)

    return stop_at


def test_no_more_updates_than_are_saved(short_settings, tmp_path, stop_at):
    settings = dataclasses.replace(short_settings, steps=9, steps_per_validation=4)
    run = stop_at(6, settings, tmp_path / "run")
    before = (run.path / "run.json").read_bytes()
    for steps in (5, 6):
        message = f"`steps` must be more than the 6 updates that .* Received: steps={steps}"
        with pytest.raises(InputError, match=message):
            train(dataclasses.replace(settings, steps=steps), run.path, verbose=0, resume=True)
        assert (run.path / "run.json").read_bytes() == before
    seven = dataclasses.replace(settings, steps=7)
    assert train(seven, run.path, verbose=0, resume=True).last.step == 7


def test_state_of_an_earlier_validation(short_settings, tmp_path):
    """Whose checkpoint is there no longer: metrics begin anew all the same."""
    settings = dataclasses.replace(short_settings, steps=4, steps_per_validation=2)
    run = train(settings, tmp_path / "run", verbose=0)
    assert [state.step for state in run.states] == [2, 4]
    (run.path / run.states[-1].file).write_bytes(b"")
    longer = dataclasses.replace(settings, steps=6)
    run = train(longer, run.path, verbose=0, resume=True)
    assert run.metrics() == train(longer, tmp_path / "at_once", verbose=0).metrics()


def test_a_run_that_another_training_writes(short_settings, tmp_path, stop_at):
    settings = dataclasses.replace(short_settings, steps=3)
    run = stop_at(1, settings, tmp_path / "run")
    refused = pytest.raises(InputError, match="Another call is writing")
    with locked(run.path), refused:
        train(settings, run.path, verbose=0, resume=True)
    assert train(settings, run.path, verbose=0, resume=True).status == "complete"


def test_another_average_for_a_complete_run(short_settings, tmp_path):
    settings = dataclasses.replace(
        short_settings, steps=3, steps_per_validation=1, keep_checkpoints=3, average_last=3
    )
    run = train(settings, tmp_path / "run", verbose=0)
    assert run.averaged.metrics == {"of_steps": [1, 2, 3]}
    run = train(dataclasses.replace(settings, average_last=2), run.path, verbose=0, resume=True)
    assert Run.load(run.path).averaged.metrics == {"of_steps": [2, 3]}
    assert Run.load(run.path).settings["average_last"] == 2
    none = dataclasses.replace(settings, average_last=0)
    train(none, run.path, verbose=0, resume=True)
    assert Run.load(run.path).averaged is None
    assert not list((run.path / "checkpoints").glob("averaged*"))


def test_keeping_more_checkpoints(short_settings, tmp_path, stop_at):
    settings = dataclasses.replace(short_settings, steps=4, steps_per_validation=2)
    run = stop_at(1, settings, tmp_path / "run")
    more = dataclasses.replace(settings, keep_checkpoints=2, average_last=2)
    run = train(more, run.path, verbose=0, resume=True)
    assert run.averaged.metrics == {"of_steps": [2, 4]}


def test_what_fails_leaves_a_directory_as_it_was(short_settings, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    monkeypatch.chdir(tmp_path / "here")
    nowhere = dataclasses.replace(short_settings, data="nowhere")
    for path in (".", tmp_path / "here", tmp_path / "link", tmp_path / "new"):
        with pytest.raises(InputError, match="There is no folder nowhere"):
            train(nowhere, path, verbose=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link"]
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    "failing", [(Run, "create"), (preparation, "_write_shard")], ids=["create", "shard"]
)
def test_what_was_prepared_outlives_a_failure(short_settings, tmp_path, monkeypatch, failing):
    def fail(*args):
        raise InputError("Cannot write run.json: No space left on device") from OSError()

    with monkeypatch.context() as patch:
        patch.setattr(*failing, fail)
        with pytest.raises(InputError, match="No space left"):
            train(short_settings, tmp_path / "run", verbose=0)
    assert (tmp_path / "run" / "corpus" / "corpus.json").is_file()
    with pytest.raises(InputError, match="go on with it by --resume"):
        train(short_settings, tmp_path / "run", verbose=0)
    run = train(short_settings, tmp_path / "run", verbose=0, resume=True)
    assert run.status == "complete"


@pytest.mark.distributed
def test_more_updates_for_a_complete_run(short_settings, tmp_path):
    train(dataclasses.replace(short_settings, steps=3), tmp_path / "run", verbose=0)
    longer = dataclasses.replace(short_settings, steps=8)
    run = train(longer, tmp_path / "run", verbose=0, resume=True)
    assert [line["step"] for line in run.metrics()] == [3, 6, 8]
    expected = train(longer, tmp_path / "at_once", verbose=0)
    ours, theirs = (each.model("last").get_weights() for each in (run, expected))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.distributed
def test_a_longer_training_logs_its_own_metrics(tiny_settings, tmp_path):
    """Five updates, validated every three, then eight: the sixth is logged alone."""
    train(tiny_settings, tmp_path / "run", verbose=0)
    longer = dataclasses.replace(tiny_settings, steps=8)
    run = train(longer, tmp_path / "run", verbose=0, resume=True)
    each = dataclasses.replace(longer, steps_per_validation=1)
    expected = train(each, tmp_path / "each", verbose=0)
    assert [line["step"] for line in run.metrics()] == [3, 5, 6, 8]
    assert run.metrics()[2] == expected.metrics()[5]


def test_resuming_a_complete_run_changes_nothing(tiny_run, tiny_settings):
    before = (tiny_run.path / "run.json").read_bytes()
    assert train(tiny_settings, tiny_run.path, verbose=0, resume=True) == tiny_run
    assert (tiny_run.path / "run.json").read_bytes() == before


def test_resuming_with_other_settings(tiny_run, tiny_settings):
    other = dataclasses.replace(tiny_settings, warmup_steps=4)
    with pytest.raises(InputError, match=r"with warmup_steps=3, .* Received: warmup_steps=4"):
        train(other, tiny_run.path, verbose=0, resume=True)


def test_resuming_a_cooldown_with_more_updates(short_settings, tmp_path):
    settings = dataclasses.replace(short_settings, steps=3, cooldown=0.5)
    train(settings, tmp_path / "run", verbose=0)
    longer = dataclasses.replace(settings, steps=4)
    message = r"with steps=3, .* because it ends with a cooldown. Received: steps=4"
    with pytest.raises(InputError, match=message):
        train(longer, tmp_path / "run", verbose=0, resume=True)


@pytest.mark.parametrize("value", [None, 0.5])
def test_resuming_a_run_that_is_older_than_a_setting(short_settings, tmp_path, value):
    """What it does not name had the default."""
    run = train(dataclasses.replace(short_settings, steps=3), tmp_path / "run", verbose=0)
    for file, settings in (("run.json", "settings"), ("corpus/corpus.json", "made_from")):
        path = run.path / file
        manifest = json.loads(path.read_text())
        for name in ("cooldown", "lowercase"):
            manifest[settings].pop(name, None)
        path.write_text(json.dumps(manifest))
    longer = dataclasses.replace(short_settings, steps=4)
    if value is None:
        assert train(longer, run.path, verbose=0, resume=True).last.step == 4
    else:
        other = dataclasses.replace(short_settings, steps=3, cooldown=value)
        with pytest.raises(InputError, match=r"with cooldown=0.0, .* Received: cooldown=0.5"):
            train(other, run.path, verbose=0, resume=True)


def test_resuming_with_another_vocabulary(tiny_run, tiny_settings):
    other = dataclasses.replace(tiny_settings, vocab_size=291)
    with pytest.raises(InputError, match=r"with vocab_size=290, .* Received: vocab_size=291"):
        train(other, tiny_run.path, verbose=0, resume=True)


def test_training_on_makes_an_old_average_void(short_settings, tmp_path):
    run = train(dataclasses.replace(short_settings, steps=3), tmp_path / "run", verbose=0)
    training.average_checkpoints(run, 1)
    assert Run.load(run.path).checkpoint().step == 3
    longer = dataclasses.replace(short_settings, steps=6)
    run = train(longer, tmp_path / "run", verbose=0, resume=True)
    assert run.averaged is None
    assert run.checkpoint().step == 6
    assert not list((run.path / "checkpoints").glob("averaged*"))


def test_checkpoints_without_their_manifest_are_kept(short_settings, tmp_path):
    run = train(short_settings, tmp_path / "run", verbose=0)
    (run.path / "run.json").unlink()
    before = sorted((run.path / "checkpoints").iterdir())
    with pytest.raises(InputError, match=r"holds checkpoints, but .*/run\.json is missing"):
        train(short_settings, tmp_path / "run", verbose=0, resume=True)
    assert sorted((run.path / "checkpoints").iterdir()) == before


def test_half_a_line_of_metrics_is_made_again(short_settings, tmp_path):
    run = train(short_settings, tmp_path / "run", verbose=0)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"st')
    longer = dataclasses.replace(short_settings, steps=3)
    run = train(longer, tmp_path / "run", verbose=0, resume=True)
    assert [line["step"] for line in run.metrics()] == [2, 3]


def test_without_the_text(short_settings, tmp_path):
    """Prepared is prepared, wherever the text has gone."""
    folder = tmp_path / "text"
    shutil.copytree(short_settings.data, folder)
    settings = dataclasses.replace(short_settings, data=str(folder))
    train(settings, tmp_path / "run", verbose=0)
    shutil.rmtree(folder)
    longer = dataclasses.replace(settings, steps=4)
    run = train(longer, tmp_path / "run", verbose=0, resume=True)
    expected = train(dataclasses.replace(short_settings, steps=4), tmp_path / "at_once", verbose=0)
    assert run.metrics()[-1] == expected.metrics()[-1]
    shutil.rmtree(run.path / "corpus")
    train(longer, run.path, verbose=0, resume=True)  # for which there is nothing to do
    run = train(dataclasses.replace(longer, average_last=1), run.path, verbose=0, resume=True)
    assert run.averaged.step == 4


def test_another_name_of_the_same_folder(short_settings, tmp_path, monkeypatch):
    shutil.copytree(short_settings.data, tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    train(dataclasses.replace(short_settings, data="text"), tmp_path / "run", verbose=0)
    longer = dataclasses.replace(short_settings, steps=3)
    for data in (str(tmp_path / "text"), "text/"):
        run = train(dataclasses.replace(longer, data=data), "run", verbose=0, resume=True)
        assert run.last.step == 3
    with pytest.raises(InputError, match=r"with data='.*/text', which cannot change"):
        train(longer, "run", verbose=0, resume=True)


def test_corpus_that_was_begun_before_another(short_settings, tmp_path, monkeypatch):
    """What an interrupted call left in the run directory is not what the run was trained on."""
    folder = tmp_path / "corpus"
    preparation.prepare(short_settings, folder)
    shutil.copytree(folder, tmp_path / "run" / "corpus")
    (tmp_path / "run" / "corpus" / "train.json").unlink()
    prepared = dataclasses.replace(short_settings, data=str(folder))
    run = train(prepared, tmp_path / "run", verbose=0, resume=True)
    assert corpus_folder(run) == folder
    shutil.rmtree(folder)
    assert corpus_folder(run) == run.path / "corpus"


def test_patience_needs_validation(short_settings, tmp_path):
    message = r"`patience` needs a validation split, and the corpus has none\. .*: patience=2$"
    with pytest.raises(InputError, match=message):
        train(dataclasses.replace(short_settings, patience=2), tmp_path / "run", verbose=0)
    assert not (tmp_path / "run" / "run.json").exists()  # a training that could not go on


def test_no_bleu_without_validation_is_said(short_settings, tmp_path, caplog):
    settings = dataclasses.replace(short_settings, bleu_sentences=2)
    for _ in range(2):  # the corpus is prepared, and opened
        train(settings, tmp_path / "run", verbose=0, resume=True)
        settings = dataclasses.replace(settings, steps=settings.steps + 1)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("No validation BLEU: the corpus has no validation split") == 2
