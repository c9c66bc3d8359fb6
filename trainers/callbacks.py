"""The callbacks of `train`: validation BLEU, saving and stopping."""

import logging
import math
import signal
import threading
import time
from types import FrameType
from typing import Any, Self, TypeAlias

import keras
import sacrebleu

from keras_transformer.errors import InputError, TrainingStoppedError
from keras_transformer.model import Transformer
from keras_transformer.run import Run, State
from keras_transformer.trainers.progress import TrainingProgress
from keras_transformer.trainers.recipes import Metric, TrainSettings
from keras_transformer.trainers.scores import bleu_tokenizer, make_bleu
from keras_transformer.trainers.strategies import Workers
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

NUM_ZERO_BLEU = 3  # validations with a BLEU of 0 before a warning
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Logs: TypeAlias = dict[str, Any] | None


class ValidationBleu(keras.callbacks.Callback):
    """Translates validation sentences greedily and adds `val_bleu`, or `val_chrf` too, to the logs.

    BLEU uses the tokenizer of the target language, and ignores case if the model's tokenizer does.
    """

    def __init__(
        self,
        translator: Translator,
        sources: list[str],
        references: list[str],
        language: str,
        has_chrf: bool = False,
    ) -> None:
        super().__init__()
        self.translator = translator
        self.sources = sources
        self.references = references
        lowercase = translator.tokenizer.lowercase
        self.scorers: dict[str, sacrebleu.BLEU | sacrebleu.CHRF] = {
            "val_bleu": make_bleu(bleu_tokenizer(language), lowercase)
        }
        if has_chrf:
            self.scorers["val_chrf"] = sacrebleu.CHRF(lowercase=lowercase)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Translates the sentences and adds the scores to the logs."""
        try:
            translations = self.translator.translate(self.sources, beam_size=1)
        except InputError:  # the weights are not finite; `SaveRun` raises the error
            return
        if logs is not None:
            hypotheses = [translation.text for translation in translations]
            for name, scorer in self.scorers.items():
                logs[name] = scorer.corpus_score(hypotheses, [self.references]).score


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


class StopSignals:
    """Records SIGTERM and SIGINT; a second signal of the same kind has its usual effect."""

    def __init__(self) -> None:
        self.received: set[signal.Signals] = set()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Starts to record signals, which only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        """Restores the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.add(signal.Signals(number))
        signal.signal(number, self._before[signal.Signals(number)])


class SaveRun(keras.callbacks.Callback):
    """Writes the run directory: a checkpoint after each validation, states in between.

    Only the chief of the workers writes. The signals end the training after the current update.
    """

    def __init__(
        self,
        run: Run,
        model: Transformer,
        settings: TrainSettings,
        interval: int,
        progress: TrainingProgress,
        workers: Workers,
        signals: StopSignals,
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

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
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
        if self.settings.metric not in (None, "bleu"):
            return
        scores = [line["val_bleu"] for line in self.run.metrics() if "val_bleu" in line]
        if len(scores) == NUM_ZERO_BLEU and max(scores) < 0.005:  # 0.00 as it is printed
            logger.warning(
                "Validation BLEU was 0 at the first %d validations, so the loss chooses the best "
                "checkpoint; if it stays 0, try --metric chrf",
                NUM_ZERO_BLEU,
            )

    def _stops(self) -> list[bool]:
        return [number in self.signals.received for number in STOP_SIGNALS]

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
    validated = [state for state in run.states if state.step == run.last.step]
    hours = validated[-1].metrics["seconds"] / 3600 if validated else 0.0
    if settings.max_hours is not None and hours >= settings.max_hours:
        return True
    later = [line for line in run.metrics() if run.best.step < line["step"] <= run.last.step]
    return settings.patience is not None and len(later) >= settings.patience


def quality(metrics: dict[str, float], metric: Metric | None = None) -> tuple[float, float]:
    """Returns the score of a validation, and the loss, which decides between equal scores.

    The score is the `metric`: "loss" for none, None for BLEU if it was measured.
    """
    score = 0.0 if metric == "loss" else metrics.get(f"val_{metric or 'bleu'}", -math.inf)
    return round(score, 2), -metrics.get("val_token_loss", math.inf)
