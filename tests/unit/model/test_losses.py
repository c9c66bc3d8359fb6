import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
import torch_twins
from keras import ops

from keras_transformer import LabelSmoothedCrossEntropy, Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.model.losses import cross_entropy, symmetric_divergence
from keras_transformer.trainers.fitting.strategies import make_strategy

B, T, V = 3, 11, 19
SMOOTHINGS = [0.0, 0.3]


@pytest.fixture(scope="module")
def targets():
    """Ids [B, T] of 11, 4 and 2 tokens, then padding: 17 tokens in all."""
    ids = np.random.default_rng(23).integers(1, V, size=(B, T))
    ids[1, 4:] = ids[2, 2:] = 0
    return ids


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(29).normal(scale=3.0, size=(B, T, V)).astype("float32")


def assert_close(actual, expected, **tolerance):
    actual = ops.convert_to_numpy(actual)
    np.testing.assert_allclose(actual, expected, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})
    assert (actual.dtype, actual.shape) == (np.float32, np.shape(expected))


# The loss.


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_loss_of_each_token_is_torchs(smoothing):
    twin = torch_twins.load("label_smoothing")
    loss = LabelSmoothedCrossEntropy(smoothing).call(twin["targets"], twin["logits"])
    assert_close(loss, twin[f"loss_{smoothing}"])


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loss_is_the_mean_of_tokens(logits, targets, smoothing):
    losses = reference.label_smoothed_cross_entropy(logits, targets, smoothing)
    assert_close(LabelSmoothedCrossEntropy(smoothing)(targets, logits), losses.sum() / 17)


def gradients(function, *inputs):
    """Derivatives of the sum of a function's values, each with a weight of its own."""
    inputs = [tf.constant(each) for each in inputs]
    weights = np.random.default_rng(41).normal(size=(B, T)).astype("float32")
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(function(*inputs) * weights)
    return tape.gradient(total, inputs)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_gradient_is_that_of_the_terms(logits, targets, smoothing):
    def term_by_term(logits):
        true = tf.gather(logits, targets, batch_dims=2)
        mean = tf.reduce_mean(logits, axis=-1)
        return tf.reduce_logsumexp(logits, axis=-1) - (1 - smoothing) * true - smoothing * mean

    (expected,) = gradients(term_by_term, logits)
    (actual,) = gradients(lambda logits: cross_entropy(logits, targets, smoothing), logits)
    assert_close(actual, expected)


def test_divergence_and_its_gradients_are_those_of_the_terms(logits):
    def term_by_term(logits, others):
        p, q = tf.nn.softmax(logits), tf.nn.softmax(others)
        return tf.reduce_sum(p * tf.math.log(p / q), -1) + tf.reduce_sum(q * tf.math.log(q / p), -1)

    others = np.random.default_rng(37).normal(scale=2.0, size=(B, T, V)).astype("float32")
    p, q = reference.softmax(logits), reference.softmax(others)
    expected = (p * np.log(p / q)).sum(-1) + (q * np.log(q / p)).sum(-1)
    assert_close(symmetric_divergence(logits, others), expected, rtol=1e-4)
    for actual, wanted in zip(
        gradients(symmetric_divergence, logits, others),
        gradients(term_by_term, logits, others),
        strict=True,
    ):
        assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def test_padding_counts_nowhere(logits, targets):
    loss = LabelSmoothedCrossEntropy(0.1)
    other = np.where((targets == 0)[..., None], 1e4 * logits, logits)
    assert_close(loss(targets, other), loss(targets, logits), rtol=0, atol=0)
    wider_targets = np.pad(targets, ((0, 0), (0, 2)))
    wider_logits = np.pad(logits, ((0, 0), (0, 2), (0, 0)), constant_values=7.0)
    assert_close(loss(wider_targets, wider_logits), loss(targets, logits))
    assert_close(loss(np.zeros((B, T), int), logits), 0.0)


def test_large_logits_do_not_overflow():
    # The true logit is below the largest by 2000, the mean of the three by 3000 / 3.
    loss = LabelSmoothedCrossEntropy(0.3)([[2]], np.array([[[1e4, 9e3, 8e3]]]))
    assert_close(loss, 0.7 * 2000 + 0.3 * 1000)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_loss_of_half_precision_logits_is_computed_in_float32(logits, targets, dtype):
    # 17 tokens 30 times: 16 bits keep no more than 3 digits of the sum.
    low = ops.cast(np.tile(logits, (30, 1, 1)), dtype)
    many_targets = np.tile(targets, (30, 1))
    exact = ops.convert_to_numpy(ops.cast(low, "float32"))
    losses = reference.label_smoothed_cross_entropy(exact, many_targets, 0.1)
    loss = LabelSmoothedCrossEntropy(0.1)(many_targets, low, ops.ones((90, T), dtype))
    assert_close(loss, losses.sum() / 510)


def test_logits_that_carry_a_mask(logits, targets):
    """Keras scales the weights of such logits, which are weights of tokens already."""
    loss = LabelSmoothedCrossEntropy(0.1)
    masked = tf.constant(logits)
    masked._keras_mask = tf.constant(targets != 0)
    np.testing.assert_allclose(loss(targets, masked), loss(targets, logits), rtol=1e-6)


METRICS = [TokenLoss, Perplexity, TokenAccuracy]


def metric_of(metric, targets, logits):
    metric.update_state(targets, logits)
    return float(metric.result())


@pytest.mark.parametrize("label", [-100, V + 2])
def test_ignored_class_counts_as_padding(logits, targets, label):
    ignoring = np.where(targets == 0, label, targets)
    ignoring[0, 0], padded = 0, np.where(np.arange(B * T).reshape(B, T) == 0, 0, targets)
    loss = LabelSmoothedCrossEntropy(0.1, ignore_class=label)
    assert_close(loss(ignoring, logits), LabelSmoothedCrossEntropy(0.1)(padded, logits), rtol=0)
    for metric in METRICS:
        expected = metric_of(metric(), padded, logits)
        assert metric_of(metric(ignore_class=label), ignoring, logits) == expected


@pytest.mark.parametrize(("label", "compiled"), [(-1, False), (V, True), (2**32 + 3, False)])
def test_labels_that_are_no_token_give_nan(logits, targets, label, compiled):
    """And they change no weight: their gradient is 0."""
    wrong = np.where(np.arange(T) == 1, label, targets)

    @tf.function(jit_compile=compiled, autograph=False)
    def losses(logits):
        return LabelSmoothedCrossEntropy(0.1, reduction="none")(wrong, logits)

    (gradient,) = gradients(losses, logits)
    np.testing.assert_array_equal(np.isnan(losses(logits)), wrong == label)
    np.testing.assert_array_equal(np.any(gradient != 0, axis=-1), (wrong != 0) & (wrong != label))
    for metric in METRICS:
        assert np.isnan(metric_of(metric(), wrong, logits))


def test_batch_without_rows():
    targets, logits = np.zeros((0, T), int), np.zeros((0, T, V), "float32")
    assert_close(LabelSmoothedCrossEntropy(0.1)(targets, logits), 0.0)
    assert (
        metric_of(TokenLoss(), targets, logits) == metric_of(TokenAccuracy(), targets, logits) == 0
    )


def test_arguments_out_of_range(logits, targets):
    with pytest.raises(ValueError, match="`label_smoothing`"):
        LabelSmoothedCrossEntropy(1.0)
    for shape in [(B,), (B, T, 1)]:  # (B,): of Keras's `class_weight`
        with pytest.raises(ValueError, match="`sample_weight`"):
            LabelSmoothedCrossEntropy()(targets, logits, np.ones(shape))


# Reduction: what Keras's own loss does with padding, weights, and replicas.


def keras_loss(reduction="sum_over_batch_size"):
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=0, reduction=reduction
    )


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("weights", ["none", "tokens", "sentences"])
def test_reduction_is_that_of_keras(logits, targets, reduction, weights):
    weights = {
        "none": None,
        "tokens": np.random.default_rng(31).uniform(size=(B, T)).astype("float32"),
        "sentences": np.array([[0.5], [0.0], [2.0]], "float32"),
    }[weights]
    actual = LabelSmoothedCrossEntropy(0.0, reduction=reduction)(targets, logits, weights)
    broadcast = weights if weights is None else np.broadcast_to(weights, (B, T))
    assert_close(actual, keras_loss(reduction)(targets, logits, broadcast))


def test_targets_are_exact_in_half_precision():
    logits = np.zeros((1, 1, 2051))
    logits[..., 2049] = 10.0  # float16 has 2048 and 2050
    keras.config.set_floatx("float16")
    try:
        loss = LabelSmoothedCrossEntropy(0.0)(np.array([[2049]]), logits)
    finally:
        keras.config.set_floatx("float32")
    assert float(loss) == pytest.approx(np.log(np.exp(10) + 2050) - 10)


@pytest.mark.parametrize(("strategy", "smoothing"), [("one", 0.0), ("one", 0.1), ("mirrored", 0.0)])
def test_fit_on_replicas_by_hand(strategy, smoothing):
    """A bias of 5 logits: one step of clipped SGD on three sentences of 3, 1 and 2 tokens.

    As with Keras's own losses, each replica takes the mean over its tokens, and the gradient is
    the mean over the replicas.
    """
    targets = np.array([[1, 2, 3], [4, 0, 0], [2, 1, 0]])
    # At equal logits, the gradient of a token is 1/5 - smoothed labels, and its loss log(5).
    of_token = 0.2 - (smoothing / 5 + (1 - smoothing) * np.eye(5))
    if strategy == "one":
        expected = np.clip(of_token[targets[targets != 0]].mean(axis=0), -0.1, 0.1)
    else:  # each replica clips its third of the gradient
        parts = [of_token[row[row != 0]].mean(axis=0) / 3 for row in targets]
        expected = sum(np.clip(part, -0.1, 0.1) for part in parts)
    for loss in [LabelSmoothedCrossEntropy(smoothing), *[keras_loss()] * (smoothing == 0)]:
        with make_strategy(strategy).scope():
            inputs = keras.Input((3, 1))
            outputs = keras.layers.Dense(5, bias_initializer="ones")(inputs)
            model = keras.Model(inputs, outputs)
            model.compile(keras.optimizers.SGD(1.0, clipvalue=0.1), loss, jit_compile=False)
        data = tf.data.Dataset.from_tensors((tf.zeros((3, 3, 1)), targets))
        history = model.fit(data, shuffle=False, verbose=0)
        assert history.history["loss"] == pytest.approx([np.log(5)])
        np.testing.assert_allclose(model.layers[-1].bias, 1 - expected, rtol=1e-5)


# The metrics: two batches of 2 and 3 tokens, whose targets have probabilities of powers of 2.


def log_probs(*probabilities):
    return np.log(np.array(probabilities, dtype="float32"))


LIKELY = log_probs(1 / 8, 1 / 2, 1 / 4, 1 / 8)  # of ids 0 to 3
SURE_OF_PADDING = log_probs(0.97, 0.01, 0.01, 0.01)
BATCHES = [
    # Target probabilities 1/2 (the highest) and 1/4: 1 and 2 bits.
    (np.array([[1, 2]]), np.stack([LIKELY, LIKELY])[None]),
    # 1/8; 1/8 and 1/2: 3, 3 and 1 bits; three positions of padding, "predicted" right.
    (
        np.array([[3, 0, 0], [3, 1, 0]]),
        np.array([[LIKELY, SURE_OF_PADDING, SURE_OF_PADDING], [LIKELY, LIKELY, SURE_OF_PADDING]]),
    ),
]


@pytest.mark.parametrize(
    ("metric", "at_first", "expected"),
    [
        (TokenLoss, 0.0, 2 * np.log(2)),  # 10 bits in 5 tokens
        (Perplexity, 1.0, 4.0),  # 2^2
        (TokenAccuracy, 0.0, 2 / 5),
    ],
)
def test_metrics_are_means_of_tokens_and_not_of_batches(metric, at_first, expected):
    metric = metric()
    assert_close(metric.result(), at_first)
    for _ in range(2):
        for target_ids, logits in BATCHES:
            metric.update_state(target_ids, logits, sample_weight=np.full(target_ids.shape, 0.1))
        assert_close(metric.result(), expected)
        metric.reset_state()
        assert_close(metric.result(), at_first)


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (
            LabelSmoothedCrossEntropy(0.3, "sum", ignore_class=-1),
            {"label_smoothing": 0.3, "reduction": "sum", "ignore_class": -1},
        ),
        (TokenLoss("nats", ignore_class=-100), {"name": "nats", "ignore_class": -100}),
        (Perplexity("ppl"), {"name": "ppl"}),
        (TokenAccuracy("hits"), {"name": "hits"}),
    ],
)
def test_config_round_trip(original, expected):
    config = original.get_config()
    assert config.items() >= expected.items()
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(original))
    assert type(copy) is type(original)
    assert copy.get_config() == config
