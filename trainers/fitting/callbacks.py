"""The callbacks of `train`: progress, validation BLEU, saving and stopping."""

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.architectures import Model
from keras_transformer.errors import InputError, NotFiniteError, TrainingStoppedError
from keras_transformer.run import Run, State, quality
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.fitting.strategies import Workers
from keras_transformer.trainers.fitting.validation import validation_scores
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

NUM_ZERO_BLEU = 3  # validations with a BLEU of 0 before a warning
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Logs: TypeAlias = dict[str, Any] | None


class TrainingProgress(keras.callbacks.Callback):
    """Counts updates, and copies and restores the variables that the next update depends on.

    It is the first callback of `fit`: at the end of an epoch, it copies the weights before
    `ExactSwap` swaps them with their average. `fit` ends after `max_steps` updates.
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

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Restores the metrics of a resumed epoch, which `fit` has just reset."""
        for name, value in self._metric_values.items():
            self._metric_variables[name].assign(value)
        self._metric_values = {}

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts an update."""
        self.step += 1
        if self.step >= self.max_steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
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
        """Restores a saved state; `KeyError` or `ValueError` if it is of another model."""
        for name, variable in self._variables.items():
            variable.assign(state.arrays[name])
        self._metric_values = {
            name: state.arrays[name] for name in self._metric_variables if name in state.arrays
        }
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


class ValidationScores(keras.callbacks.Callback):
    """Adds the scores of greedily translated or parsed validation sentences to the logs."""

    def __init__(
        self, translator: Translator, pairs: Sequence[Pair], settings: TrainSettings
    ) -> None:
        super().__init__()
        self.translator, self.pairs, self.settings = translator, pairs, settings

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Translates the sentences and adds the scores to the logs."""
        if logs is not None:
            with suppress(NotFiniteError):  # the loss is not finite either, and ends the training
                logs |= validation_scores(self.translator, self.pairs, self.settings)


class TensorBoard(keras.callbacks.TensorBoard):
    """Writes the logs of each validation for TensorBoard, by update and not by epoch."""

    def __init__(self, folder: Path, progress: TrainingProgress) -> None:
        super().__init__(folder)
        self.progress = progress

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Writes the logs."""
        super().on_epoch_end(self.progress.step, logs)


class ExactSwap(keras.callbacks.SwapEMAWeights):
    """Validates and saves the moving average of the weights.

    Keras swaps by addition and subtraction, which round; this class swaps exact values. Keras
    replaces the weights by their average at the end of `fit`; this class keeps them for another
    `fit`.
    """

    def _tf_swap_variables(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._backend_swap_variables(optimizer)

    def _finalize_ema_values(self) -> None:
        pass


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

    Only the chief of the workers writes. The signals end the training after the current update.
    """

    def __init__(
        self,
        run: Run,
        model: Model,
        settings: TrainSettings,
        interval: int,
        progress: TrainingProgress,
        workers: Workers,
        signals: set[signal.Signals],
    ) -> None:
        super().__init__()
        self.run = run
        self.transformer = model
        self.settings = settings
        self.interval = interval
        self.progress = progress
        self.workers = workers
        self.signals = signals
        self.last_save = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Saves the state if a save is due, or if training is to stop."""
        step = self.progress.step
        if step % self.interval == 0 or step >= self.settings.steps:
            return  # a validation follows, and saves
        minutes = (time.monotonic() - self.last_save) / 60
        is_due = minutes >= (self.settings.minutes_per_save or math.inf) or (
            self.settings.steps_per_save is not None and step % self.settings.steps_per_save == 0
        )
        must_save, *stops = self.workers.any_set(self.workers.is_chief and is_due, *self._stops())
        if must_save or any(stops):
            self.progress.take_state()
            state = self.progress.pop_state()
            if self.workers.is_chief:
                self.run.save_state(state, step)
            self.last_save = time.monotonic()
        self._stop(stops)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Saves a checkpoint."""
        state = self.progress.pop_state()
        if self.workers.is_chief:
            metrics = {name: float(value) for name, value in (logs or {}).items()}
            self._save_checkpoint(metrics, state)
        self.last_save = time.monotonic()
        ends, *stops = self.workers.any_set(
            self.workers.is_chief and is_over(self.run, self.settings), *self._stops()
        )
        if ends:
            self.model.stop_training = True
        else:
            self._stop(stops)

    def _save_checkpoint(self, metrics: dict[str, float], state: State) -> None:
        step = self.progress.step
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise InputError(
                    f"`{name}` is {value} after {step} updates: "
                    "try a lower `peak_rate` or more `warmup_steps`, in a new run directory"
                )
        self.run.log_metrics(step, metrics)
        self._warn_of_zero_bleu()
        best, metric = self.run.best, self.settings.metric
        self.run.save_checkpoint(
            self.transformer,
            step,
            metrics,
            # Without validation, all are equal, and the newest is the best.
            is_best=best is None or quality(metrics, metric) >= quality(best.metrics, metric),
            keep=self.settings.keep_checkpoints,
            state=state,
        )

    def _warn_of_zero_bleu(self) -> None:
        scores = [line.get("val_bleu", math.inf) for line in self.run.metrics()]
        is_zero = len(scores) == NUM_ZERO_BLEU and max(scores) < 0.005  # 0.00 as it is printed
        if is_zero and self.settings.metric in (None, "bleu"):
            logger.warning(
                "Validation BLEU was 0 at the first validations, so the loss chooses the best "
                "checkpoint; if it stays 0, try --metric chrf"
            )

    def _stops(self) -> list[bool]:
        return [number in self.signals for number in STOP_SIGNALS]

    def _stop(self, stops: list[bool]) -> None:
        """Raises `TrainingStoppedError` if any worker has received a signal."""
        for number, is_received in zip(STOP_SIGNALS, stops, strict=True):
            if is_received:
                raise TrainingStoppedError(
                    f"Stopped by {number.name} after {self.progress.step:,} updates, which are "
                    f"saved in {self.run.path}: the same command with --resume continues",
                    128 + number,  # the exit status of a process that the signal ends
                )


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
