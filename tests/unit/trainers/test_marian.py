"""Marian's own models, trained and run by Marian: see tests/make_marian_models.py."""

import numpy as np
import pytest
import tensorflow as tf
from marian_models import extract, read_best

from keras_transformer.config import EOS_ID
from keras_transformer.trainers.marian import import_marian
from keras_transformer.translation import shifted
from keras_transformer.translator import Translator

NAMES = ("swish", "relu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return extract(tmp_path_factory.mktemp("marian"))


@pytest.fixture(scope="module")
def runs(folders):
    return {
        name: import_marian(folders / name, folders / f"{name}-run", "en", "de") for name in NAMES
    }


@pytest.fixture(scope="module")
def translators(runs):
    return {name: Translator.of(run) for name, run in runs.items()}


@pytest.fixture(scope="module")
def sentences(folders):
    return (folders / "swish/sentences.txt").read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_are_marians(name, folders, translators, sentences):
    translator = translators[name]
    tokenizer = translator.tokenizer
    pieces = tokenizer.target.pieces(tf.range(tokenizer.vocab_size)).numpy()
    ids = {piece.decode(): i for i, piece in enumerate(pieces)}
    best = read_best(folders / name, beam_size=1)
    rows = [[*(ids[piece] for piece in each.pieces), EOS_ID] for each in best]
    target_ids = tf.ragged.constant(rows, dtype=tf.int32).to_tensor()
    source_ids = tokenizer.encode(tf.constant(sentences), 99).ids
    logits = translator.model({"source_ids": source_ids, "target_ids": shifted(target_ids)})
    log_probs = tf.gather(tf.nn.log_softmax(logits), target_ids, batch_dims=2)  # [B, T]
    sums = tf.reduce_sum(tf.where(target_ids == 0, 0.0, log_probs), axis=1)
    np.testing.assert_allclose(sums, [each.log_prob for each in best], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam_size", [1, 6])
def test_translations_are_marians(name, beam_size, folders, translators, sentences):
    found = translators[name].translate(sentences, beam_size=beam_size)
    others = []
    for ours, theirs in zip(found, read_best(folders / name, beam_size), strict=True):
        if ours.text == theirs.text:
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        else:
            others.append(ours.score - theirs.score)
    # Marian's beam narrows whenever a hypothesis ends, so it may miss a better one.
    assert len(others) <= (beam_size > 1)
    assert all(gain > 0 for gain in others)
