"""How far a training is, and the state from which it resumes."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.errors import InputError
from keras_transformer.run import State


class TrainingProgress(keras.callbacks.Callback):
    """Counts updates, and copies and restores the variables that the next update depends on.

    It is the first callback of `fit`: at the end of an epoch, it copies the weights before
    `ExactSwap` swaps them with their average.

    Args:
        model: the compiled model.
        metrics: the metrics of training.
        max_steps: number of updates after which `fit` ends.
    """

    def __init__(self, model: keras.Model, metrics: Sequence[keras.Metric], max_steps: int) -> None:
        super().__init__()
        self.step = 0
        self.max_steps = max_steps
        self._variables = _state_variables(model)
        self._metric_variables = {
            f"metrics/{variable.path}": variable
            for metric in metrics
            for variable in metric.variables
        }
        self._metric_values: dict[str, np.ndarray] = {}
        self._state: dict[str, np.ndarray] = {}
        self._started = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics of a resumed epoch, which `fit` has just reset."""
        for name, value in self._metric_values.items():
            self._metric_variables[name].assign(value)
        self._metric_values = {}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts an update."""
        self.step += 1
        if self.step >= self.max_steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Copies the state; the next epoch starts with new metrics."""
        self.take_state(has_metrics=False)

    def take_state(self, has_metrics: bool = True) -> None:
        """Copies the variables of the model, the optimizer, dropout and the metrics."""
        variables = self._variables | (self._metric_variables if has_metrics else {})
        self._state = {name: ops.convert_to_numpy(each) for name, each in variables.items()}

    def pop_state(self) -> State:
        """Returns the copy, which is as large as three models, and forgets it."""
        arrays, self._state = self._state, {}
        return State(arrays, time.monotonic() - self._started)

    def restore(self, state: State, step: int) -> None:
        """Restores a saved state; `InputError` if it is of another model."""
        arrays = dict(state.arrays)
        self._metric_values = {
            name: arrays.pop(name) for name in self._metric_variables if name in arrays
        }
        expected = {name: tuple(each.shape) for name, each in self._variables.items()}
        if {name: array.shape for name, array in arrays.items()} != expected:
            raise InputError(
                "The training state must hold the variables of this model and its optimizer, "
                "by name; it is of another model, or of an earlier version of the package"
            )
        for name, variable in self._variables.items():
            variable.assign(arrays[name])
        self.step = step
        self._started = time.monotonic() - state.seconds


def _state_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Names the variables of a model, its dropout and its optimizer.

    Keras numbers optimizers and random states through a process; these names do not depend on it.
    """
    metrics = {id(variable) for variable in model.metrics_variables}
    named, num_random = {}, 0
    for variable in model.variables:
        if id(variable) in metrics:
            continue
        name = f"model/{variable.path}"
        if variable.path.endswith("seed_generator_state"):
            name, num_random = f"random/{num_random}", num_random + 1
        named[name] = variable
    for variable in model.optimizer.variables:
        scope, _, path = variable.path.partition("/")
        named[f"optimizer/{scope.rstrip('_0123456789')}/{path}"] = variable
    return named
