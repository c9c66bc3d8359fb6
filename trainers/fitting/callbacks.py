"""What `train` does between updates: validation scores, saving and stopping."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import keras

from keras_transformer.checkpoints import State, quality
from keras_transformer.errors import InputError, TrainingStoppedError, as_input_error
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.run import Run
from keras_transformer.trainers.fitting.strategies import Workers
from keras_transformer.trainers.fitting.training_state import MovingAverage, TrainingState
from keras_transformer.trainers.settings import TrainSettings

logger = logging.getLogger(__name__)

NUM_ZERO_BLEU = 3  # validations with a BLEU of 0 before a warning
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Logs: TypeAlias = dict[str, Any] | None


@contextmanager
def stop_signals() -> Iterator[set[signal.Signals]]:
    """Records SIGTERM and SIGINT; a second signal of the same kind has its usual effect."""
    received: set[signal.Signals] = set()
    before: dict[int, Any] = {}

    def record(number: int, frame: FrameType | None) -> None:
        received.add(signal.Signals(number))
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        before |= {number: signal.signal(number, record) for number in STOP_SIGNALS}
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
        settings: TrainSettings,
        model: EncoderDecoder,  # which is saved
        state: TrainingState,
        average: MovingAverage,
        workers: Workers,
        signals: set[signal.Signals],  # those received so far
        score: Callable[[], dict[str, float]],  # of a validation, beside the metrics
    ) -> None:
        super().__init__()
        self.run, self.settings, self.transformer = run, settings, model
        self.state, self.average = state, average
        self.workers, self.signals, self.score = workers, signals, score
        self.step = 0
        self.started = self.last_save = time.monotonic()

    def resume(self) -> None:
        """Restores the last saved state, if there is one."""
        if self.run.states:
            state, self.step = self.run.load_state()
            file = self.run.path / self.run.states[-1].file
            of_another = f"{file} does not hold the training state of this model"
            with as_input_error(of_another, KeyError, ValueError):
                self.state.restore(state.arrays)
            self.started -= state.seconds
            logger.info("Resumed after %d updates", self.step)
        self.workers.check_same("saved states", str(self.step))
        if self.workers.is_chief:
            self.run.rewind(self.step)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Continues from the weights, and from the metrics of a resumed epoch."""
        self.average.put_into_model(False)
        self.state.restore_metrics()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts an update; saves the state if a save is due, or if training is to stop."""
        self.step += 1
        if self.step >= self.settings.steps:
            self.model.stop_training = True
        if self.model.stop_training or batch + 1 == self.params["steps"]:
            return  # a validation follows, and saves
        must_save, *stops = self._ask_workers(self.workers.is_chief and self._is_save_due())
        if must_save or any(stops):
            self._check_finite({"loss": (logs or {}).get("loss", 0.0)})
            state = self._copy_state(has_metrics=True)
            if self.workers.is_chief:
                self.run.save_state(state, self.step)
            self.last_save = time.monotonic()
        self._stop(stops)

    def on_test_begin(self, logs: Logs = None) -> None:
        self.average.put_into_model(True)

    def on_test_end(self, logs: Logs = None) -> None:
        self.average.put_into_model(False)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Adds the scores to the logs, and saves a checkpoint; the next epoch has new metrics."""
        state = self._copy_state(has_metrics=False)
        self.average.put_into_model(True)
        if self.workers.is_chief and logs is not None:
            logs |= self.score()
            self._save_checkpoint({name: float(value) for name, value in logs.items()}, state)
        self.last_save = time.monotonic()
        is_end = self.workers.is_chief and is_over(self.run, self.settings)
        ends, *stops = self._ask_workers(is_end)
        if ends:
            self.model.stop_training = True
        else:
            self._stop(stops)

    def _ask_workers(self, flag: bool) -> list[bool]:
        """Returns whether any worker has the flag, and has received each of the signals."""
        return self.workers.any_set(flag, *(number in self.signals for number in STOP_SIGNALS))

    def _is_save_due(self) -> bool:
        minutes = (time.monotonic() - self.last_save) / 60
        interval = self.settings.steps_per_save
        return minutes >= (self.settings.minutes_per_save or math.inf) or (
            interval is not None and self.step % interval == 0
        )

    def _copy_state(self, has_metrics: bool) -> State:
        return State(self.state.copy(has_metrics), time.monotonic() - self.started)

    def _save_checkpoint(self, metrics: dict[str, float], state: State) -> None:
        self._check_finite(metrics)
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
        self._warn_of_zero_bleu()

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

    def _stop(self, stops: list[bool]) -> None:
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
        super().on_epoch_end(self.saved.step, logs)


def is_over(run: Run, settings: TrainSettings) -> bool:
    """Returns whether a run has reached its steps, its time limit, or the end of its patience."""
    if run.last is None or run.best is None:
        return False
    if run.last.step >= settings.steps:
        return True
    seconds = [state.metrics["seconds"] for state in run.states if state.step == run.last.step]
    if max(seconds, default=0.0) / 3600 >= (settings.max_hours or math.inf):
        return True
    later = [line for line in run.metrics() if run.best.step < line["step"] <= run.last.step]
    return settings.patience is not None and len(later) >= settings.patience
