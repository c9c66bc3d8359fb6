"""The step function of a search, and its slow twin: the decoder on the complete prefix."""

import numpy as np
import tensorflow as tf

from keras_transformer.registry import step_of

SOURCE_IDS = np.array([[5, 18, 7, 3, 11, 1, 4], [9, 2, 6, 13, 0, 0, 0]], "int32")


def assert_close(actual, expected, **tolerance):
    np.testing.assert_allclose(actual, expected, **{"rtol": 1e-5, "atol": 1e-5, **tolerance})


def slow_logits(model, prefixes):
    """The decoder on all prefixes, each with a copy of its source: float [B, K, T, V]."""
    num_beams = prefixes.shape[1]
    ids = {
        "source_ids": np.repeat(SOURCE_IDS, num_beams, axis=0),
        "target_ids": prefixes.reshape(-1, prefixes.shape[2]),
    }
    return model(ids, training=False).numpy().reshape(*prefixes.shape, -1)


def fast_logits(model, prefixes):
    """The same, step by step."""
    step, found = step_of(model, prefixes.shape[2], prefixes[..., 0].size), []
    state = step.initial_state(tf.constant(SOURCE_IDS), prefixes.shape[1])
    for position in range(prefixes.shape[2]):
        logits, *state = step(tf.constant(prefixes[:, :, position]), tf.constant(position), *state)
        assert logits.dtype == tf.float32
        found.append(logits.numpy())
    return np.stack(found, axis=2)


def assert_chosen_are_continued(model, all_prefixes):
    """Steps after the search has chosen some of 3 hypotheses are the decoder on what they are."""
    # The hypotheses that stay live, two times; one of them twice, and one that had died before.
    choices = {1: np.array([[2, 0, 0], [1, 1, 2]]), 2: np.array([[1, 0, 2], [2, 0, 0]])}
    continued = all_prefixes[:, :, :0]
    step = step_of(model, all_prefixes.shape[2], all_prefixes[..., 0].size)
    beams, row_state = step.initial_state(tf.constant(SOURCE_IDS), all_prefixes.shape[1])
    for position in range(all_prefixes.shape[2]):
        ids = all_prefixes[:, :, position]
        continued = np.concatenate([continued, ids[:, :, None]], axis=2)
        logits, beams, row_state = step(tf.constant(ids), tf.constant(position), beams, row_state)
        assert_close(logits, slow_logits(model, continued)[:, :, -1])
        if position in choices:
            chosen = choices[position]
            continued = np.take_along_axis(continued, chosen[:, :, None], axis=1)
            beams = tf.nest.map_structure(
                lambda state, chosen=chosen: tf.gather(state, chosen, batch_dims=1), beams
            )
