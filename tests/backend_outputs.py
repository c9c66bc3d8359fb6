"""What the layers, the model, the loss and a short training give on a backend of Keras.

    KERAS_BACKEND=jax python tests/backend_outputs.py OUT.npz

`tests/unit/model/test_backends.py` compares the backends.
"""

import sys

import keras
import layer_weights
import numpy as np
from keras import ops

from keras_transformer import (
    DecoderLayer,
    EncoderLayer,
    LabelSmoothedCrossEntropy,
    Perplexity,
    PositionalEmbedding,
    TokenAccuracy,
    TokenLoss,
    WarmupSchedule,
)
from keras_transformer.model.losses import symmetric_divergence

B, S, T, V = 3, 7, 11, layer_weights.V
VARIANTS = ("tied", "untied learned", "pre-norm")
METRICS = [TokenLoss, Perplexity, TokenAccuracy]


def make_inputs():
    rng = np.random.default_rng(29)
    source_ids, target_ids = (rng.integers(1, V, (B, n)).astype("int32") for n in (S, T))
    source_ids[1, 4:] = source_ids[2, 2:] = target_ids[1, 5:] = target_ids[2, 8:] = 0
    return {"source_ids": source_ids, "target_ids": target_ids}


class WithDivergence(LabelSmoothedCrossEntropy):
    """Reaches both closed forms of a gradient."""

    def call(self, labels, logits):
        others = ops.roll(logits, 1, axis=-1)
        return super().call(labels, logits) + 0.1 * symmetric_divergence(logits, others)


def outputs():
    """Returns arrays by name."""
    inputs, found = make_inputs(), {}
    labels = inputs["target_ids"]
    for name in VARIANTS:
        model = layer_weights.make_model(**layer_weights.VARIANTS[name])
        found[f"logits, {name}"] = logits = model(inputs)
        found[f"attention, {name}"] = model.attention_scores(**inputs).cross[-1]

    # Masks that Keras carries, and a hidden row.
    x, y = (keras.Input((None,), dtype="int32") for _ in range(2))
    embedding = PositionalEmbedding(V, 10, mask_zero=True)
    decoded = DecoderLayer(10, 17, 2)(embedding(y), EncoderLayer(10, 17, 2)(embedding(x)))
    layers = layer_weights.randomize(keras.Model([x, y], embedding(decoded, reverse=True)))
    found["masks"] = layers([inputs["source_ids"] * [[1], [0], [1]], labels])

    for label in (-100, V):
        wrong = np.where(np.arange(T) == 1, label, labels)
        for smoothing, ignored in ((0.0, None), (0.1, label)):
            loss = LabelSmoothedCrossEntropy(smoothing, "none", ignore_class=ignored)
            found[f"loss, {label}, {smoothing}, {ignored}"] = loss(wrong, logits)
        for metric in (metric() for metric in METRICS):
            metric.update_state(wrong, logits)
            found[f"{metric.name}, {label}"] = metric.result()
    found["rates"] = [WarmupSchedule(10, 7)(step) for step in (0, 6, 20)]

    model = layer_weights.make_model(dropout_rate=0.0, num_decoder_layers=1)
    optimizer = keras.optimizers.Adam(WarmupSchedule(10, 7), epsilon=1e-3)
    model.compile(optimizer, WithDivergence(0.1), metrics=[metric() for metric in METRICS])
    history = model.fit(inputs, labels, B, epochs=3, shuffle=False, verbose=0).history
    found |= {f"training: {name}": values for name, values in history.items()}
    for weight in model.weights:
        if not weight.path.endswith("key/bias"):  # its gradient is zero, up to rounding
            found[f"trained: {weight.path}"] = weight
    return {name: ops.convert_to_numpy(value) for name, value in found.items()}


if __name__ == "__main__":
    np.savez(sys.argv[1], **{name.replace("/", "."): value for name, value in outputs().items()})
