import dataclasses

import keras
import numpy as np
import pytest
import reference
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.losses import LabelSmoothedCrossEntropy
from keras_transformer.trainers.batches import BatchPlan
from keras_transformer.trainers.preparation import TokenizedPairs
from keras_transformer.trainers.recipes import TrainSettings
from keras_transformer.trainers.strategies import TrainingModel, make_strategy
from keras_transformer.trainers.training import train

NUM_DEVICES = 3  # of conftest.py


def test_one_device_is_tensorflows_default():
    assert make_strategy("one") is tf.distribute.get_strategy()


def test_mirrored_uses_all_devices():
    strategy = make_strategy("mirrored")
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    expected = [device.name for device in tf.config.list_logical_devices(kind)]
    workers = strategy.extended.worker_devices
    assert [tf.config.LogicalDevice(name, kind).name[-5:] for name in workers] == [
        name[-5:] for name in expected
    ]
    assert kind == "GPU" or strategy.num_replicas_in_sync == NUM_DEVICES


def test_unknown_strategy():
    with pytest.raises(InputError, match=r"must be one or mirrored\. Received: strategy='tpu'"):
        make_strategy("tpu")


def test_replicas_train_as_one_device(tmp_path):
    # 16 pairs in batches of 7, 7 and 2: the one no multiple of 3, the other less than 3.
    words = ["red", "dog", "cat", "two"]
    texts = [f"{words[i % 4]} {words[i // 4]}\n" for i in range(16)]
    (tmp_path / "en.train.txt").write_text("".join(texts))
    (tmp_path / "de.train.txt").write_text("".join(texts[5:] + texts[:5]).upper())
    settings = TrainSettings(
        data=str(tmp_path),
        steps=5,
        tokens_per_batch=56,
        max_length=8,
        peak_rate=0.01,
        warmup_steps=2,
        model={
            "d_model": 10,
            "d_ff": 17,
            "num_heads": 2,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dropout_rate": 0.0,
        },
    )
    runs = [
        train(dataclasses.replace(settings, strategy=strategy), tmp_path / strategy, verbose=0)
        for strategy in ("one", "mirrored")
    ]
    lengths = TokenizedPairs(tmp_path / "one" / "corpus", "train").lengths
    plan = BatchPlan(lengths, settings.tokens_per_batch, settings.seed)
    rows = [len(plan.batch(step)[1]) for step in range(settings.steps)]
    assert {rows % NUM_DEVICES for rows in rows} - {0}
    assert min(rows) < NUM_DEVICES
    one, mirrored = (run.model("last").weights for run in runs)
    for expected, actual in zip(one, mirrored, strict=True):
        # Attention does not depend on the keys' bias: its gradient is rounding error, which
        # Adam blows up to the learning rate.
        if not expected.path.endswith("key/bias"):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5, err_msg=expected.path)


def test_keras_still_needs_the_cure():
    """As soon as this fails, `TrainingModel` can go."""
    strategy = make_strategy("mirrored")
    with strategy.scope():
        inputs = keras.Input((2,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", jit_compile=False)
    rows = NUM_DEVICES + 1
    dataset = tf.data.Dataset.from_tensors((tf.ones((rows, 2)), tf.ones((rows, 1))))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the same size and shape"):
        model.fit(dataset, shuffle=False, verbose=0)


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
