"""A parser whose decoder reads the next word too, against the oracle and its slow twin."""

import keras
import numpy as np
import pytest
import reference
from layer_weights import SIZES, V, randomize, reference_logits
from step_twins import assert_chosen_are_continued, assert_close, fast_logits, slow_logits

from keras_transformer.parsing.config import NextWordConfig
from keras_transformer.registry import build_model

ENDS = (12, 9)
SOURCE_IDS = np.array([[5, 18, 7, 13, 11, 3], [9, 14, 6, 3, 0, 0]], "int32")
TARGET_IDS = np.array([[2, 10, 4, 11, 8, 15, 16, 3], [2, 4, 5, 13, 3, 0, 0, 0]], "int32")
PREFIXES = np.random.default_rng(41).integers(1, V, (2, 3, 5)).astype("int32")


@pytest.fixture(scope="module")
def model():
    sizes = {**SIZES, "share_embeddings": False, "word_id_ends": ENDS}
    return randomize(build_model(NextWordConfig(**sizes)))


def test_logits_are_the_oracles(model):
    def added(encoded):
        return reference.next_words(encoded, SOURCE_IDS, TARGET_IDS, *ENDS)

    expected = reference_logits(model, SOURCE_IDS, TARGET_IDS, added)
    inputs = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    assert_close(model(inputs), expected, rtol=1e-4, atol=1e-4)
    assert np.abs(reference_logits(model, **inputs) - expected).max() > 0.1


def test_later_tokens_do_not_change_earlier_logits(model):
    changed = TARGET_IDS.copy()
    changed[:, 5:] = 4  # tags, which move on to the next words
    before, after = (
        model({"source_ids": SOURCE_IDS, "target_ids": ids}).numpy()
        for ids in (TARGET_IDS, changed)
    )
    assert_close(before[:, :5], after[:, :5])
    assert np.abs(before[:, 5:] - after[:, 5:]).max() > 0.1


@pytest.mark.parametrize("num_beams", [1, 3])
def test_steps_are_the_decoder(model, num_beams):
    prefixes = PREFIXES[:, :num_beams]
    assert_close(fast_logits(model, prefixes), slow_logits(model, prefixes))


def test_chosen_hypotheses_are_continued(model):
    assert_chosen_are_continued(model, PREFIXES)


def test_keras_file(model, tmp_path):
    model.save(tmp_path / "parser.keras")
    loaded = keras.models.load_model(tmp_path / "parser.keras")
    assert loaded.config == model.config
    inputs = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    assert_close(loaded(inputs), model(inputs))
