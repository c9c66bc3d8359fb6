import shutil

import numpy as np
import pytest

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.model.transformer import Transformer
from keras_transformer.run import Run
from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.trainers.fitting.averaging import average_checkpoints

SIZES = {"d_ff": 17, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
VOCAB_SIZE = 270
WEIGHTS = {3: 100.0, 5: 1.0, 7: 2.0, 11: 6.0}  # by step; the mean of the last three is 3


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(["ab ba", "abba baab ab"], VOCAB_SIZE)


@pytest.fixture(scope="module")
def model():
    return Transformer(TransformerConfig(vocab_size=VOCAB_SIZE, d_model=10, **SIZES))


@pytest.fixture(scope="module")
def saved(tokenizer, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    run = Run.create(path, model.config, tokenizer, "en", "de", {})
    for step, value in WEIGHTS.items():
        model.set_weights([np.full(weights.shape, value) for weights in model.get_weights()])
        run.save_checkpoint(model, step, {"loss": 1.25}, is_best=step == 3, keep=4)
    return path


@pytest.fixture
def run(saved, tmp_path):
    """A run whose checkpoints have one value in all weights; the first is the best."""
    return Run.load(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture
def values(run, model):
    """The values that occur in a checkpoint's weights, as the run on disk has them."""

    def read(name=None):
        loaded = Run.load(run.path)
        loaded.load_weights(model, loaded.checkpoint(name))
        return sorted({*np.concatenate([weights.ravel() for weights in model.get_weights()])})

    return read


def contents(run):
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("last", "mean"), [(3, 3.0), (4, 27.25)])
def test_mean_of_the_newest(run, last, mean, values):
    average_checkpoints(run, 2)  # is replaced
    averaged = average_checkpoints(run, last)
    assert averaged.metrics == {"of_steps": [3, 5, 7, 11][-last:]}
    assert averaged.step == 11
    assert run.averaged == Run.load(run.path).averaged == averaged
    assert values("averaged") == [mean]
    assert len(list((run.path / "checkpoints").glob("averaged-*"))) == 1


def test_is_validated_as_a_checkpoint(tiny_run, tmp_path):
    """The mean of one checkpoint is that checkpoint, whose metrics `fit` computed."""
    run = Run.load(shutil.copytree(tiny_run.path, tmp_path / "run"))
    metrics = dict(average_checkpoints(run, 1).metrics)
    assert metrics.pop("of_steps") == [5]
    names = ("val_token_loss", "val_perplexity", "val_accuracy")
    expected = {name: run.last.metrics[name] for name in names}
    assert metrics == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("file", "named"), [("val-00000.npy", "val-00000.npy"), ("corpus.json", "corpus of")]
)
def test_is_made_without_its_corpus(file, named, tiny_run, tmp_path, caplog):
    run = Run.load(shutil.copytree(tiny_run.path, tmp_path / "run"))
    (run.path / "corpus" / file).unlink()
    assert average_checkpoints(run, 1).metrics == {"of_steps": [5]}
    assert run.choice()[0] == "averaged"
    (message,) = caplog.messages
    assert message.startswith("The average is not validated: ")
    assert named in message


@pytest.mark.parametrize(
    ("metric", "average", "name"),
    [
        (None, {"val_bleu": 26.0, "val_token_loss": 1.0}, "averaged"),
        (None, {"val_bleu": 24.0, "val_token_loss": 1.9}, "averaged"),
        (None, {"val_bleu": 24.0, "val_token_loss": 2.1}, "best"),
        (None, {"val_bleu": 23.9, "val_token_loss": 1.0}, "best"),
        ("loss", {"val_bleu": 20.0, "val_token_loss": 1.0}, "averaged"),
        ("loss", {"val_bleu": 30.0, "val_token_loss": 3.0}, "best"),
        (None, {}, "averaged"),  # not validated
    ],
)
def test_commands_take_what_validates_better(metric, average, name, run, model):
    run.settings["metric"] = metric
    run.save_checkpoint(model, 13, {"val_bleu": 25.0, "val_token_loss": 2.0}, is_best=True)
    run.save_average(model, run.checkpoints[-1:], average)
    loaded = Run.load(run.path)
    assert loaded.choice()[0] == name
    assert loaded.checkpoint() == getattr(loaded, name)


def test_what_is_not_validated(run, model):
    assert run.choice() == ("best", "the newest, not validated")
    run.best = None
    assert run.choice() == ("last", "the newest")
    run.save_average(model, run.checkpoints[-1:], {"val_token_loss": 2.0})
    assert run.choice()[0] == "averaged"
    run.best = run.last
    run.averaged.metrics["val_token_loss"] = float("nan")
    run.best.metrics["val_token_loss"] = 3.0
    assert run.choice()[0] == "best"


@pytest.mark.parametrize("last", [0, 5])
def test_from_one_to_all_that_are_kept(run, last):
    before = contents(run)
    with pytest.raises(InputError, match=f"^`last` .* 4, .*: last={last}$"):
        average_checkpoints(run, last)
    assert contents(run) == before


def test_missing_checkpoint_leaves_the_run(run, values):
    average_checkpoints(run, 1)
    file = run.path / run.checkpoints[-2].file
    file.unlink()
    before = contents(run)
    with pytest.raises(InputError, match=f"^{file} is missing"):
        average_checkpoints(run, 3)
    assert contents(run) == before
    assert values() == [6.0]
