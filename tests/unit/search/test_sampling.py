"""Random translations against the probabilities that they are drawn from."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, DecodingOptions
from keras_transformer.protection.counts import CountConstraint, Counts
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.constraints import constrained
from keras_transformer.search.sampling import SampleConstraint

VOCAB_SIZE, NUM_ROWS = 8, 4_000
LOGITS = 2 * np.random.default_rng(5).normal(size=[VOCAB_SIZE] * 2).astype(np.float32)
SOURCES = np.arange(1, NUM_ROWS + 1)[:, None]


def draw(sources, max_length=1, others=(), **options):
    """Samples from `LOGITS`, of the id after another."""

    def step_fn(ids, position, cache, row_state):
        return tf.gather(LOGITS, ids), cache, row_state

    options = DecodingOptions(beam_size=1, length_penalty=0.0, **options)
    sample = SampleConstraint.of(tf.constant(sources, tf.int32), options, options.sample_seed)
    rows, limits = tf.range(len(sources)), tf.fill([len(sources)], max_length)
    constraints = [*others, sample]
    step, cache, row_state = constrained(step_fn, (), (), constraints, rows, limits, 1)
    found = beam_search(step, cache, limits, options, row_state)
    return found.ids.numpy()[:, 0], found.scores.numpy()[:, 0]


def log_probs(logits):
    return logits - np.log(np.exp(np.float64(logits)).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("count", "temperature"), [(VOCAB_SIZE, 1.0), (3, 1.0), (4, 1.7)])
def test_tokens_are_as_frequent_as_they_are_likely(count, temperature):
    ids, scores = draw(SOURCES, sample_from=count, temperature=temperature)
    after_start = LOGITS[BOS_ID].copy()
    after_start[:EOS_ID] = -np.inf  # no translation has them
    after_start[np.argsort(after_start)[: max(0, VOCAB_SIZE - count)]] = -np.inf
    expected = np.exp(log_probs(after_start / temperature))
    counts = np.bincount(ids[:, 0], minlength=VOCAB_SIZE)
    assert not counts[expected == 0].any()
    likely = expected > 0
    squares = (counts - NUM_ROWS * expected)[likely] ** 2 / (NUM_ROWS * expected[likely])
    assert squares.sum() < 20  # at most 4 degrees of freedom: p = 0.0005
    # The score is the model's, whatever the temperature.
    np.testing.assert_allclose(scores, log_probs(LOGITS[BOS_ID])[ids[:, 0]], rtol=1e-5)


def test_positions_are_drawn_apart():
    ids, scores = draw(SOURCES, max_length=5, sample_from=VOCAB_SIZE)
    pairs = ids[(ids[:, 0] == ids[0, 0]) & (ids[0, 0] != EOS_ID)]
    assert len(set(pairs[:, 1])) > 3
    before, total = np.full(NUM_ROWS, BOS_ID), np.zeros(NUM_ROWS)
    for column in ids.T:
        total += np.where(column == 0, 0.0, log_probs(LOGITS)[before, column])
        before = column
    np.testing.assert_allclose(scores, total, rtol=1e-4)


def test_a_draw_depends_on_source_and_seed_only():
    one, _ = draw(SOURCES[:50], max_length=5, sample_from=5, sample_seed=3)
    padded = np.pad(SOURCES[:50][::-1], [(0, 0), (0, 2)])  # in another order, in a wider batch
    again, _ = draw(padded, max_length=5, sample_from=5, sample_seed=3)
    np.testing.assert_array_equal(one, again[::-1])
    other, _ = draw(SOURCES[:50], max_length=5, sample_from=5, sample_seed=4)
    assert (one != other).any(axis=1).sum() > 25


def test_one_token_is_greedy_search():
    ids, _ = draw(SOURCES[:3], max_length=4, sample_from=1)
    expected, newest = [], BOS_ID
    while len(expected) < 4 and newest != EOS_ID:
        newest = int(LOGITS[newest, EOS_ID:].argmax()) + EOS_ID
        expected.append(newest)
    assert ids.tolist() == [expected] * 3


def test_other_constraints_hold():
    counts, no_order = tf.constant([[1, 2, 0]] * 50), tf.zeros([50, 3, 3])
    order, ranks = tf.constant([[0, 1, 1]] * 50), tf.constant([[0, 0, 1]] * 50)
    never, longest = tf.zeros([50, 3], tf.bool), tf.fill([50], 9)
    of_rows = Counts(counts, counts, no_order, no_order, order, ranks, never, never[:, 0], longest)
    other = CountConstraint(of_rows, -1, tf.zeros([VOCAB_SIZE], tf.bool))
    ids, _ = draw(SOURCES[:50], max_length=6, others=[other], sample_from=VOCAB_SIZE)
    for row in ids.tolist():
        assert [row.count(each) for each in (5, 6, 7)] == [1, 2, 0]
