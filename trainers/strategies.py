"""Training under `tf.distribute`, and the cure for what Keras 3 gets wrong there."""

from typing import Any, Literal

import keras
import tensorflow as tf
from keras import ops

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

    With `r_drop`, the loss of a batch is that of two passes, each with dropout of its own, whose
    predictions are drawn together (R-Drop, Liang et al. 2021): half of the paper's loss, so that
    the scale of the gradients stays,

        (CE(p) + CE(q)) / 2 + r_drop / 2 * (KL(p || q) + KL(q || p)) / 2

    Args:
        model: a functional model.
        r_drop: weight of the divergence, alpha; 0 for one pass.
    """

    def __init__(self, model: keras.Model, r_drop: float = 0.0) -> None:
        super().__init__(inputs=model.input, outputs=model.output)
        self.r_drop = r_drop

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Computes the loss; see the class."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if not (training and self.r_drop):
            return loss
        other = self(x, training=True)  # [B, T, V]
        loss = (loss + super().compute_loss(x, y, other, sample_weight, training)) / 2
        log_p, log_q = ops.log_softmax(y_pred), ops.log_softmax(other)
        # The two directions together: sum of (p - q) (log p - log q).
        divergence = ops.sum((ops.exp(log_p) - ops.exp(log_q)) * (log_p - log_q), axis=-1)
        return loss + self.r_drop / 4 * ops.sum(divergence * sample_weight)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and self._distribute_strategy is not None:
            _, _, batches = next(iter(iterator))
            strategy = self._distribute_strategy
            data_batch = tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
