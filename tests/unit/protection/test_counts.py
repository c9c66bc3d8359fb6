"""A model that has seen no slots, and would rather end: what is missing comes before the end."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, DecodingOptions
from keras_transformer.protection.counts import CountConstraint, Counts
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.constraints import constrained

WORD, MARK, SPACE, ONE, TWO = range(4, 9)  # ONE and TWO are counted
SPELLINGS = [b""] * 4 + [b" w", b".", b" ", b"\xf4\x8f\xbc\x80", b"\xf4\x8f\xbc\x81"]
LIKELIEST = {
    BOS_ID: [WORD],
    WORD: [MARK, WORD],
    MARK: [EOS_ID],
    ONE: [WORD, MARK],
    TWO: [WORD, MARK],
}


def greedy(order, spaced=True, is_last=False, likeliest=LIKELIEST, longest=99, limit=20):
    """What a greedy search finds with all ids of `order` once or more, in this order."""
    logits = np.zeros([9, 9], np.float32)
    for token, following in likeliest.items():
        logits[token, following] = [9 - place for place in range(len(following))]

    def step_fn(ids, position, cache, row_state):
        return tf.gather(logits, ids), cache, row_state

    least = tf.constant([[order.count(0), order.count(1)]])
    no_order = tf.zeros([1, 2, 2])
    ranks = [order[:place].count(each) for place, each in enumerate(order)]
    counts = Counts(
        least,
        least,
        no_order,
        no_order,
        order=tf.constant([order]),
        ranks=tf.constant([ranks]),
        spaced=tf.fill([1, len(order)], spaced),
        is_last=tf.constant([is_last]),
        longest=tf.constant([longest]),
    )
    limits = tf.constant([limit])
    constraint = CountConstraint.of(counts, SPELLINGS)
    step, cache, rows = constrained(step_fn, (), (), [constraint], tf.range(1), limits, 1)
    ids = beam_search(
        step, cache, limits, DecodingOptions(beam_size=1, length_penalty=0.0), rows, 1
    ).ids.numpy()[0, 0]
    return ids[ids != PAD_ID].tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"order": [0]}, [WORD, SPACE, ONE, MARK, EOS_ID]),
        ({"order": [1, 0, 1]}, [WORD, SPACE, TWO, SPACE, ONE, SPACE, TWO, MARK, EOS_ID]),
        ({"order": [0, 1], "spaced": False}, [WORD, ONE, TWO, MARK, EOS_ID]),
        ({"order": [0], "is_last": True}, [WORD, MARK, SPACE, ONE, MARK, EOS_ID]),
        ({"order": [0], "limit": 2}, [WORD, ONE]),  # no room for a space
    ],
)
def test_what_is_missing_stands_before_the_last_mark(options, expected):
    assert greedy(**options) == expected


def test_a_model_that_goes_on_is_stopped():
    likeliest = {**LIKELIEST, WORD: [WORD], BOS_ID: [WORD], ONE: [WORD], MARK: [MARK, WORD]}
    found = greedy([0], likeliest=likeliest, longest=5)
    assert found[:7] == [WORD] * 5 + [SPACE, ONE]
    assert len(found) <= 9


def test_a_mark_within_a_result_ends_nothing():
    likeliest = {BOS_ID: [MARK], MARK: [WORD], WORD: [ONE], ONE: [TWO], TWO: [EOS_ID]}
    assert greedy([1, 0], likeliest=likeliest) == [MARK, WORD, ONE, TWO, EOS_ID]
