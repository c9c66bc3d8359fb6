"""The same training on one device, several, and in parts; and what Keras still gets wrong."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.trainers.batches import BatchPlan
from keras_transformer.trainers.prepared import TokenizedPairs
from keras_transformer.trainers.recipes import TrainSettings
from keras_transformer.trainers.strategies import make_strategy
from keras_transformer.trainers.training import train
from keras_transformer.trainers.training_model import Adam, TrainingModel

NUM_DEVICES = 3  # of conftest.py
STEPS = 20
TOLERANCE = 1e-5  # of a tensor's largest weight
# How far all weights may be from those of one device in float32, of how far those have moved.
OF_MOVEMENT = {"float32": 1e-4, "mixed_bfloat16": 0.2, "mixed_float16": 0.1}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Batches of 7, 7 and 2 pairs: the one no multiple of 3 or of 2, the other less than 3."""
    folder = tmp_path_factory.mktemp("pairs")
    words = ["red", "dog", "cat", "two"]
    texts = [f"{words[i % 4]} {words[i // 4]}\n" for i in range(16)]
    for split in ("train", "val"):
        (folder / f"en.{split}.txt").write_text("".join(texts))
        (folder / f"de.{split}.txt").write_text("".join(texts[5:] + texts[:5]).upper())
    return TrainSettings(
        data=str(folder),
        strategy="one",
        steps=STEPS,
        tokens_per_batch=56,
        max_length=8,
        peak_rate=0.003,
        warmup_steps=2,
        steps_per_validation=9,
        model={
            "d_model": 10,
            "d_ff": 17,
            "num_heads": 2,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dropout_rate": 0.0,
        },
    )


@pytest.fixture(scope="module")
def one(settings, tmp_path_factory):
    """Its training on one device."""
    return train(settings, tmp_path_factory.mktemp("one"), verbose=0)


@pytest.fixture(scope="module")
def untrained(settings, tmp_path_factory):
    """Where it begins: one update at a rate of almost 0."""
    still = dataclasses.replace(settings, steps=1, peak_rate=1e-12)
    return train(still, tmp_path_factory.mktemp("untrained"), verbose=0)


def distance(run, other):
    """Euclidean, over all weights but the keys' biases; see `assert_same_weights`."""
    pairs = zip(run.model("last").weights, other.model("last").weights, strict=True)
    squares = [((a - b) ** 2).numpy().sum() for a, b in pairs if not a.path.endswith("key/bias")]
    return np.sqrt(sum(squares))


def assert_same_weights(actual, expected, tolerance):
    for ours, theirs in zip(
        actual.model("last").weights, expected.model("last").weights, strict=True
    ):
        # Attention does not depend on the keys' bias: its gradient is rounding error, which
        # Adam blows up to the learning rate.
        if not theirs.path.endswith("key/bias"):
            largest = np.abs(theirs).max()
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=tolerance * largest, err_msg=theirs.path
            )


def test_adam_is_that_of_keras():
    rng, options = np.random.default_rng(3), {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
    starts = [rng.normal(size=shape).astype("float32") for shape in ((5, 3), (7,))]
    variables = [[keras.Variable(start) for start in starts] for _ in range(2)]
    optimizers = [
        each(keras.optimizers.schedules.PolynomialDecay(0.5, 9), **options)
        for each in (Adam, keras.optimizers.Adam)
    ]
    for _ in range(4):
        gradients = [rng.normal(size=start.shape).astype("float32") for start in starts]
        for optimizer, weights in zip(optimizers, variables, strict=True):
            optimizer.apply([tf.constant(gradient) for gradient in gradients], weights)
    for ours, theirs, start in zip(*variables, starts, strict=True):
        assert np.abs(ours - start).min() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_batches_are_uneven(settings, one):
    lengths = TokenizedPairs(one.path / "corpus", "train").lengths
    plan = BatchPlan(lengths, settings.tokens_per_batch, settings.seed)
    rows = [len(plan.batch(step)[1]) for step in range(settings.steps)]
    assert {rows % NUM_DEVICES for rows in rows} == {1, 2}
    assert min(rows) < NUM_DEVICES


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "mirrored"},
        {"accumulate": 2},
        pytest.param({"strategy": "mirrored", "accumulate": 3}, marks=pytest.mark.distributed),
        # At this norm every update is clipped: by what, if not by the norm of the whole?
        pytest.param({"strategy": "mirrored", "clip_norm": 0.01}, marks=pytest.mark.distributed),
    ],
    ids=str,
)
def test_replicas_and_parts_train_as_one_device(settings, one, tmp_path, changes):
    expected = one
    if "clip_norm" in changes:
        clipped = dataclasses.replace(settings, clip_norm=changes["clip_norm"])
        expected = train(clipped, tmp_path / "expected", verbose=0)
    run = train(dataclasses.replace(settings, **changes), tmp_path / "run", verbose=0)
    assert_same_weights(run, expected, TOLERANCE)
    assert [line["step"] for line in run.metrics()] == [9, 18, 20]
    for ours, theirs in zip(run.metrics(), expected.metrics(), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


COMBINATIONS = [
    {"strategy": strategy, "precision": precision, "jit": jit, "accumulate": accumulate}
    for strategy, precision, jit, accumulate in itertools.product(
        ("one", "mirrored"), OF_MOVEMENT, (False, True), (1, 2)
    )
]


@pytest.mark.distributed
@pytest.mark.parametrize("changes", COMBINATIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_every_combination_trains(settings, one, untrained, tmp_path, changes):
    """The table of docs/scaling.md."""
    run = train(dataclasses.replace(settings, **changes), tmp_path / "run", verbose=0)
    assert distance(run, one) < OF_MOVEMENT[changes["precision"]] * distance(untrained, one)
    assert run.last.metrics["token_loss"] == pytest.approx(one.last.metrics["token_loss"], 0.02)


@pytest.mark.distributed
@pytest.mark.parametrize("precision", ["mixed_float16"])
def test_clipping_under_loss_scaling(settings, untrained, tmp_path, precision):
    """Gradients are added up, then unscaled, then clipped."""
    clipped = dataclasses.replace(settings, precision=precision, clip_norm=0.01)
    expected = train(clipped, tmp_path / "one", verbose=0)
    mirrored = dataclasses.replace(clipped, strategy="mirrored")
    run = train(mirrored, tmp_path / "mirrored", verbose=0)
    assert distance(run, expected) < 0.1 * distance(untrained, expected)


def test_overflow_on_one_replica_stops_all():
    """No weight moves, the loss scale halves, and the update does not count."""
    strategy = make_strategy("mirrored")
    with strategy.scope():
        inputs = keras.Input((2,))
        outputs = keras.layers.Dense(3)(inputs)
        model = TrainingModel(keras.Model(inputs, outputs))
        optimizer = keras.optimizers.LossScaleOptimizer(Adam(0.1), initial_scale=64.0)
        model.compile(optimizer, LabelSmoothedCrossEntropy(0.1), jit_compile=False)
        model.optimizer.build(model.trainable_variables)
    before = [weight.numpy() for weight in model.trainable_variables]

    def part(context, value):
        rows = tf.ones((2, 2)) * (value if context.replica_id_in_sync_group == 1 else 1.0)
        return rows, tf.ones((2,), tf.int32), tf.ones((2,))

    def step(value):
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: part(context, value)
        )
        tf.function(lambda data: strategy.run(model.train_step, args=(data,)))(parts)

    step(float("inf"))
    for weight, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert optimizer.dynamic_scale.numpy() == 32.0
    assert optimizer.inner_optimizer.iterations.numpy() == 0
    step(1.0)
    assert optimizer.inner_optimizer.iterations.numpy() == 1
    assert np.abs(model.trainable_variables[1].numpy() - before[1]).max() == pytest.approx(0.1, 0.1)


# What Keras still gets wrong: as soon as one of these fails, a part of `TrainingModel` can go.


@pytest.fixture(scope="module")
def keras_faults():
    script = Path(__file__).parents[2] / "keras_faults.py"
    command = [sys.executable, "-W", "ignore", str(script)]
    output = subprocess.run(command, capture_output=True, check=True, timeout=200).stdout
    return json.loads(output.splitlines()[-1])


def test_keras_cannot_begin_with_an_uneven_batch(keras_faults):
    assert keras_faults["uneven batches"] == "InvalidArgumentError"


def test_keras_cannot_accumulate_under_a_strategy(keras_faults):
    assert keras_faults["accumulation"] in ("RuntimeError", "ValueError", "StagingError")


def test_keras_cannot_compile_several_replicas_by_xla(keras_faults):
    assert isinstance(keras_faults["XLA"], str)


def test_keras_clips_each_replicas_part(keras_faults):
    """The sum of three clipped parts is three times as long as the clipped sum."""
    assert keras_faults["clipping"] == pytest.approx(3e-3, rel=1e-3)


# R-Drop.


def test_r_drop_by_hand():
    """Dropout of 0.5 before a linear layer; the loss of both passes' logits, in float64."""
    inputs = keras.Input((3, 5))
    logits = keras.layers.Dense(7)(keras.layers.Dropout(0.5, seed=1)(inputs))
    passes = []

    class Spy(TrainingModel):
        def call(self, inputs, training=None, mask=None):
            passes.append(super().call(inputs, training, mask))
            return passes[-1]

    model = Spy(keras.Model(inputs, logits), r_drop=3.0)
    model.compile(loss=LabelSmoothedCrossEntropy(0.1))
    random = np.random.default_rng(2)
    x = random.normal(size=(2, 3, 5)).astype("float32")
    y = np.array([[1, 4, 6], [2, 0, 0]])
    weights = (y != 0) / 4
    first = model(x, training=True)
    loss = model.compute_loss(x, y, first, weights.astype("float32"))
    p, q = (np.array(value, np.float64) for value in passes)
    assert np.abs(p - q).max() > 0.1
    log_p, log_q = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (p, q))
    divergences = [(np.exp(a) * (a - b)).sum(-1) for a, b in ((log_p, log_q), (log_q, log_p))]
    losses = [reference.label_smoothed_cross_entropy(z, y, smoothing=0.1) for z in (p, q)]
    expected = (weights * (sum(losses) / 2 + 3.0 / 2 * sum(divergences) / 2)).sum()
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    at_rest = model.compute_loss(x, y, first, weights.astype("float32"), training=False)
    assert float(at_rest) == pytest.approx((weights * losses[0]).sum(), rel=1e-5)
