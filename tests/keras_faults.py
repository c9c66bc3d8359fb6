"""What Keras alone gets wrong on several replicas, tried in a process of its own.

A failed collective operation leaves the process's others in disorder. Prints a JSON object: the
name of each fault, and the exception's type or a figure.
"""

import json
import sys

import keras
import tensorflow as tf

NUM_DEVICES = 3

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES,
)


def strategy():
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(devices)


def fit(rows, optimizer=None, jit=False):
    """Trains a linear model for two steps; returns its weights' Euclidean movement a step."""
    with strategy().scope():
        inputs = keras.Input((2,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(optimizer() if optimizer else "sgd", loss, jit_compile=jit)
    before = [weight.numpy() for weight in model.weights]
    data = tf.data.Dataset.from_tensors((tf.ones((rows, 2)), tf.ones((rows, 1)))).repeat(2)
    model.fit(data, shuffle=False, verbose=0)
    squares = [((b - w.numpy()) ** 2).sum() for b, w in zip(before, model.weights, strict=True)]
    return float(sum(squares)) ** 0.5 / 2


def attempt(*arguments, **options):
    try:
        return fit(*arguments, **options)
    except Exception as error:
        return type(error).__name__


def num_masks():
    """Returns how many different masks the replicas draw."""
    devices = strategy()
    with devices.scope():
        dropout = keras.layers.Dropout(0.5)
    step = tf.function(lambda: devices.run(lambda: dropout(tf.ones((1, 99)), training=True)))
    return len({mask.numpy().tobytes() for mask in devices.experimental_local_results(step())})


found = {
    "masks of dropout": num_masks(),
    "clipping": attempt(NUM_DEVICES, lambda: keras.optimizers.SGD(1.0, global_clipnorm=1e-3)),
    "accumulation": attempt(
        NUM_DEVICES, lambda: keras.optimizers.Adam(gradient_accumulation_steps=2)
    ),
    "XLA": attempt(NUM_DEVICES, jit=True),
    "uneven batches": attempt(NUM_DEVICES + 1),
}
sys.stdout.write(json.dumps(found) + "\n")
