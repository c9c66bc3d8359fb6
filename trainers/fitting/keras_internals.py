"""The private names of Keras that training uses: all of them are in this module.

`tests/unit/trainers/fitting/test_keras_internals.py` says what breaks if one of them changes, and
`tests/keras_faults.py` whether Keras still needs them.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def is_seed_state(variable: keras.Variable) -> bool:
    """Returns whether a variable is the seed and counter of a layer's random numbers, [2]."""
    return variable.path.endswith("seed_generator_state")


class LocalAdam(keras.optimizers.Adam):
    """Keras's Adam of gradients that are already summed over the replicas."""

    def _all_reduce_sum_gradients(
        self, grads_and_vars: Sequence[tuple[tf.Tensor, keras.Variable]]
    ) -> list[tuple[tf.Tensor, keras.Variable]]:
        return list(grads_and_vars)

    def moments(self, variable: keras.Variable) -> tuple[tf.Variable, tf.Variable]:
        """Returns the moments m and v of a weight."""
        index = self._get_variable_index(variable)
        return self._momentums[index].value, self._velocities[index].value


class UnevenModel(keras.Model):
    """A model whose replicas may hold batches of different shapes.

    `fit` averages the replicas' first batches to learn their rank and types, which fails then
    (keras issue 19246). The batch of one replica has the same rank and types.
    """

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self.distribute_strategy
        if self.train_function is not None or strategy.num_replicas_in_sync == 1:
            return  # the first step builds the model
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
        super()._maybe_symbolic_build(iterator=None, data_batch=data_batch)
