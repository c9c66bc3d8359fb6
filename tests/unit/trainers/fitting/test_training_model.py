"""The same training on one device, several, and in micro-batches; and the faults of Keras."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf
from close_runs import assert_close_runs, assert_close_weights
from eager import eagerly
from shared_fixtures import write_short_pairs

from keras_transformer.config import BOS_ID, EOS_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.model.losses import LabelSmoothedCrossEntropy, TokenLoss
from keras_transformer.model.transformer import Transformer
from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.trainers.fitting.strategies import make_strategy
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.fitting.training_model import (
    Adam,
    TrainingModel,
    add_token_weights,
    text_batches,
)
from keras_transformer.trainers.settings import TrainSettings

STEPS = 20
MODEL = {"d_model": 10, "d_ff": 17, "num_heads": 2, "dropout_rate": 0.0}
MODEL |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
# How far all weights may be from those of one device in float32, of how far those have moved.
OF_MOVEMENT = {"float32": 1e-4, "mixed_bfloat16": 0.2, "mixed_float16": 0.1}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """14 pairs in batches of at most 5, which 3 replicas do not share evenly."""
    folder = tmp_path_factory.mktemp("pairs")
    write_short_pairs(folder, 14, ["train", "val"])
    return TrainSettings(
        data=str(folder),
        augment={},
        strategy="one",
        steps=STEPS,
        tokens_per_batch=40,
        max_length=8,
        peak_rate=0.003,
        warmup_steps=2,
        steps_per_validation=9,
        model=MODEL,
    )


@pytest.fixture(scope="module")
def one(settings, tmp_path_factory):
    """Its training on one device."""
    return train(settings, tmp_path_factory.mktemp("one"), verbose=0)


@pytest.fixture(scope="module")
def untrained(settings, tmp_path_factory):
    """Where it begins: one update at a rate of almost 0."""
    still = dataclasses.replace(settings, steps=1, peak_rate=1e-12)
    with eagerly():
        return train(still, tmp_path_factory.mktemp("untrained"), verbose=0)


def distance(run, other):
    """Euclidean, over all weights but the keys' biases: see close_runs.py."""
    pairs = zip(run.model("last").weights, other.model("last").weights, strict=True)
    squares = [((a - b) ** 2).numpy().sum() for a, b in pairs if not a.path.endswith("key/bias")]
    return np.sqrt(sum(squares))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adam_is_that_of_keras(dtype):
    rng, options = np.random.default_rng(3), {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
    starts = [rng.normal(size=shape).astype(dtype) for shape in ((5, 3), (7,))]
    variables = [[keras.Variable(start, dtype=dtype) for start in starts] for _ in range(2)]
    optimizers = [
        each(keras.optimizers.schedules.PolynomialDecay(0.5, 9), **options)
        for each in (Adam, keras.optimizers.Adam)
    ]
    for _ in range(4):
        gradients = [rng.normal(size=start.shape).astype(dtype) for start in starts]
        for optimizer, weights in zip(optimizers, variables, strict=True):
            optimizer.apply([tf.constant(gradient) for gradient in gradients], weights)
    for ours, theirs, start in zip(*variables, starts, strict=True):
        assert np.abs(ours - start).min() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_replicas_and_micro_batches_train_as_one_device(settings, one, tmp_path):
    changes = {"strategy": "mirrored", "accumulate": 3}
    assert_close_runs(train(dataclasses.replace(settings, **changes), tmp_path, verbose=0), one)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("precision", "share"), [("float32", 1e-4), ("mixed_float16", OF_MOVEMENT["mixed_float16"])]
)
def test_small_batches_and_clipping(settings, untrained, tmp_path, precision, share):
    """Two pairs for three replicas; at this norm every update is clipped, after unscaling."""
    changes = {"tokens_per_batch": 16, "clip_norm": 0.01, "precision": precision}
    clipped = dataclasses.replace(settings, **changes)
    with eagerly():
        expected = train(clipped, tmp_path / "one", verbose=0)
    mirrored = dataclasses.replace(clipped, strategy="mirrored")
    run = train(mirrored, tmp_path / "mirrored", verbose=0)
    assert distance(run, expected) < share * distance(untrained, expected)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("strategy", "precision", "jit", "accumulate"),
    [
        ("one", "float32", True, 2),
        ("one", "mixed_bfloat16", False, 2),
        ("mirrored", "mixed_bfloat16", True, 1),
        ("one", "mixed_float16", True, 1),
        ("mirrored", "mixed_float16", False, 2),
    ],
)
def test_combinations(settings, one, untrained, tmp_path, strategy, precision, jit, accumulate):
    """With the test of micro-batches, each pair of values occurs: several-gpus.md."""
    changes = {"strategy": strategy, "precision": precision, "jit": jit, "accumulate": accumulate}
    run = train(dataclasses.replace(settings, **changes), tmp_path / "run", verbose=0)
    assert distance(run, one) < OF_MOVEMENT[precision] * distance(untrained, one)
    assert run.last.metrics["token_loss"] == pytest.approx(one.last.metrics["token_loss"], 0.02)


def test_replicas_drop_apart():
    """An input is dropped everywhere, so that its weight stays, in 1 of 2^3 cases."""
    strategy = make_strategy("mirrored")
    with strategy.scope():
        inputs = keras.Input((2_000,))
        outputs = keras.layers.Dense(3)(keras.layers.Dropout(0.5, seed=7)(inputs))
        model = TrainingModel(keras.Model(inputs, outputs))
        model.compile(Adam(0.1), LabelSmoothedCrossEntropy(0.1, reduction="sum"))
    kernel, _ = model.trainable_variables
    before = kernel.numpy()
    rows = tf.ones((strategy.num_replicas_in_sync, 2_000)), tf.ones(3, tf.int32), tf.ones(3)
    model.fit(tf.data.Dataset.from_tensors(rows), shuffle=False, verbose=0)
    stays = np.mean(kernel.numpy() == before)
    assert stays == pytest.approx(1 / 8, abs=0.03)  # four standard deviations
    (state,) = (each for each in model.non_trainable_variables if "seed" in each.path)
    states = [each.numpy().tolist() for each in strategy.experimental_local_results(state.value)]
    assert states == [[7, 1]] * 3


def test_overflow_on_one_replica_stops_all():
    """No weight moves, the loss scale halves, and the update does not count."""
    strategy = make_strategy("mirrored")
    with strategy.scope():
        inputs = keras.Input((2,))
        outputs = keras.layers.Dense(3)(inputs)
        model = TrainingModel(keras.Model(inputs, outputs))
        optimizer = keras.optimizers.LossScaleOptimizer(Adam(0.1), initial_scale=64.0)
        model.compile(optimizer, LabelSmoothedCrossEntropy(0.1, reduction="sum"))
        model.optimizer.build(model.trainable_variables)
    before = [weight.numpy() for weight in model.trainable_variables]

    def part(context, value):
        rows = tf.ones((2, 2)) * (value if context.replica_id_in_sync_group == 1 else 1.0)
        return rows, tf.ones((2,), tf.int32), tf.ones((2,))

    def step(value):
        parts = strategy.experimental_distribute_values_from_function(
            lambda context: part(context, value)
        )
        tf.function(lambda data: strategy.run(model.train_step, args=(data,)), autograph=False)(
            parts
        )

    step(float("inf"))
    for weight, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert optimizer.dynamic_scale.numpy() == 32.0
    assert optimizer.inner_optimizer.iterations.numpy() == 0
    step(1.0)
    assert optimizer.inner_optimizer.iterations.numpy() == 1
    assert np.abs(model.trainable_variables[1].numpy() - before[1]).max() == pytest.approx(0.1, 0.1)


@pytest.mark.distributed
def test_faults_of_keras():
    """As soon as one of these fails, a part of `TrainingModel` can go."""
    script = Path(__file__).parents[3] / "keras_faults.py"
    command = [sys.executable, "-W", "ignore", str(script)]
    output = subprocess.run(command, capture_output=True, check=True, timeout=200).stdout
    faults = json.loads(output.splitlines()[-1])
    assert faults["uneven batches"] == "InvalidArgumentError"
    assert faults["accumulation"] in ("RuntimeError", "ValueError", "StagingError")
    assert isinstance(faults["XLA"], str)
    assert faults["masks of dropout"] == 1
    # The sum of three clipped parts is three times as long as the clipped sum.
    assert faults["clipping"] == pytest.approx(3e-3, rel=1e-3)


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
    model.compile(Adam(), LabelSmoothedCrossEntropy(0.1, reduction="sum"))
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


# A dataset and `fit` of a user's own.


def own_sentences():
    """Twelve pairs of at most 6 and 5 tokens, of 19 ids."""
    random = np.random.default_rng(11)
    for _ in range(12):
        source, target = (random.integers(4, 19, size=random.integers(2, n)) for n in (7, 6))
        inputs = {"source_ids": source, "target_ids": np.append(1, target[:-1])}
        yield tf.nest.map_structure(np.int32, (inputs, target))


def own_dataset():
    """Batches of 5, 5 and 2 pairs: the last one leaves a third replica without a row."""
    ids = tf.TensorSpec((None,), tf.int32)
    dataset = tf.data.Dataset.from_generator(
        own_sentences, output_signature=({"source_ids": ids, "target_ids": ids}, ids)
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(12)).padded_batch(5)


def own_model():
    keras.utils.set_random_seed(3)
    return Transformer(TransformerConfig(vocab_size=19, **MODEL))


# Adam's default of 1e-7 blows up the rounding error of a gradient near zero.
EPSILON = 1e-4


def fit_own(strategy, num_micro_batches=1):
    """Returns the variables after 6 updates, and the losses."""
    with make_strategy(strategy).scope():
        model = own_model()
        trained = TrainingModel(model, num_micro_batches=num_micro_batches)
        loss = LabelSmoothedCrossEntropy(0.1, reduction="sum")
        optimizer = Adam(0.003, epsilon=EPSILON, global_clipnorm=0.5)
        trained.compile(optimizer, loss, [TokenLoss()])
    data = own_dataset().map(add_token_weights)
    history = trained.fit(data, epochs=2, validation_data=data, shuffle=False, verbose=0)
    return model.weights, history.history


@pytest.fixture(scope="module")
def own():
    with eagerly():
        return fit_own("one")


@pytest.mark.distributed
def test_own_dataset_trains_as_on_one_replica(own):
    weights, history = fit_own("mirrored", num_micro_batches=2)
    assert_close_weights(weights, own[0])
    for name in ("loss", "token_loss", "val_loss", "val_token_loss"):
        assert history[name] == pytest.approx(own[1][name], rel=1e-4)


@pytest.mark.usefixtures("eager")
def test_own_dataset_on_one_replica_is_what_keras_trains(own):
    """Keras's own Adam and mean over the tokens, without a strategy."""
    model = own_model()
    optimizer = keras.optimizers.Adam(0.003, epsilon=EPSILON, global_clipnorm=0.5)
    model.compile(optimizer, LabelSmoothedCrossEntropy(0.1), jit_compile=False)
    model.fit(own_dataset(), epochs=2, shuffle=False, verbose=0)
    # Keras's Adam adds in another order: 1.2e-5 on an Intel processor, less on an AMD.
    assert_close_weights(own[0], model.weights, tolerance=3e-5)


@pytest.mark.distributed
def test_example_of_the_page(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    # A second strategy of the same devices would disturb the sums of the first one.
    strategy = make_strategy("mirrored")
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda: strategy)
    page = Path(__file__).parents[4] / "docs" / "howto" / "several-gpus.md"
    (example,) = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    names = {}
    exec(compile(example, page, "exec"), names)
    assert (tmp_path / "model.keras").is_file()
    labels, target_ids = names["labels"], names["target_ids"]
    np.testing.assert_array_equal(target_ids[:, 1:], labels[:, :-1])
    assert (set(target_ids[:, 0]), set(labels[:, -1])) == ({BOS_ID}, {EOS_ID})


def test_batches_of_texts():
    tokenizer = SentencePieceTokenizer.train(["red dog cat"] * 3, 280)
    red, dog, cat = (
        tokenizer.source.tokenize([text]).to_list()[0] for text in ("red", "dog", "cat")
    )
    sources, targets = ["red", "dog", "cat"], ["dog", "cat cat cat cat", "red"]
    first, last = text_batches(sources, targets, tokenizer, batch_size=2, max_length=len(cat) + 2)
    assert first[0]["source_ids"].numpy()[1].tolist()[: len(dog) + 1] == [*dog, EOS_ID]
    long = tokenizer.source.tokenize(["cat cat"]).to_list()[0][: len(cat) + 1]  # cut
    assert first[1].numpy()[1].tolist() == [*long, EOS_ID]
    assert first[0]["target_ids"].numpy()[1].tolist() == [BOS_ID, *long]
    assert last[1].numpy().tolist() == [[*red, EOS_ID]]
    with pytest.raises(InputError, match=r"`sources` and `targets` .*: sources=3, targets=1"):
        text_batches(sources, targets[:1], tokenizer, batch_size=2)


def test_token_weights_by_hand():
    labels = np.array([[7, 5, 2], [6, 2, 0]])  # five tokens
    inputs, same_labels, weights = add_token_weights({"source_ids": labels}, labels)
    assert (inputs["source_ids"] is labels, same_labels is labels) == (True, True)
    np.testing.assert_allclose(weights, [[0.2, 0.2, 0.2], [0.2, 0.2, 0.0]])
    np.testing.assert_array_equal(add_token_weights({}, np.zeros((2, 3), int))[2], 0)


def test_what_does_not_add_up_is_refused():
    inputs = keras.Input((3,))
    trained = TrainingModel(keras.Model(inputs, keras.layers.Dense(5)(inputs)))
    loss = LabelSmoothedCrossEntropy(0.1, reduction="sum")
    with pytest.raises(ValueError, match="`optimizer` must"):
        trained.compile("adam", loss)
    with pytest.raises(ValueError, match="`loss` must"):
        trained.compile(Adam(), LabelSmoothedCrossEntropy())
    trained.compile(Adam(), loss)
    with pytest.raises(ValueError, match=r"batches of \(inputs, labels, weights\)"):
        trained.fit(np.ones((2, 3)), np.ones((2,)), verbose=0)
