"""From a corpus to a run directory, by `model.fit`."""

import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.losses import LabelSmoothedCrossEntropy, Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.model import Transformer
from keras_transformer.run import Run, claim
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.trainers.averaging import average_checkpoints
from keras_transformer.trainers.batches import BatchPlan, make_dataset
from keras_transformer.trainers.preparation import (
    PreparedCorpus,
    Progress,
    is_prepared,
    no_progress,
    open_prepared,
    prepare,
)
from keras_transformer.trainers.recipes import TrainSettings
from keras_transformer.trainers.strategies import TrainingModel, make_strategy
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

MAX_STEPS_PER_VALIDATION = 1_000
# What may change when a training is resumed: it decides when the training ends, not what it does.
RESUMABLE = ("steps", "max_hours", "patience", "average_last")


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
            logs["val_bleu"] = sacrebleu.corpus_bleu(hypotheses, [self.references]).score


class ExactSwap(keras.callbacks.SwapEMAWeights):
    """Validates and saves the moving average of the weights.

    Keras swaps by adding and subtracting, which rounds; here what comes back is what was.
    """

    def _tf_swap_variables(self, optimizer: Any) -> None:
        self._backend_swap_variables(optimizer)


class TrainingState(keras.callbacks.Callback):
    """Takes all that the next update depends on, before the weights give way to their average.

    Args:
        model: the compiled model.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.trained = model
        self.arrays: dict[str, np.ndarray] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Copies the variables of model, optimizer and dropout."""
        self.arrays = {
            f"{i:05d}": keras.ops.convert_to_numpy(variable)
            for i, variable in enumerate(self._variables())
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Inverse of `on_epoch_end`.

        Raises:
            InputError: if the arrays are another model's.
        """
        variables = self._variables()
        if len(variables) != len(arrays):
            raise InputError(
                f"The training state must hold {len(variables)} variables, and holds {len(arrays)}"
            )
        for variable, value in zip(variables, arrays.values(), strict=True):
            variable.assign(value)

    def _variables(self) -> list[Any]:
        metrics = {id(variable) for variable in self.trained.metrics_variables}
        model = [variable for variable in self.trained.variables if id(variable) not in metrics]
        return [*model, *self.trained.optimizer.variables]


class SaveRun(keras.callbacks.Callback):
    """Writes checkpoints and metrics to the run directory after every validation.

    Args:
        run: the run.
        model: the model.
        settings: how to train.
        limit: counts the updates.
        state: what resuming needs.
    """

    def __init__(
        self,
        run: Run,
        model: Transformer,
        settings: TrainSettings,
        limit: StepLimit,
        state: TrainingState,
    ) -> None:
        super().__init__()
        self.run = run
        self.transformer = model
        self.settings = settings
        self.limit = limit
        self.state = state
        self.ends = time.monotonic() + 3600 * (settings.max_hours or math.inf)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves; the best checkpoint is that of the highest BLEU, or of the lowest loss."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        for name in ("loss", "val_token_loss"):
            if not math.isfinite(metrics.get(name, 0.0)):
                raise InputError(
                    f"`{name}` is {metrics[name]} after {self.limit.step} updates: "
                    "try a lower `peak_rate` or more `warmup_steps`"
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
            state=self.state.arrays,
        )
        self.state.arrays = {}  # a copy of all variables
        if is_over(self.run, self.settings):
            self.model.stop_training = True
        if time.monotonic() >= self.ends:
            logger.info("%s hours are over: the training ends", self.settings.max_hours)
            self.model.stop_training = True


def is_over(run: Run, settings: TrainSettings) -> bool:
    """Whether a run has made its updates, or has lost its patience."""
    if run.last is None or run.best is None:
        return False
    if run.last.step >= settings.steps:
        return True
    later = [line for line in run.metrics() if run.best.step < line["step"] <= run.last.step]
    return settings.patience is not None and len(later) >= settings.patience


def quality(metrics: dict[str, float]) -> float:
    """How good validation metrics are: BLEU, else the loss, else nothing is known."""
    if "val_bleu" in metrics:
        return metrics["val_bleu"]
    return -metrics.get("val_token_loss", math.inf)


def train(
    settings: TrainSettings,
    run_dir: str | Path,
    verbose: int = 1,
    *,
    resume: bool = False,
    progress: Progress = no_progress,
) -> Run:
    """Trains a model and writes its run directory.

    Args:
        settings: what to train and how.
        run_dir: a directory that does not exist yet, or is empty.
        verbose: of `model.fit`: 1 for progress bars, 2 for a line an epoch, 0 for silence.
        resume: whether to go on with the interrupted run of `run_dir`, if there is one, from its
            last checkpoint; the result is that of a training without interruption.
        progress: called with the number of pairs prepared since the last call.

    Returns:
        The finished run.

    Raises:
        InputError: if a setting does not fit the data, or the directory is in use.
    """
    # What can be told at once is told before anything is written.
    strategy = make_strategy(settings.strategy)
    _check_replicas(settings, strategy.num_replicas_in_sync)
    path = Path(run_dir)
    going_on = resume and path.is_dir() and any(path.iterdir())
    if not going_on:
        claim(path)
    elif not ((path / "run.json").is_file() or (path / "corpus").is_dir()):
        Run.load(path)  # says what it is not
    try:
        if is_prepared(settings.data):
            corpus = open_prepared(settings.data, settings)
        else:
            corpus = prepare(settings, path / "corpus", progress)
        plan = BatchPlan(corpus.training.lengths, settings.tokens_per_batch, settings.seed)
        run = _open_run(settings, path, corpus)
    except InputError:
        if not going_on:
            shutil.rmtree(path)  # `claim` found it empty; no training is lost
        raise
    if not is_over(run, settings):
        logger.info(
            "Batches: %d an epoch, %.0f %% padding",
            plan.batches_per_epoch,
            100 * plan.padding_share,
        )
        run.start_again()
        keras.utils.set_random_seed(settings.seed)
        with _precision(settings.precision), strategy.scope():
            _fit(run, settings, corpus, plan, verbose)
    elif run.status == "complete":
        logger.info("%s is complete", path)
        return run
    if settings.average_last:
        average_checkpoints(run, min(settings.average_last, len(run.checkpoints)))
    run.finish()
    return run


def _check_replicas(settings: TrainSettings, num_replicas: int) -> None:
    """Raises `InputError` for what Keras gets wrong on several replicas."""
    if num_replicas == 1:
        return
    for name, is_wrong, reason in (
        ("jit", settings.jit, "XLA cannot compile a step of several replicas"),
        (
            "clip_norm",
            settings.clip_norm is not None,
            "Keras clips each replica's part of the gradients",
        ),
        (
            "precision",
            settings.precision == "mixed_float16",
            "Keras looks for overflow on one replica only; mixed_bfloat16 needs no such look",
        ),
    ):
        if is_wrong:
            value = getattr(settings, name)
            raise InputError(
                f"`{name}` must be off on {num_replicas} replicas: {reason}. "
                f"Received: {name}={value}"
            )


def _open_run(settings: TrainSettings, path: Path, corpus: PreparedCorpus) -> Run:
    """Starts the run directory, or checks that it is the same training's."""
    if not (path / "run.json").is_file():
        if (path / "checkpoints").is_dir() and any((path / "checkpoints").iterdir()):
            raise InputError(f"{path} holds checkpoints, but {path}/run.json is missing")
        config = settings.config(corpus.tokenizer.vocab_size)
        return Run.create(
            path, config, corpus.tokenizer, settings.source, settings.target, settings.to_dict()
        )
    run = Run.load(path)
    for name, value in settings.to_dict().items():
        before = run.settings.get(name)
        if before != value and name not in RESUMABLE:
            raise InputError(
                f"{path} is a training with {name}={before!r}, which cannot change "
                f"when it is resumed. Received: {name}={value!r}"
            )
    if run.tokenizer_sha256 != corpus.tokenizer.fingerprint:
        raise InputError(f"{path} was trained with another tokenizer than its corpus's")
    run.settings = settings.to_dict()
    return run


@contextmanager
def _precision(policy: str) -> Iterator[None]:
    """Sets Keras's default dtype policy for a while."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _fit(
    run: Run, settings: TrainSettings, corpus: PreparedCorpus, plan: BatchPlan, verbose: int
) -> None:
    model = Transformer(run.config)
    trained = TrainingModel(model, settings.r_drop)
    trained.compile(
        optimizer=keras.optimizers.Adam(
            WarmupSchedule(run.config.d_model, settings.warmup_steps, settings.peak_rate),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=settings.clip_norm,
            use_ema=settings.ema_decay is not None,
            ema_momentum=settings.ema_decay or 0.0,
        ),
        loss=LabelSmoothedCrossEntropy(settings.label_smoothing),
        metrics=[TokenLoss(), Perplexity(), TokenAccuracy()],
        # "auto" would mean no XLA on a CPU, and a crash under several replicas.
        jit_compile=settings.jit,
    )
    trained.optimizer.build(trained.trainable_variables)
    state = TrainingState(trained)
    step = 0
    if run.last is not None:
        step = run.last.step
        state.restore(run.load_state())
        run.cut_metrics(step)
        logger.info("Resumed after %d updates", step)
    validation_data = None
    if corpus.validation is not None:
        validation_plan = BatchPlan(corpus.validation.lengths, settings.tokens_per_batch, seed=None)
        validation_data = make_dataset(
            corpus.validation,
            validation_plan,
            range(validation_plan.batches_per_epoch),
            settings.jit,
        )
    interval = settings.steps_per_validation or min(
        plan.batches_per_epoch, MAX_STEPS_PER_VALIDATION
    )
    limit = StepLimit(settings.steps, step)
    callbacks = [limit, state]
    if settings.ema_decay is not None:
        callbacks.append(ExactSwap(swap_on_epoch=True))
    if pairs := corpus.validation_pairs[: settings.bleu_sentences]:
        sources, references = map(list, zip(*pairs, strict=True))
        callbacks.append(ValidationBleu(Translator(model, corpus.tokenizer), sources, references))
    callbacks += [
        SaveRun(run, model, settings, limit, state),
        keras.callbacks.TensorBoard(run.path / "tensorboard"),
    ]
    trained.fit(
        make_dataset(corpus.training, plan, range(step, settings.steps), settings.jit),
        # `epochs` is the last one's number: so many are over, and so many are left.
        initial_epoch=step // interval,
        epochs=step // interval - (step - settings.steps) // interval,
        steps_per_epoch=min(interval, settings.steps - step),
        validation_data=validation_data,
        callbacks=callbacks,
        shuffle=False,  # the plan has shuffled
        verbose=verbose,
    )
