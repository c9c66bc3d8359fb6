"""The variables of a training: what the next update depends on, and the moving average."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.trainers.fitting.keras_internals import is_seed_state


class TrainingState:
    """The variables that the next update depends on, and those of the metrics, by name.

    Keras numbers optimizers and random states through a process; these names do not depend on it.
    """

    def __init__(self, model: keras.Model, metrics: Sequence[keras.Metric]) -> None:
        self._metrics = {f"metrics/{v.path}": v for metric in metrics for v in metric.variables}
        self._others: dict[str, keras.Variable] = {}
        self._metric_values: dict[str, np.ndarray] = {}  # to restore
        metric_ids = {id(variable) for variable in model.metrics_variables}
        num_random = 0
        for variable in model.variables:
            if id(variable) in metric_ids:
                continue
            name = f"model/{variable.path}"
            if is_seed_state(variable):
                name, num_random = f"random/{num_random}", num_random + 1
            self._others[name] = variable
        for variable in model.optimizer.variables:
            scope, _, path = variable.path.partition("/")
            self._others[f"optimizer/{scope.rstrip('_0123456789')}/{path}"] = variable

    def copy(self, has_metrics: bool) -> dict[str, np.ndarray]:
        """Copies the values: as much as three models."""
        variables = self._others | (self._metrics if has_metrics else {})
        return {name: ops.convert_to_numpy(variable) for name, variable in variables.items()}

    def restore(self, values: dict[str, np.ndarray]) -> None:
        """Restores a copy; `KeyError` or `ValueError` if it is of another model."""
        for name, variable in self._others.items():
            variable.assign(values[name])
        self._metric_values = {name: values[name] for name in self._metrics if name in values}

    def restore_metrics(self) -> None:
        """Restores the metrics of a copy once, after `fit` has reset them at its beginning."""
        for name, value in self._metric_values.items():
            self._metrics[name].assign(value)
        self._metric_values = {}


class MovingAverage:
    """The moving average of the weights, if the optimizer has one; it can change places with them.

    Keras's `SwapEMAWeights` does this by addition and subtraction, which round.
    """

    def __init__(self, model: keras.Model) -> None:
        averages = [v for v in model.optimizer.variables if v.name.endswith("_average")]
        weights = model.trainable_variables if averages else []
        self._pairs = list(zip(weights, averages, strict=True))
        self._is_in_model = False

    def put_into_model(self, is_in_model: bool) -> None:
        """Gives the model the average, or its weights again."""
        if is_in_model != self._is_in_model:
            for weight, average in self._pairs:
                value = ops.convert_to_numpy(weight)
                weight.assign(average)
                average.assign(value)
        self._is_in_model = is_in_model
