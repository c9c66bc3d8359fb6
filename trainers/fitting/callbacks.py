"""What `train` does between updates: validation BLEU, saving and stopping."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.checkpoints import State, quality
from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.run import Run
from keras_transformer.trainers.fitting.keras_internals import is_seed_state
from keras_transformer.trainers.fitting.strategies import Workers
from keras_transformer.trainers.settings import TrainSettings

logger = logging.getLogger(__name__)

NUM_ZERO_BLEU = 3  # validations with a BLEU of 0 before a warning
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Logs: TypeAlias = dict[str, Any] | None


class TrainingState:
    """The variables that the next update depends on, and those of the metrics, by name.

    Keras numbers optimizers and random states through a process; these names do not depend on it.
    """

    def __init__(self, model: keras.Model, metrics: Sequence[keras.Metric]) -> None:
        self._metrics = {f"metrics/{each.path}": each for m in metrics for each in m.variables}
        self._others: dict[str, keras.Variable] = {}
        of_metrics = {id(variable) for variable in model.metrics_variables}
        num_random = 0
        for variable in model.variables:
            if id(variable) in of_metrics:
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
        return {name: ops.convert_to_numpy(each) for name, each in variables.items()}

    def restore(self, values: dict[str, np.ndarray]) -> None:
        """Restores all but the metrics; `KeyError` or `ValueError` if they are of another model."""
        for name, variable in self._others.items():
            variable.assign(values[name])

    def restore_metrics(self, values: dict[str, np.ndarray]) -> None:
        """Restores the metrics, which `fit` resets when it begins."""
        for name, value in values.items():
            self._metrics[name].assign(value)


class MovingAverage:
    """The moving average of the weights, if the optimizer has one; it can change places with them.

    Keras's `SwapEMAWeights` does this by addition and subtraction, which round.
    """

    def __init__(self, model: keras.Model) -> None:
        averages = [each for each in model.optimizer.variables if each.name.endswith("_average")]
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


@contextmanager
def stop_signals() -> Iterator[set[signal.Signals]]:
    """Records SIGTERM and SIGINT; a second signal of the same kind has its usual effect."""
    received: set[signal.Signals] = set()
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        received.add(signal.Signals(number))
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        before |= {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class SaveRun(keras.callbacks.Callback):
    """Writes the run directory: a checkpoint after each validation, states in between.

    A validation ends an epoch of `fit`. Only the chief of the workers writes. `fit` ends after the
    settings' `steps`, and after the update in which a signal is received.
    """

    def __init__(
        self,
        run: Run,
        model: EncoderDecoder,  # which is saved
        trained: keras.Model,  # which is fitted
        metrics: Sequence[keras.Metric],  # all of them
        settings: TrainSettings,
        interval: int,  # updates between validations
        workers: Workers,
        signals: set[signal.Signals],  # those received so far
        score: Callable[[], dict[str, float]],  # of a validation, beside the metrics
    ) -> None:
        super().__init__()
        self.run, self.transformer, self.settings = run, model, settings
        self.interval, self.workers, self.signals, self.score = interval, workers, signals, score
        self.state = TrainingState(trained, metrics)
        self.average = MovingAverage(trained)
        self.step = 0
        self.metric_values: dict[str, np.ndarray] = {}  # to restore
        self.started = self.last_save = time.monotonic()

    def resume(self) -> None:
        """Restores the last saved state, if there is one."""
        if self.run.states:
            state, self.step = self.run.load_state()
            try:
                self.state.restore(state.arrays)
            except (KeyError, ValueError) as error:
                file = self.run.path / self.run.states[-1].file
                raise InputError(
                    f"{file} does not hold the training state of this model"
                ) from error
            self.metric_values = {
                name: value for name, value in state.arrays.items() if name.startswith("metrics/")
            }
            self.started -= state.seconds
            logger.info("Resumed after %d updates", self.step)
        self.workers.check_same("saved states", str(self.step))
        if self.workers.is_chief:
            self.run.reopen()
            self.run.validations.drop_after(self.step)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Continues from the weights, and from the metrics of a resumed epoch."""
        self.average.put_into_model(False)
        self.state.restore_metrics(self.metric_values)
        self.metric_values = {}

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts an update; saves the state if a save is due, or if training is to stop."""
        self.step += 1
        if self.step >= self.settings.steps:
            self.model.stop_training = True
        if self.step % self.interval == 0 or self.step >= self.settings.steps:
            return  # a validation follows, and saves
        minutes = (time.monotonic() - self.last_save) / 60
        every = self.settings.steps_per_save
        is_due = minutes >= (self.settings.minutes_per_save or math.inf) or (
            every is not None and self.step % every == 0
        )
        must_save, *stops = self.workers.any_set(self.workers.is_chief and is_due, *self._stops())
        if must_save or any(stops):
            self._check_finite({"loss": (logs or {}).get("loss", 0.0)})
            state = self._copy_state(has_metrics=True)
            if self.workers.is_chief:
                self.run.save_state(state, self.step)
            self.last_save = time.monotonic()
        self._stop(stops)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Validates the moving average."""
        self.average.put_into_model(True)

    def on_test_end(self, logs: Logs = None) -> None:
        """Returns to the weights, which are part of the state."""
        self.average.put_into_model(False)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds the scores to the logs, and saves a checkpoint; the next epoch has new metrics."""
        state = self._copy_state(has_metrics=False)
        self.average.put_into_model(True)
        if self.workers.is_chief:
            logs = {} if logs is None else logs
            logs |= self.score()
            self._save_checkpoint({name: float(value) for name, value in logs.items()}, state)
        self.last_save = time.monotonic()
        ends, *stops = self.workers.any_set(
            self.workers.is_chief and is_over(self.run, self.settings), *self._stops()
        )
        if ends:
            self.model.stop_training = True
        else:
            self._stop(stops)

    def _copy_state(self, has_metrics: bool) -> State:
        return State(self.state.copy(has_metrics), time.monotonic() - self.started)

    def _save_checkpoint(self, metrics: dict[str, float], state: State) -> None:
        self._check_finite(metrics)
        self.run.validations.append(self.step, metrics)
        self._warn_of_zero_bleu()
        best, metric = self.run.best, self.settings.metric
        self.run.save_checkpoint(
            self.transformer,
            self.step,
            metrics,
            # Without validation, all are equal, and the newest is the best.
            is_best=best is None or quality(metrics, metric) >= quality(best.metrics, metric),
            keep=self.settings.keep_checkpoints,
            state=state,
        )

    def _check_finite(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise InputError(
                    f"`{name}` is {value} after {self.step} updates: "
                    "try a lower `peak_rate` or more `warmup_steps`, in a new run directory"
                )

    def _warn_of_zero_bleu(self) -> None:
        scores = [line.get("val_bleu", math.inf) for line in self.run.metrics()]
        is_zero = len(scores) == NUM_ZERO_BLEU and max(scores) < 0.005  # 0.00 as it is printed
        if is_zero and self.settings.metric in (None, "bleu"):
            logger.warning(
                "Validation BLEU was 0 at the first validations, so the loss chooses the best "
                "checkpoint; if it stays 0, try --metric chrf in a new run"
            )

    def _stops(self) -> list[bool]:
        return [number in self.signals for number in STOP_SIGNALS]

    def _stop(self, stops: list[bool]) -> None:
        """Raises `TrainingStoppedError` if any worker has received a signal."""
        for number, is_received in zip(STOP_SIGNALS, stops, strict=True):
            if is_received:
                raise TrainingStoppedError(
                    f"Stopped by {number.name} after {self.step:,} updates, which are "
                    f"saved in {self.run.path}: the same command with --resume continues",
                    128 + number,  # the exit status of a process that the signal ends
                )


class TensorBoard(keras.callbacks.TensorBoard):
    """Writes the logs of each validation for TensorBoard, by update and not by epoch."""

    def __init__(self, folder: Path, saved: SaveRun) -> None:
        super().__init__(folder)
        self.saved = saved

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Writes the logs."""
        super().on_epoch_end(self.saved.step, logs)


def is_over(run: Run, settings: TrainSettings) -> bool:
    """Returns whether a run has reached its steps, its time limit, or the end of its patience."""
    if run.last is None or run.best is None:
        return False
    if run.last.step >= settings.steps:
        return True
    seconds = [each.metrics["seconds"] for each in run.states if each.step == run.last.step]
    if max(seconds, default=0.0) / 3600 >= (settings.max_hours or math.inf):
        return True
    later = [line for line in run.metrics() if run.best.step < line["step"] <= run.last.step]
    return settings.patience is not None and len(later) >= settings.patience
