"""What holds for every model, whatever its weights."""

import numpy as np
import pytest
import tensorflow as tf
from layer_weights import VARIANTS, V, make_model

T = 11
SOURCE_LENGTHS, TARGET_LENGTHS = [7, 4, 2], [11, 5, 8]


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    return make_model(**VARIANTS[request.param])


@pytest.fixture(scope="module")
def source_ids():
    return random_ids(SOURCE_LENGTHS, seed=31)


@pytest.fixture(scope="module")
def target_ids():
    return random_ids(TARGET_LENGTHS, seed=37)


@pytest.fixture(scope="module")
def logits(model, source_ids, target_ids):
    return logits_of(model, source_ids, target_ids)


def random_ids(lengths, seed):
    """int32 [B, longest], padded with 0 behind the lengths."""
    ids = np.random.default_rng(seed).integers(1, V, (len(lengths), max(lengths)))
    return np.where(np.arange(max(lengths)) < np.array(lengths)[:, None], ids, 0).astype("int32")


def logits_of(model, source_ids, target_ids):
    return model({"source_ids": source_ids, "target_ids": target_ids}).numpy()


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=5e-5, atol=5e-5)
    assert np.shape(actual) == np.shape(expected)


def assert_far(actual, expected):
    """Every position differs, so that agreement elsewhere says something."""
    assert np.abs(actual - expected).max(axis=-1).min() > 1e-3


@pytest.mark.parametrize("position", [1, 10])
def test_future_target_tokens_change_nothing_before(
    model, source_ids, target_ids, logits, position
):
    changed = target_ids.copy()
    changed[:, position:] = 1 + changed[:, position:] % (V - 1)
    other = logits_of(model, source_ids, changed)
    assert_close(other[:, :position], logits[:, :position])
    assert_far(other[:, position:], logits[:, position:])


def test_source_tokens_change_every_position(model, source_ids, target_ids, logits):
    for column in (0, 1):  # tokens in all sentences
        changed = source_ids.copy()
        changed[:, column] = 1 + changed[:, column] % (V - 1)
        assert_far(logits_of(model, changed, target_ids), logits)


def test_padding_of_the_source_changes_nothing(model, source_ids, target_ids, logits):
    padded = np.pad(source_ids, ((0, 0), (0, 5)))
    assert_close(logits_of(model, padded, target_ids), logits)


def test_padding_of_the_target_changes_nothing_before(model, source_ids, target_ids, logits):
    padded = np.pad(target_ids, ((0, 0), (0, 2)))
    assert_close(logits_of(model, source_ids, padded)[:, :T], logits)


def test_padding_before_a_target_token_is_not_attended_to(model, source_ids, target_ids):
    gap = target_ids.copy()
    gap[:, 2] = 0
    logits = logits_of(model, source_ids, gap)
    table = model.target_embedding.token_embedding.embeddings
    before = table.numpy()
    row = before.copy()
    row[0] += 3.0
    table.assign(row)
    other = logits_of(model, source_ids, gap)
    table.assign(before)
    real = gap != 0
    # The first logit is padding's own: where the output matrix is the table, it has changed.
    assert_close(other[real][:, 1:], logits[real][:, 1:])


def test_batch_order_does_not_matter(model, source_ids, target_ids, logits):
    order = [2, 0, 1]
    assert_close(logits_of(model, source_ids[order], target_ids[order]), logits[order])


def test_batch_is_its_sentences_one_by_one(model, source_ids, target_ids, logits):
    for b, (s, t) in enumerate(zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)):
        alone = logits_of(model, source_ids[b : b + 1, :s], target_ids[b : b + 1, :t])
        assert_close(alone[0], logits[b, :t])


def test_source_of_padding_only_gives_finite_logits(model, source_ids, target_ids):
    source_ids = source_ids.copy()
    source_ids[1] = 0
    logits = logits_of(model, source_ids, target_ids)
    assert np.all(np.isfinite(logits))
    assert_close(logits[2], logits_of(model, source_ids[2:], target_ids[2:])[0])


@pytest.mark.parametrize("model", ["tied", "untied learned"], indirect=True)
def test_graph_is_eager(model, source_ids, target_ids, logits):
    function = tf.function(
        lambda source, target: model({"source_ids": source, "target_ids": target}),
        input_signature=[tf.TensorSpec((None, None), "int32")] * 2,
        autograph=False,
    )
    assert_close(function(source_ids, target_ids), logits)
