"""What a training step computes, and the cures for what Keras 3 gets wrong under `tf.distribute`.

`fit` knows one device well. Where there are several, or several machines, or batches that arrive in
parts, four of its habits must change; `tests/keras_faults.py` tells as soon as Keras no longer has
one of the first three:

- it averages the replicas' first batches to learn their shapes, which fails where replicas hold
  unequal parts (keras issue 19246): `_maybe_symbolic_build`;
- its optimizers clip gradients, and look for overflow, before the replicas' are added up:
  `TrainingModel.train_step` adds first, and `Adam` does not add again;
- its accumulation of gradients fails under every strategy (keras issue 20582): `_add_up_parts`;
- under several machines it takes the mean of each log over its first axis, and logs are scalars
  (keras issue 20585): `_logs`.
"""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.losses import symmetric_divergence


class Adam(keras.optimizers.Adam):
    """Adam of gradients that are added up over the replicas already."""

    def finalize_variable_values(self, var_list: Any) -> None:
        """Does nothing: `fit` would end by putting the moving average in the weights' place."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Does as Keras does, in one pass over a weight and its moments instead of a dozen."""
        index = self._get_variable_index(variable)
        step = ops.cast(self.iterations + 1, "float32")
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return list(grads_and_vars)


class TrainingModel(keras.Model):
    """A functional model that trains alike on any number of replicas, machines and parts.

    It shares all layers with the model it is made from. Its loss is a sum over the replicas' parts
    of a batch, so gradients and losses are added up, never averaged. Under a strategy it must be
    made within the strategy's scope, and compiled with an `Adam` of this module.

    With `r_drop`, the loss of a batch is that of two passes, each with dropout of its own, whose
    predictions are drawn together (R-Drop, Liang et al. 2021): half of the paper's loss, so that
    the scale of the gradients stays,

        (CE(p) + CE(q)) / 2 + r_drop / 2 * (KL(p || q) + KL(q || p)) / 2

    Args:
        model: a functional model.
        r_drop: weight of the divergence, alpha; 0 for one pass.
        accumulate: parts that an update's batch arrives in, as the first axis of all inputs,
            labels and weights; 1 for no such axis.
        jit: whether XLA compiles the gradients. (Keras's own `jit_compile` compiles the update as
            well, which fails on several replicas.)
    """

    def __init__(
        self, model: keras.Model, r_drop: float = 0.0, accumulate: int = 1, jit: bool = False
    ) -> None:
        super().__init__(inputs=model.input, outputs=model.output)
        self.r_drop = r_drop
        self.accumulate = accumulate
        gradients = self._gradients if accumulate == 1 else self._add_up_parts
        self._batch_gradients = tf.function(gradients, jit_compile=True) if jit else gradients

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
        divergence = symmetric_divergence(y_pred, other)  # [B, T]
        return loss + self.r_drop / 4 * ops.sum(divergence * sample_weight)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes an update, in the context of a replica."""
        gradients = self._batch_gradients(data)
        replica = tf.distribute.get_replica_context()
        if replica.num_replicas_in_sync > 1:
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._logs()

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates a batch, in the context of a replica."""
        x, y, sample_weight = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=False)
        self._track(loss, x, y, y_pred, sample_weight, parts=1)
        return self._logs()

    def _gradients(self, data: Any) -> list[tf.Tensor]:
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        self._track(loss, x, y, y_pred, sample_weight, self.accumulate)
        gradients = tape.gradient(scaled, self.trainable_variables)
        # That of an embedding may come as slices, which cannot be added up in a loop.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _add_up_parts(self, data: Any) -> list[tf.Tensor]:
        def add(index: Any, total: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
            part = tf.nest.map_structure(lambda value: value[index], data)
            return index + 1, [a + b for a, b in zip(total, self._gradients(part), strict=True)]

        zeros = [tf.zeros(variable.shape) for variable in self.trainable_variables]
        loop = tf.while_loop(lambda index, _: index < self.accumulate, add, (0, zeros))
        gradients: list[tf.Tensor] = loop[1]
        return gradients

    def _track(
        self, loss: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, parts: int
    ) -> None:
        # The tracker takes a mean, and the parts' losses add up: a batch counts once.
        parts *= tf.distribute.get_strategy().num_replicas_in_sync
        self._loss_tracker.update_state(loss * parts, sample_weight=1 / parts)
        self.compute_metrics(x, y, y_pred, sample_weight)

    def _logs(self) -> dict[str, Any]:
        logs = self.get_metrics_result()
        strategy = tf.distribute.get_strategy()
        # Keras adds up the logs of several machines, along an axis that scalars do not have.
        is_multi = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        if is_multi and strategy.extended._in_multi_worker_mode():  # what Keras asks
            logs = {name: value[None] for name, value in logs.items()}
        return dict(logs)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if self.train_function is not None or self._distribute_strategy is None:
            return  # its first step builds it, or has
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            # Any replica's part of a batch tells the shapes as well as the whole.
            data_batch = tf.nest.map_structure(
                lambda value: self._distribute_strategy.experimental_local_results(value)[0],
                next(batches),
            )
            if self.accumulate > 1:
                data_batch = tf.nest.map_structure(lambda value: value[0], data_batch)
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
