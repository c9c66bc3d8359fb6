"""A training step that gives the same result on any number of replicas and micro-batches.

Under a `tf.distribute` strategy, Keras 3 has faults that this module and `keras_internals.py`
avoid:

- `fit` fails where replicas hold batches of different shapes (keras issue 19246): `UnevenModel`;
- its optimizers clip gradients, and look for overflow, before the sum over the replicas:
  `TrainingModel.train_step` computes the sum first, and `LocalAdam` does not repeat it;
- its accumulation of gradients fails under every strategy (keras issue 20582):
  `TrainingModel._sum_over_micro_batches`;
- its dropout draws the same numbers on all replicas: `TrainingModel._shift_seeds`;
- on several machines it averages each log over its first axis, and logs are scalars (keras issue
  20585): `TrainingModel._logs`.

`tests/keras_faults.py` shows whether Keras still has the first four faults.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError, require
from keras_transformer.model.losses import symmetric_divergence
from keras_transformer.tokenizers import Tokenizer, shifted
from keras_transformer.trainers.fitting.keras_internals import LocalAdam, UnevenModel, is_seed_state
from keras_transformer.trainers.fitting.strategies import num_workers

Inputs: TypeAlias = dict[str, tf.Tensor]
Batch: TypeAlias = tuple[Inputs, tf.Tensor, tf.Tensor]  # inputs, labels, weights


def text_batches(
    sources: Sequence[str],
    targets: Sequence[str],
    tokenizer: Tokenizer,
    batch_size: int,
    max_length: int = 256,
) -> tf.data.Dataset:
    """Returns `sources` and their translations, `targets`, as batches for `fit`, in their order.

    Args:
        tokenizer: of both languages.
        batch_size: pairs of a batch.
        max_length: maximum number of tokens of a text, its end included. Longer texts are cut.

    Returns:
        Batches of inputs, `source_ids` [B, S] and `target_ids` [B, T], and of labels, int32 [B, T].
    """

    def batch(sources: tf.Tensor, targets: tf.Tensor) -> tuple[Inputs, tf.Tensor]:
        source, target = tokenizer.encode_pairs(sources, targets, max_length, max_length)
        return {"source_ids": source.ids, "target_ids": shifted(target.ids)}, target.ids

    require(
        len(sources) == len(targets),
        "`sources` and `targets` must have the same length",
        sources=len(sources),
        targets=len(targets),
    )
    columns = tuple(tf.constant(list(texts), tf.string) for texts in (sources, targets))
    texts = tf.data.Dataset.from_tensor_slices(columns)
    batches = texts.batch(batch_size).map(
        tf.autograph.experimental.do_not_convert(batch), tf.data.AUTOTUNE
    )
    return batches.prefetch(tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert  # which `map` would convert
def add_token_weights(inputs: Inputs, labels: tf.Tensor) -> Batch:
    """Adds the weights that `TrainingModel` needs to a batch of all replicas together.

    Apply it by `tf.data.Dataset.map`, before `fit` splits the batches.

    Returns:
        `inputs`, `labels` (int [B, T]), and weights, float32 [B, T]: 1 / (number of tokens in
        `labels`), and 0 at padding.
    """
    is_token = tf.cast(tf.not_equal(labels, PAD_ID), tf.float32)
    return inputs, labels, tf.math.divide_no_nan(is_token, tf.reduce_sum(is_token))


class Adam(LocalAdam):
    """Adam (section 5.3) of gradients that are already summed over the replicas.

    It takes the arguments of `keras.optimizers.Adam` except `amsgrad`. One operation updates a
    weight and its moments instead of a dozen.

    Deviations: like Keras and TensorFlow, it adds epsilon to sqrt(v), as Kingma and Ba (2015)
    mention before section 2.1, and not to sqrt(v / (1 - beta_2^t)), as in their Algorithm 1.
    """

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Leaves the weights, which `fit` would replace by their moving average."""

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        momentum, velocity = self.moments(variable)
        step = ops.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.handle,
            v=velocity.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=ops.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


class TrainingModel(UnevenModel):
    """A model that trains the same on any number of replicas, machines and micro-batches.

    It shares all layers with `model`, so save `model`. Batches need the weights of
    `add_token_weights`: the loss is the weighted sum over the tokens, so the losses and gradients
    of replicas and micro-batches add up. Under a strategy, create it within the strategy's scope.

    With `r_drop`, two passes with different dropout give predictions p and q (R-Drop, Liang et al.
    2021). The loss is half of the R-Drop paper's, so that the scale of the gradients stays:

        (CE(p) + CE(q)) / 2 + r_drop / 2 * (KL(p || q) + KL(q || p)) / 2

    Args:
        model: a functional model, such as a `Transformer`.
        r_drop: weight of the divergence, alpha in the R-Drop paper; 0 for one pass.
        num_micro_batches: parts into which a replica splits its rows, to save memory, for one
            update. Padding fills up missing rows.
        jit: whether XLA compiles the gradients (Keras's `jit_compile` fails on several replicas).
    """

    def __init__(
        self, model: keras.Model, r_drop: float = 0.0, num_micro_batches: int = 1, jit: bool = False
    ) -> None:
        super().__init__(inputs=model.input, outputs=model.output)
        self.r_drop = r_drop
        self.num_micro_batches = num_micro_batches
        gradients = self._gradients if num_micro_batches == 1 else self._sum_over_micro_batches
        self._batch_gradients = (
            tf.function(gradients, jit_compile=True, autograph=False) if jit else gradients
        )

    def compile(
        self,
        optimizer: Adam | keras.optimizers.LossScaleOptimizer,
        loss: keras.losses.Loss,
        metrics: Sequence[keras.metrics.Metric] | None = None,
    ) -> None:
        """Configures the model for training.

        Args:
            optimizer: an `Adam` of this module, or a `LossScaleOptimizer` of one.
            loss: a loss per token with `reduction="sum"`.
            metrics: metrics per token.
        """
        require(
            isinstance(getattr(optimizer, "inner_optimizer", optimizer), Adam),
            "`optimizer` must be a `keras_transformer.trainers.fitting.training_model.Adam`",
            optimizer=optimizer,
        )
        is_sum = getattr(loss, "reduction", None) == "sum"
        require(is_sum, '`loss` must have reduction="sum"', loss=loss)
        # `jit_compile="auto"` fails on several GPUs.
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=False)

    def compute_loss(
        self,
        x: Inputs | None = None,
        y: tf.Tensor | None = None,
        y_pred: tf.Tensor | None = None,
        sample_weight: tf.Tensor | None = None,
        training: bool = True,
    ) -> tf.Tensor:
        """Returns the weighted sum over the tokens, with the divergence of `r_drop` in training."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if not (training and self.r_drop):
            return loss
        second_pred = self(x, training=True)  # [B, T, V]
        loss = (loss + super().compute_loss(x, y, second_pred, sample_weight, training)) / 2
        divergence = symmetric_divergence(y_pred, second_pred)  # [B, T]
        return loss + self.r_drop / 4 * ops.sum(divergence * sample_weight)

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        """Makes an update, in the context of a replica."""
        data = _check_weights(data)
        replica = tf.distribute.get_replica_context()
        if replica.num_replicas_in_sync > 1:
            self._shift_seeds(replica.replica_id_in_sync_group)
            gradients = self._batch_gradients(data)
            self._shift_seeds(-replica.replica_id_in_sync_group)
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        else:
            gradients = self._batch_gradients(data)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._logs()

    def test_step(self, data: Batch) -> dict[str, tf.Tensor]:
        """Evaluates a batch, in the context of a replica."""
        x, y, sample_weight = _check_weights(data)
        y_pred = self(x, training=False)
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=False)
        self._track(loss, (x, y, sample_weight), y_pred)
        return self._logs()

    def _shift_seeds(self, distance: int | tf.Tensor) -> None:
        """Moves the seeds of dropout: by their ids and back, the replicas' states stay equal."""
        for variable in self.non_trainable_variables:
            if is_seed_state(variable):
                shift = tf.cast(tf.stack([distance, 0]), variable.dtype)
                variable.assign_add(shift)

    def _gradients(self, data: Batch) -> list[tf.Tensor]:
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        self._track(loss, data, y_pred, self.num_micro_batches)
        gradients = tape.gradient(scaled, self.trainable_variables)
        # The gradient of an embedding may be `tf.IndexedSlices`, which a loop cannot add up.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _sum_over_micro_batches(self, data: Batch) -> list[tf.Tensor]:
        micro_batches = tf.nest.map_structure(self._split_rows, data)

        def add(index: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            batch = tf.nest.map_structure(lambda value: value[index], micro_batches)
            return index + 1, [a + b for a, b in zip(total, self._gradients(batch), strict=True)]

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self.trainable_variables]
        loop = tf.while_loop(lambda index, _: index < self.num_micro_batches, add, (0, zeros))
        gradients: list[tf.Tensor] = loop[1]
        return gradients

    def _split_rows(self, value: tf.Tensor) -> tf.Tensor:
        """Splits the rows, [B, T], into micro-batches, [num_micro_batches, B', T]."""
        count = self.num_micro_batches
        rows, length = tf.unstack(tf.shape(value))
        value = tf.pad(value, [[0, -rows % count], [0, 0]])  # PAD_ID and weights of 0
        return tf.transpose(tf.reshape(value, (-1, count, length)), (1, 0, 2))

    def _track(
        self, loss: tf.Tensor, data: Batch, y_pred: tf.Tensor, num_micro_batches: int = 1
    ) -> None:
        # The first metric is the mean of the losses, but these add up to the loss of a batch.
        num_parts = num_micro_batches * tf.distribute.get_strategy().num_replicas_in_sync
        self.metrics[0].update_state(loss * num_parts, sample_weight=1 / num_parts)
        x, y, sample_weight = data
        self.compute_metrics(x, y, y_pred, sample_weight)

    def _logs(self) -> dict[str, tf.Tensor]:
        logs = self.get_metrics_result()
        # Keras reduces the logs of several machines along an axis that scalars do not have.
        if num_workers(tf.distribute.get_strategy()) > 1:
            logs = {name: value[None] for name, value in logs.items()}
        return dict(logs)


def _check_weights(data: Any) -> Batch:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if sample_weight is None:
        raise InputError(
            "`TrainingModel` needs batches of (inputs, labels, weights). "
            "Received batches without weights: use `dataset.map(add_token_weights)`"
        )
    return x, y, sample_weight
