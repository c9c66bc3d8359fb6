import dataclasses
import math
import shutil

import keras
import numpy as np
import pytest
import reference
import sacrebleu
import tensorflow as tf
from eager import eagerly

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
from keras_transformer.trainers.data.corpora import load_corpus
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.prepared import StoredPairs
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator


@pytest.fixture(scope="module")
def short_run(short_settings, tmp_path_factory):
    settings = dataclasses.replace(short_settings, steps=7)
    with eagerly():
        return train(settings, tmp_path_factory.mktemp("short_run"), verbose=0)


def weights(run):
    return [weight.numpy() for weight in run.model("last").weights]


def plan_of(run, settings):
    pairs = StoredPairs(run.path / "corpus", "train")
    return pairs, BatchPlan(pairs.lengths, settings.tokens_per_batch, settings.seed)


# What a run leaves.


def test_run_is_complete(tiny_run, tiny_settings):
    assert tiny_run.status == "complete"
    assert Run.load(tiny_run.path) == tiny_run
    assert TrainSettings.from_dict(tiny_run.settings) == tiny_settings
    assert (tiny_run.source, tiny_run.target) == ("en", "de")
    assert tiny_run.config == tiny_settings.config({"vocab_size": 290})


def test_run_holds_what_is_documented(tiny_run):
    def names(folder):
        return {path.name for path in (tiny_run.path / folder).iterdir()}

    contents = {"run.json", "tokenizer.model", "metrics.jsonl"}
    # Other tests evaluate the shared run.
    assert names("") - {"evaluation"} == contents | {"checkpoints", "corpus", "tensorboard"}
    assert names("checkpoints") == {"state-00000003.npz", "state-00000005.npz"} | {
        f"step-{checkpoint.step:08d}.weights.h5" for checkpoint in (tiny_run.best, tiny_run.last)
    }
    (file,) = (tiny_run.path / "tensorboard" / "validation").iterdir()
    events = tf.compat.v1.train.summary_iterator(str(file))
    values = [(event.step, value.tag) for event in events for value in event.summary.value]
    assert [step for step, tag in values if tag == "epoch_perplexity"] == [3, 5]  # updates


def test_metrics_are_of_each_validation(tiny_run):
    """Five updates, validated every three; the best has the lowest loss."""
    metrics = tiny_run.metrics()
    assert [line["step"] for line in metrics] == [3, 5]
    names = {"loss", "token_loss", "perplexity", "accuracy"}
    assert set(metrics[0]) == {"step"} | names | {f"val_{name}" for name in names}
    assert {"step": 5, **tiny_run.last.metrics} == metrics[1]
    lowest = min(metrics, key=lambda line: line["val_token_loss"])
    assert {"step": tiny_run.best.step, **tiny_run.best.metrics} == lowest


def test_validation_metrics_are_those_of_the_saved_weights(tiny_run, tiny_settings):
    """Dropout is off, and the mean is over tokens, not over batches."""
    pairs = StoredPairs(tiny_run.path / "corpus", "val")
    plan = BatchPlan(pairs.lengths, tiny_settings.tokens_per_batch, seed=None)
    model = tiny_run.model("last")
    total, num_tokens, num_right = 0.0, 0, 0
    for inputs, labels, _ in make_dataset(pairs, plan, range(plan.batches_per_epoch)):
        logits, labels = model(inputs).numpy(), labels.numpy()
        is_token = labels != PAD_ID
        total += reference.label_smoothed_cross_entropy(logits, labels, smoothing=0.0).sum()
        num_tokens += is_token.sum()
        num_right += (is_token & (logits.argmax(axis=-1) == labels)).sum()
    metrics = tiny_run.last.metrics
    assert num_tokens == pairs.lengths[:, 1].sum()
    assert metrics["val_token_loss"] == pytest.approx(total / num_tokens, rel=1e-5)
    assert metrics["val_perplexity"] == pytest.approx(math.exp(total / num_tokens), rel=1e-4)
    assert metrics["val_accuracy"] == pytest.approx(num_right / num_tokens, rel=1e-5)


# Updates and seeds.


def test_defaults_of_vocabulary_and_validation(short_run, short_settings):
    assert 260 < short_run.config.vocab_size < 8_000  # what the corpus supports
    # 16 pairs are batches of 7, 7 and 2; the seventh update begins the third epoch.
    _, plan = plan_of(short_run, short_settings)
    assert plan.batches_per_epoch == 3
    assert [line["step"] for line in short_run.metrics()] == [3, 6, 7]


def test_without_validation_the_last_is_the_best(short_run):
    assert short_run.best == short_run.last
    assert short_run.last.step == 7
    assert not any(name.startswith("val_") for name in short_run.last.metrics)
    assert len(list((short_run.path / "checkpoints").glob("*.h5"))) == 1


class Fitted(keras.callbacks.Callback):
    """Keeps the model that `fit` trains, as `model`."""


@pytest.mark.usefixtures("eager")
def test_mixed_precision_and_cooldown(short_settings, tmp_path):
    settings = dataclasses.replace(short_settings, precision="mixed_float16", cooldown=0.5)
    fitted = Fitted()
    run = train(settings, tmp_path / "run", verbose=0, callbacks=[fitted])
    optimizer = fitted.model.optimizer.inner_optimizer
    assert int(optimizer.iterations) == 2  # loss scaling skipped none
    assert float(optimizer.learning_rate) == 0  # of a third update
    layer = fitted.model.get_layer("encoder_0")
    assert (layer.compute_dtype, layer.variable_dtype) == ("float16", "float32")
    assert keras.config.dtype_policy().name == "float32"
    model = run.model()
    assert model.get_layer("encoder_0").compute_dtype == "float32"
    for trained, saved in zip(fitted.model.weights, model.weights, strict=True):
        assert np.all(np.isfinite(saved))
        np.testing.assert_array_equal(trained, saved)


def test_jit(short_settings, tmp_path):
    """XLA sees padded rows; at a rate of almost 0 the loss is that of the saved weights."""
    overrides = {**short_settings.model, "dropout_rate": 0.0}
    changes = {"steps": 3, "jit": True, "peak_rate": 1e-12, "model": overrides}
    settings = dataclasses.replace(short_settings, **changes)
    run = train(settings, tmp_path / "run", verbose=0)
    pairs, plan = plan_of(run, settings)
    model = run.model()
    total = sum(
        reference.label_smoothed_cross_entropy(
            model(inputs).numpy(), labels.numpy(), smoothing=0.0
        ).sum()
        for inputs, labels, _ in make_dataset(pairs, plan, range(3))
    )
    expected = total / pairs.lengths[:, 1].sum()
    assert run.last.metrics["token_loss"] == pytest.approx(expected, rel=1e-4)


# Options of the recipe.


@pytest.mark.usefixtures("eager")
def test_moving_average_is_what_is_saved(short_settings, tmp_path):
    """By hand: w' = d w' + (1 - d) w after each update, from the first update's weights."""
    settings = dataclasses.replace(
        short_settings, steps=3, steps_per_validation=1, keep_checkpoints=3
    )
    plain = train(settings, tmp_path / "plain", verbose=0)
    averaged = train(dataclasses.replace(settings, ema_decay=0.75), tmp_path / "ema", verbose=0)
    model = plain.model("last")
    expected = None
    for kept, shown in zip(plain.checkpoints, averaged.checkpoints, strict=True):
        plain.load_weights(model, kept)
        new = [np.array(weight, np.float64) for weight in model.weights]
        if expected is not None:
            new = [0.75 * e + 0.25 * n for e, n in zip(expected, new, strict=True)]
        expected = new
        averaged.load_weights(model, shown)
        for weight, value in zip(model.weights, expected, strict=True):
            np.testing.assert_allclose(weight, value, atol=1e-6)


@pytest.mark.usefixtures("eager")
def test_validation_bleu_is_that_of_greedy_search(tiny_settings, tmp_path):
    changes = {"steps": 2, "bleu_sentences": 7, "lowercase": True, "extra_length": 5}
    settings = dataclasses.replace(tiny_settings, **changes)
    run = train(settings, tmp_path / "run", verbose=0)
    assert run.tokenizer().lowercase
    pairs = list(load_corpus(settings.data, "en", "de").pairs("val"))[:7]
    translations = Translator.load(run.path).translate([p.source for p in pairs], beam_size=1)
    hypotheses, references = [t.text for t in translations], [p.target for p in pairs]
    expected = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=True).score
    assert run.last.metrics["val_bleu"] == pytest.approx(expected)


@pytest.mark.usefixtures("eager")
def test_prepared_corpus_trains_as_its_text(short_run, short_settings, tmp_path, caplog):
    prepare(short_settings, tmp_path / "corpus")
    settings = dataclasses.replace(
        short_settings,
        steps=7,
        data=str(tmp_path / "corpus"),
        keep_checkpoints=5,
        average_last=5,
        bleu_sentences=3,
    )
    run = train(settings, tmp_path / "run", verbose=0)
    assert run.averaged.metrics["of_steps"] == [3, 6, 7]
    assert "Averaging 3 checkpoints: there are no more" in caplog.messages
    assert not (tmp_path / "run" / "corpus").exists()
    for one, other in zip(weights(short_run), weights(run), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("eager")
def test_a_prepared_corpus_may_move_but_not_change(short_settings, tmp_path):
    corpus = prepare(short_settings, tmp_path / "corpus")
    settings = dataclasses.replace(short_settings, steps=1, data=str(tmp_path / "corpus"))
    train(settings, tmp_path / "run", verbose=0)
    (tmp_path / "corpus").rename(tmp_path / "moved")
    settings = dataclasses.replace(settings, steps=2, data=str(tmp_path / "moved"))
    run = train(settings, tmp_path / "run", verbose=0, resume=True)
    assert (run.last.step, run.settings["data"]) == (2, settings.data)
    # The same words, and so the same tokenizer, in other sentences.
    other = shutil.copytree(short_settings.data, tmp_path / "other")
    for file in other.glob("*.train.txt"):
        file.write_text("\n".join(reversed(file.read_text().splitlines())) + "\n")
    prepare(dataclasses.replace(settings, data=str(other)), tmp_path / "new", tokenizer=corpus[0])
    changed = dataclasses.replace(settings, data=str(tmp_path / "new"))
    with pytest.raises(InputError, match=r"is a run with data=.*, which cannot change"):
        train(changed, tmp_path / "run", verbose=0, resume=True)
    shutil.rmtree(tmp_path / "moved")
    (tmp_path / "new").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="was trained on other pairs than its corpus holds now"):
        train(dataclasses.replace(settings, steps=3), tmp_path / "run", verbose=0, resume=True)


# What goes wrong.


@pytest.mark.usefixtures("eager")
def test_loss_that_is_no_number(short_settings, tmp_path):
    changes = {"peak_rate": 1e30, "warmup_steps": 1, "steps_per_save": 1}
    settings = dataclasses.replace(
        short_settings, precision="mixed_bfloat16", steps_per_validation=4, **changes
    )
    with pytest.raises(InputError, match=r"`loss` is (nan|inf) after 2 updates: "):
        train(settings, tmp_path / "run", verbose=0)
    assert keras.config.dtype_policy().name == "float32"
    run = Run.load(tmp_path / "run")
    assert run.status == "training"
    assert run.best is run.last is None
    assert [state.step for state in run.states] == [1]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data": "nowhere"}, "There is no folder .*/nowhere"),
        ({"target": "fr"}, r"must hold files en\.SPLIT\.txt and fr\.SPLIT\.txt"),
        ({"vocab_size": 261}, "`vocab_size` must be at least .* vocab_size=261"),
        ({"max_length": 2}, "No sentence pair of train is left: 16 because a side has more than"),
    ],
)
def test_bad_settings_leave_nothing_behind(short_settings, tmp_path, changes, match):
    with pytest.raises(InputError, match=match):
        train(dataclasses.replace(short_settings, **changes), tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()
