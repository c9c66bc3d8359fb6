"""What happens beside the updates of `fit`: counting, measuring, saving, stopping."""

import math
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

import keras
import numpy as np
import sacrebleu

from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.model import Transformer
from keras_transformer.run import Run, State
from keras_transformer.trainers.recipes import TrainSettings
from keras_transformer.trainers.strategies import Workers
from keras_transformer.translator import Translator


class StepLimit(keras.callbacks.Callback):
    """Ends `fit` after a number of updates, in the middle of an epoch if need be.

    Args:
        steps: the limit.
        step: updates before this call of `fit`.
    """

    def __init__(self, steps: int, step: int) -> None:
        super().__init__()
        self.steps = steps
        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts an update."""
        self.step += 1
        if self.step >= self.steps:
            self.model.stop_training = True


class ValidationBleu(keras.callbacks.Callback):
    """Translates validation sentences greedily and adds `val_bleu` to the metrics.

    It is 13a, and ignores case where the tokenizer does.

    Args:
        translator: of the model that is trained.
        sources: sentences.
        references: their translations.
    """

    def __init__(self, translator: Translator, sources: list[str], references: list[str]) -> None:
        super().__init__()
        self.translator = translator
        self.sources = sources
        self.references = references

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures."""
        try:
            translations = self.translator.translate(self.sources, beam_size=1)
        except InputError:  # the scores are not numbers; `SaveRun` says so
            return
        if logs is not None:
            hypotheses = [translation.text for translation in translations]
            lowercase = self.translator.tokenizer.lowercase
            bleu = sacrebleu.corpus_bleu(hypotheses, [self.references], lowercase=lowercase)
            logs["val_bleu"] = bleu.score


class ExactSwap(keras.callbacks.SwapEMAWeights):
    """Validates and saves the moving average of the weights.

    Keras swaps by adding and subtracting, which rounds; here what comes back is what was. And it
    ends `fit` by forgetting the weights themselves, which another `fit` may have to go on with.
    """

    def _tf_swap_variables(self, optimizer: Any) -> None:
        self._backend_swap_variables(optimizer)

    def _finalize_ema_values(self) -> None:
        pass


class TrainingState(keras.callbacks.Callback):
    """All that the next update depends on, taken before the weights give way to their average.

    Args:
        model: the compiled model.
        metrics: those of training.
    """

    def __init__(self, model: keras.Model, metrics: list[keras.metrics.Metric]) -> None:
        super().__init__()
        self.trained = model
        self.metrics = [variable for metric in metrics for variable in metric.variables]
        self.arrays: dict[str, np.ndarray] = {}
        self._metric_values: list[np.ndarray] = []

    def take(self) -> None:
        """Copies the variables of model, optimizer, dropout and metrics."""
        self.arrays = {}  # not two copies at once
        self.arrays = {
            f"{i:05d}": keras.ops.convert_to_numpy(variable)
            for i, variable in enumerate(self._variables())
        }

    def restore(self, arrays: dict[str, np.ndarray], in_epoch: bool) -> None:
        """Inverse of `take`.

        Args:
            arrays: what `take` took.
            in_epoch: whether that was between two validations.

        Raises:
            InputError: if the arrays are another model's.
        """
        variables = self._variables()
        shapes = [tuple(variable.shape) for variable in variables]
        if shapes != [array.shape for array in arrays.values()]:
            raise InputError(
                f"The training state is of another model: its {len(arrays)} arrays must be of the "
                f"shapes of this model's {len(variables)} variables"
            )
        values = list(arrays.values())
        without = len(variables) - len(self.metrics)
        for variable, value in zip(variables[:without], values[:without], strict=True):
            variable.assign(value)
        self._metric_values = values[without:] if in_epoch else []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Puts back the metrics, which `fit` has just set to zero."""
        for variable, value in zip(self.metrics, self._metric_values, strict=False):
            variable.assign(value)
        self._metric_values = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Takes the state."""
        self.take()

    def _variables(self) -> list[Any]:
        others = {id(variable) for variable in self.trained.metrics_variables}
        model = [variable for variable in self.trained.variables if id(variable) not in others]
        return [*model, *self.trained.optimizer.variables, *self.metrics]


class StopSignals:
    """Notes SIGTERM and SIGINT instead of dying of them; the second one of a kind kills."""

    def __init__(self) -> None:
        self.received: set[signal.Signals] = set()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Begins to listen, which only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Ends it."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.add(signal.Signals(number))
        signal.signal(number, self._before[signal.Signals(number)])


class SaveRun(keras.callbacks.Callback):
    """Writes the run directory: all after a validation, and in between what resuming needs.

    Args:
        run: the run.
        model: the model.
        settings: how to train.
        interval: updates between validations.
        limit: counts the updates.
        state: what resuming needs.
        workers: of which only the chief writes.
        signals: end the training after the next update.
        seconds: trained before this call of `fit`.
    """

    def __init__(
        self,
        run: Run,
        model: Transformer,
        settings: TrainSettings,
        interval: int,
        limit: StepLimit,
        state: TrainingState,
        workers: Workers,
        signals: StopSignals,
        seconds: float = 0.0,
    ) -> None:
        super().__init__()
        self.run = run
        self.transformer = model
        self.settings = settings
        self.interval = interval
        self.limit = limit
        self.state = state
        self.workers = workers
        self.signals = signals
        self.started = time.monotonic() - seconds
        self.saved = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves the state if it is time to, or if training is to stop."""
        step = self.limit.step
        if step % self.interval == 0 or step >= self.settings.steps:
            return  # a validation follows, and saves
        minutes = (time.monotonic() - self.saved) / 60
        is_due = minutes >= (self.settings.minutes_per_save or math.inf) or (
            self.settings.steps_per_save is not None and step % self.settings.steps_per_save == 0
        )
        # Several workers wait for each other here, which is little beside adding up gradients.
        must_save, *stops = self.workers.any(self.workers.is_chief and is_due, *self._stops())
        if must_save or any(stops):
            self.state.take()
            saved = self._state(in_epoch=True)
            if self.workers.is_chief:
                self.run.save_state(saved, step)
            self.saved = time.monotonic()
        self._stop(stops)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves; the best checkpoint is that of the highest BLEU, or of the lowest loss."""
        if self.workers.is_chief:
            self._save_checkpoint({name: float(value) for name, value in (logs or {}).items()})
        self.state.arrays = {}
        self.saved = time.monotonic()
        ends, *stops = self.workers.any(
            self.workers.is_chief and is_over(self.run, self.settings), *self._stops()
        )
        if ends:
            self.model.stop_training = True
        else:
            self._stop(stops)

    def _save_checkpoint(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise InputError(
                    f"`{name}` is {value} after {self.limit.step} updates: "
                    "try a lower `peak_rate` or more `warmup_steps`, in a new run directory"
                )
        self.run.log_metrics(self.limit.step, metrics)
        self.run.save_checkpoint(
            self.transformer,
            self.limit.step,
            metrics,
            # Without validation the newest weights are the best known.
            is_best=self.run.best is None
            or quality(metrics) > quality(self.run.best.metrics)
            or quality(metrics) == -math.inf,
            keep=self.settings.keep_checkpoints,
            state=self._state(in_epoch=False),
        )

    def _state(self, in_epoch: bool) -> State:
        arrays, self.state.arrays = self.state.arrays, {}  # as large as three models
        return State(arrays, time.monotonic() - self.started, in_epoch)

    def _stops(self) -> list[bool]:
        return [number in self.signals.received for number in (signal.SIGTERM, signal.SIGINT)]

    def _stop(self, stops: list[bool]) -> None:
        """Raises `TrainingStoppedError` if any worker was told to stop."""
        for number, is_told in zip((signal.SIGTERM, signal.SIGINT), stops, strict=True):
            if is_told:
                raise TrainingStoppedError(
                    f"Stopped by {number.name} after {self.limit.step:,} updates, which are saved "
                    f"in {self.run.path}: the same command with --resume goes on",
                    128 + number,  # what a shell reports for a process that the signal ended
                )


def is_over(run: Run, settings: TrainSettings) -> bool:
    """Whether a run has made its updates, used up its time, or lost its patience."""
    if run.last is None or run.best is None:
        return False
    if run.last.step >= settings.steps:
        return True
    validated = [state for state in run.states if state.step == run.last.step]
    hours = validated[-1].metrics["seconds"] / 3600 if validated else 0.0
    if settings.max_hours is not None and hours >= settings.max_hours:
        return True
    later = [line for line in run.metrics() if run.best.step < line["step"] <= run.last.step]
    return settings.patience is not None and len(later) >= settings.patience


def quality(metrics: dict[str, float]) -> float:
    """How good validation metrics are: BLEU, else the loss, else nothing is known."""
    if "val_bleu" in metrics:
        return metrics["val_bleu"]
    return -metrics.get("val_token_loss", math.inf)
