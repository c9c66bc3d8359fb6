"""Trainings that start from another run."""

import dataclasses
import logging
import shutil

import layer_weights
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.data.preparation import mixed, prepare
from keras_transformer.trainers.fitting.fine_tuning import initial_config, initialize
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.recipes import Layer, completed, resolve
from keras_transformer.trainers.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def tuning(short_settings, tiny_run, tmp_path):
    """Settings that start from a copy of a run of other sizes, on other data."""
    initial = shutil.copytree(tiny_run.path, tmp_path / "initial")
    changes = {"init_from": str(initial), "model": {}, "max_length": 40, "tokens_per_batch": 200}
    return dataclasses.replace(short_settings, **changes)


def weights_of(run, checkpoint="last"):
    return {weight.path: np.array(weight.value) for weight in run.model(checkpoint).weights}


def test_starts_from_the_runs_weights_sizes_and_tokenizer(tuning, tiny_run, tmp_path):
    # A rate so small that the weights stay where they were.
    changes = {"steps": 1, "peak_rate": 1e-30, "model": {"dropout_rate": 0.3}}
    settings = dataclasses.replace(tuning, **changes)
    run = train(settings, tmp_path / "run", verbose=0)
    assert run.config == dataclasses.replace(tiny_run.config, dropout_rate=0.3)
    assert run.tokenizer_sha256 == tiny_run.tokenizer_sha256
    expected = weights_of(tiny_run, "best")
    for path, weight in weights_of(run).items():
        np.testing.assert_allclose(weight, expected[path], rtol=1e-6)
    # Its settings are true, and a recipe of it is accepted.
    sizes = {"vocab_size": run.config.vocab_size}
    assert TrainSettings.from_dict(run.settings).config(sizes) == run.config
    again = resolve([Layer("", {**run.settings, "init_from": str(run.path)})])
    assert completed(TrainSettings.from_dict(again)).config(sizes) == run.config
    with pytest.raises(InputError, match=r"exists and is not empty"):
        train(settings, run.path, verbose=0)
    changed = dataclasses.replace(settings, steps=2, model={"dropout_rate": 0.4})
    with pytest.raises(InputError, match=r"with model=.*cannot change"):
        train(changed, run.path, verbose=0, resume=True)


def assert_kept(run, tiny_run, kept):
    """Only layers whose names begin so have the weights of the first run."""
    before, after = weights_of(tiny_run, "best"), weights_of(run)
    frozen = {path for path in before if np.array_equal(before[path], after[path])}
    assert frozen == {path for path in before if path.startswith(kept)}


def test_frozen_layers_keep_their_weights(tuning, tiny_run, tmp_path):
    run = train(dataclasses.replace(tuning, freeze="embeddings"), tmp_path / "run", verbose=0)
    assert_kept(run, tiny_run, "embedding/")


def test_frozen_encoder_includes_its_last_norm(tuning, tiny_run):
    model = layer_weights.make_model(norm_first=True)
    tuning = dataclasses.replace(tuning, freeze="encoder")
    initialize(model, tiny_run.tokenizer(), tuning, is_new=False)
    trained = {weight.path.split("_")[0] for weight in model.trainable_weights}
    assert trained == {"embedding/token", "decoder"}


def test_resumes_exactly_without_the_initial_run(tuning, tiny_run, tmp_path):
    settings = dataclasses.replace(tuning, steps=2, steps_per_validation=1, freeze="encoder")
    complete = train(settings, tmp_path / "complete", verbose=0)
    assert_kept(complete, tiny_run, "encoder_")
    train(dataclasses.replace(settings, steps=1), tmp_path / "run", verbose=0)
    shutil.rmtree(settings.init_from)
    shutil.rmtree(tmp_path / "run" / "corpus")  # made again, with the run's tokenizer
    resumed = train(settings, tmp_path / "run", verbose=0, resume=True)
    expected = weights_of(complete)
    for path, weight in weights_of(resumed).items():
        np.testing.assert_array_equal(weight, expected[path])


@pytest.mark.parametrize(
    ("share", "numbers"),
    [(0.0, []), (0.2, [6, 13, 19]), (0.75, range(20))],  # 0.75 would take 36
)
def test_mixed_pairs_are_spread_over_the_others(share, numbers, caplog):
    pairs = [Pair(f"new {i}", "neu") for i in range(12)]
    others = [Pair(f"old {i}", "alt") for i in range(20)]
    with caplog.at_level(logging.INFO, "keras_transformer"):
        assert list(mixed(pairs, lambda: others, share)) == [*pairs, *(others[i] for i in numbers)]
    assert f"{len(numbers)} of 20" in caplog.messages[0]
    assert ["0.62 of all" in each for each in caplog.messages[1:]] == [True] * (share == 0.75)


@pytest.mark.parametrize(
    "changes", [{"architecture": "recurrent"}, {"preset": "base"}, {"tokenizer": "unigram"}]
)
def test_what_the_run_decides_is_refused(changes, tuning, tmp_path):
    (name,) = changes
    message = rf"`{name}` must be that of `init_from`, .*Received: {name}="
    with pytest.raises(InputError, match=message):
        train(dataclasses.replace(tuning, **changes), tmp_path / "run", verbose=0)
    with pytest.raises(InputError, match=message):
        resolve([Layer("", {"init_from": tuning.init_from, **changes})])
    assert not (tmp_path / "run").exists()


def test_mixed_corpus(tuning, corpus_dir, tmp_path):
    plain = prepare(tuning, tmp_path / "plain")
    both = prepare(dataclasses.replace(tuning, mix=str(corpus_dir)), tmp_path / "both")
    assert len(plain.training.lengths) == 16
    assert len(both.training.lengths) == 20  # a fifth of them is of the other corpus
    with pytest.raises(InputError, match=r"prepared with mix=None: .* Received: mix="):
        prepare(dataclasses.replace(tuning, mix=str(corpus_dir)), tmp_path / "plain")


def test_what_cannot_be_tuned(tuning, short_settings, tmp_path):
    with pytest.raises(InputError, match=r"`model` may change .*dropout_rate.*Received: d_model"):
        train(dataclasses.replace(tuning, model={"d_model": 8}), tmp_path / "a", verbose=0)
    prepare(short_settings, tmp_path / "corpus")
    other = dataclasses.replace(tuning, data=str(tmp_path / "corpus"), max_length=8)
    with pytest.raises(InputError, match=r"another tokenizer .*--set init_from="):
        train(other, tmp_path / "b", verbose=0)
    missing = dataclasses.replace(tuning, init_from=str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"There is no run directory .*none"):
        train(missing, tmp_path / "c", verbose=0)
    with pytest.raises(InputError, match=r"`freeze` needs `init_from`.*freeze='encoder'"):
        dataclasses.replace(short_settings, freeze="encoder")


def test_learned_positions_bound_the_length(tuning):
    initial = Run.load(tuning.init_from)
    initial.config = dataclasses.replace(initial.config, position_encoding="learned", max_length=39)
    initial.finish()  # writes the manifest
    with pytest.raises(InputError, match=r"39 learned .*Received: max_length=40"):
        completed(tuning)
    shorter = completed(dataclasses.replace(tuning, max_length=39))
    assert initial_config(shorter, initial.tokenizer()) == initial.config
