import shutil

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.registry import build_model
from keras_transformer.run import Run
from keras_transformer.trainers.fitting.averaging import average_checkpoints

pytestmark = pytest.mark.usefixtures("eager")

WEIGHTS = {3: 100.0, 5: 1.0, 7: 2.0, 11: 6.0}  # by step; the mean of the last three is 3


@pytest.fixture(scope="module")
def saved(tiny_run, tmp_path_factory):
    model = build_model(tiny_run.config)
    path = tmp_path_factory.mktemp("saved")
    run = Run.create(path, tiny_run.config, tiny_run.tokenizer(), "en", "de", {})
    for step, value in WEIGHTS.items():
        model.set_weights([np.full(weights.shape, value) for weights in model.get_weights()])
        run.save_checkpoint(model, step, {"loss": 1.25}, is_best=step == 3, keep=4)
    return path


@pytest.fixture
def run(saved, tmp_path):
    """A run whose checkpoints have one value in all weights; the first is the best."""
    return Run.load(shutil.copytree(saved, tmp_path / "run"))


def values(run):
    """The values that occur in the weights that commands use, as the run on disk has them."""
    weights = Run.load(run.path).model().get_weights()
    return np.unique(np.concatenate([array.ravel() for array in weights])).tolist()


def contents(run):
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("last", "mean"), [(3, 3.0), (4, 27.25)])
def test_mean_of_the_newest(run, last, mean):
    average_checkpoints(run, 2)  # is replaced
    averaged = average_checkpoints(run, last)
    assert averaged.metrics == {"of_steps": [3, 5, 7, 11][-last:]}
    assert averaged.step == 11
    assert run.averaged == Run.load(run.path).averaged == averaged
    assert values(run) == [mean]
    assert len(list((run.path / "checkpoints").glob("averaged-*"))) == 1


def test_is_validated_as_a_checkpoint(tiny_run, tmp_path):
    """The mean of one checkpoint is that checkpoint, whose metrics `fit` computed."""
    run = Run.load(shutil.copytree(tiny_run.path, tmp_path / "run"))
    metrics = dict(average_checkpoints(run, 1).metrics)
    assert metrics.pop("of_steps") == [5]
    names = ("val_token_loss", "val_perplexity", "val_accuracy")
    assert metrics == pytest.approx({name: run.last.metrics[name] for name in names}, rel=1e-5)


@pytest.mark.parametrize("file", ["val-00000.npy", "corpus.json"])
def test_is_made_without_its_corpus(file, tiny_run, tmp_path, caplog):
    run = Run.load(shutil.copytree(tiny_run.path, tmp_path / "run"))
    (run.path / "corpus" / file).unlink()
    assert average_checkpoints(run, 1).metrics == {"of_steps": [5]}
    assert run.choice()[0] == "averaged"
    (message,) = caplog.messages
    assert message.startswith("The average is not validated: ")
    assert file in message


def test_what_cannot_be_averaged(run):
    average_checkpoints(run, 1)
    file = run.path / run.checkpoints[-2].file
    file.unlink()
    before = contents(run)
    with pytest.raises(InputError, match=f"^{file} is missing"):
        average_checkpoints(run, 3)
    for last in (0, 5):
        with pytest.raises(InputError, match=f"^`last` .* 4, .*: last={last}$"):
            average_checkpoints(run, last)
    assert contents(run) == before
    assert values(run) == [6.0]
