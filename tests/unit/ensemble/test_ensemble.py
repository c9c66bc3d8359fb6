"""An ensemble against the mean of its members' probabilities, computed with NumPy."""

import keras
import numpy as np
import pytest
from layer_weights import V, make_model, randomize
from step_twins import (
    SOURCE_IDS,
    assert_chosen_are_continued,
    assert_close,
    fast_logits,
    slow_logits,
)

from keras_transformer import InputError, RecurrentConfig, TransformerConfig
from keras_transformer.ensemble.config import EnsembleConfig
from keras_transformer.ensemble.model import Ensemble, mean_log_probs
from keras_transformer.registry import build_model

K, STEPS = 3, 5
PREFIXES = np.random.default_rng(43).integers(1, V, (2, K, STEPS)).astype("int32")


@pytest.fixture(scope="module")
def model():
    """Three members: of two architectures and different depths, one pre-norm."""
    deep = make_model().config
    sizes = {"num_decoder_layers": 1, "position_encoding": "learned", "max_length": 9}
    shallow = make_model(**sizes, norm_first=True).config
    recurrent = RecurrentConfig(vocab_size=V, d_model=6, units=5)
    return randomize(Ensemble(EnsembleConfig.of([deep, shallow, recurrent])))


def softmax(logits):
    exponentials = np.exp(np.float64(logits))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_logits_are_the_mean_of_the_probabilities(model):
    ids = {"source_ids": SOURCE_IDS, "target_ids": PREFIXES[:, 0]}
    expected = np.mean([softmax(member(ids)) for member in model.members], axis=0)
    assert_close(np.exp(model(ids)), expected)


def test_steps_are_the_model(model):
    assert_close(fast_logits(model, PREFIXES), slow_logits(model, PREFIXES))
    assert_chosen_are_continued(model, PREFIXES)


def test_a_tiny_probability_does_not_overflow():
    logits = np.array([[0.0, -200.0]], "float32")  # exp(-200) is 0 in float32
    assert_close(mean_log_probs([logits, logits]), logits)


def test_attention_has_the_heads_of_all_members(model):
    ids = {"source_ids": SOURCE_IDS, "target_ids": PREFIXES[:, 0]}
    scores = model.attention_scores(**ids)
    deep, shallow, recurrent = (member.attention_scores(**ids) for member in model.members)
    assert model.num_cross_attentions == 1
    assert (len(scores.encoder), len(scores.decoder), len(scores.cross)) == (0, 0, 1)
    last = [each.cross[-1] for each in (deep, shallow, recurrent)]
    assert_close(scores.cross[0], np.concatenate(last, axis=1))


def test_sizes(model):
    assert (model.config.vocab_size, model.config.num_target_ids) == (V, V)
    assert model.config.max_positions == 9
    members = model.members
    assert model.count_params() == sum(member.count_params() for member in members)


def test_saved_and_loaded(model, tmp_path):
    ids = {"source_ids": SOURCE_IDS, "target_ids": PREFIXES[:, 0]}
    model.save_weights(tmp_path / "a.weights.h5")
    config = EnsembleConfig(**model.config.to_dict())
    assert config == model.config
    again = build_model(config)
    again.load_weights(tmp_path / "a.weights.h5")
    assert_close(again(ids), model(ids))
    model.save(tmp_path / "a.keras")
    assert_close(keras.saving.load_model(tmp_path / "a.keras")(ids), model(ids))


def test_bad_configurations():
    config = TransformerConfig.from_preset("tiny", vocab_size=19)
    with pytest.raises(InputError, match=r"must have the same sizes.*\(19, 19\), \(20, 20\)"):
        EnsembleConfig.of([config, TransformerConfig.from_preset("tiny", vocab_size=20)])
    with pytest.raises(InputError, match="`members`"):
        EnsembleConfig.of([config])
    with pytest.raises(InputError, match="cannot be trained"):
        EnsembleConfig.from_preset("tiny", vocab_size=19)
