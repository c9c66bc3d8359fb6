"""Training under `tf.distribute`, and the cure for what Keras 3 gets wrong there."""

from typing import Any, Literal

import keras
import tensorflow as tf

from keras_transformer.errors import InputError

StrategyName = Literal["one", "mirrored"]


def make_strategy(name: StrategyName) -> tf.distribute.Strategy:
    """Returns the strategy of a name.

    Args:
        name: "one" for the first device, "mirrored" for all GPUs of this machine (all logical
            CPU devices where there is no GPU).

    Raises:
        InputError: if there is no such strategy.
    """
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return tf.distribute.MirroredStrategy(
            [device.name for device in tf.config.list_logical_devices(kind)]
        )
    raise InputError(f"`strategy` must be one or mirrored. Received: strategy={name!r}")


class TrainingModel(keras.Model):
    """A functional model that `fit` can train on batches that no number of replicas divides.

    It shares all layers with the model it is made from. Before its first step, Keras averages the
    first batch over the replicas to learn the shapes, which fails where the replicas hold
    unequal parts (keras issue 19246). Any replica's part tells the shapes just as well.

    Args:
        model: a functional model.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(inputs=model.input, outputs=model.output)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and self._distribute_strategy is not None:
            _, _, batches = next(iter(iterator))
            strategy = self._distribute_strategy
            data_batch = tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
