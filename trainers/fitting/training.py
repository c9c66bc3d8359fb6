"""From a corpus to a run directory, by `model.fit`."""

import functools
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.architectures import Model, build_model
from keras_transformer.errors import InputError
from keras_transformer.model.schedules import WarmupSchedule
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan, distribute
from keras_transformer.trainers.data.preparation import Progress, prepare
from keras_transformer.trainers.data.prepared import (
    PreparedCorpus,
    corpus_folder,
    is_complete,
    is_prepared,
    open_prepared,
)
from keras_transformer.trainers.fitting.averaging import average_checkpoints
from keras_transformer.trainers.fitting.callbacks import (
    ExactSwap,
    SaveRun,
    TensorBoard,
    TrainingProgress,
    ValidationScores,
    is_over,
    stop_signals,
)
from keras_transformer.trainers.fitting.fine_tuning import completed, initial_config, initialize
from keras_transformer.trainers.fitting.resuming import locked_run_dir, open_run
from keras_transformer.trainers.fitting.strategies import Workers, make_strategy
from keras_transformer.trainers.fitting.training_model import Adam, TrainingModel
from keras_transformer.trainers.fitting.validation import (
    loss_and_metrics,
    make_translator,
    precision,
)
from keras_transformer.trainers.settings import TrainSettings

logger = logging.getLogger(__name__)

MAX_STEPS_PER_VALIDATION = 1_000


def train(
    settings: TrainSettings,
    run_dir: str | Path,
    verbose: int = 1,
    *,
    resume: bool = False,
    progress: Progress = lambda pairs: None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Run:
    """Trains a model and writes its run directory.

    Args:
        settings: what to train and how.
        run_dir: a directory that does not exist yet, or is empty.
        verbose: as for `model.fit`: 1 for progress bars, 2 for a line per epoch, 0 for silence.
        resume: whether to resume the interrupted training of `run_dir`, if there is one, from its
            last save; the result is that of a training without interruption.
        progress: called with the number of pairs prepared since the last call.
        callbacks: for `model.fit`, on the chief; called after a validation is saved.

    Returns:
        The finished run.

    Raises:
        InputError: if a setting does not fit the data, or the directory is in use.
        TrainingStoppedError: if SIGTERM, SIGINT or the loss of another worker ends it early.
    """
    settings = completed(settings.with_absolute_paths(), Path(run_dir) if resume else None)
    # TensorFlow accepts several machines only before its first operation.
    workers = Workers(make_strategy(settings.strategy))
    path = Path(run_dir)
    with workers.watched(), locked_run_dir(path, resume) if workers.is_chief else nullcontext():
        run, corpus = _open(settings, path, progress, workers)
        if corpus is not None:
            _train(run, settings, corpus, verbose, callbacks, workers)
        elif run.status == "complete":
            logger.info("%s is complete", path)
        if workers.is_chief and run.status != "complete":
            _finish(run, settings)
        workers.wait()
        return run if workers.is_chief else Run.load(path)


def _open(
    settings: TrainSettings, path: Path, progress: Progress, workers: Workers
) -> tuple[Run, PreparedCorpus | None]:
    """Opens the run, and its corpus unless the training is over; only the chief creates files."""
    run, corpus = _open_as_chief(settings, path, progress) if workers.is_chief else (None, None)
    # The other workers wait here until the chief's files exist.
    (must_train,) = workers.any_set(corpus is not None)
    workers.check_same("settings", json.dumps(settings.to_dict(), sort_keys=True))
    if run is None:
        if not (path / "run.json").is_file():
            raise InputError(f"All workers must share the directory {path}; this one does not")
        run = Run.load(path)
        corpus = open_prepared(corpus_folder(run), settings) if must_train else None
    return run, corpus


def _open_as_chief(
    settings: TrainSettings, path: Path, progress: Progress
) -> tuple[Run, PreparedCorpus | None]:
    """Opens or creates the run, and its corpus unless the training is over."""
    run = open_run(settings, path)
    if run is not None and is_over(run, settings):
        return run, None
    corpus = _open_corpus(settings, path, progress)
    tokenizer = corpus.tokenizer
    if run is None:
        config = initial_config(settings, tokenizer)
        languages = settings.source, settings.target
        run = Run.create(path, config, tokenizer, *languages, settings.to_dict())
    elif run.tokenizer_sha256 != tokenizer.fingerprint:
        raise InputError(
            f"{path} was trained with another tokenizer than that of its corpus: restore the "
            "text that it was trained on, or choose another run directory"
        )
    return run, corpus


def _open_corpus(settings: TrainSettings, path: Path, progress: Progress) -> PreparedCorpus:
    """Opens the corpus, or prepares it."""
    if is_prepared(settings.data):
        corpus = open_prepared(settings.data, settings)
    elif (path / "run.json").is_file() and is_complete(path / "corpus"):
        corpus = open_prepared(path / "corpus", settings)  # without the text, which may be gone
    else:
        corpus = prepare(settings, path / "corpus", progress)
    if corpus.validation is None and settings.patience is not None:
        raise InputError(
            "`patience` needs a validation split, and the corpus has none. "
            f"Received: patience={settings.patience}"
        )
    return corpus


def _train(
    run: Run,
    settings: TrainSettings,
    corpus: PreparedCorpus,
    verbose: int,
    callbacks: Sequence[keras.callbacks.Callback],
    workers: Workers,
) -> None:
    """Logs the batches and devices, and fits a model."""
    plan = BatchPlan(corpus.training.lengths, settings.tokens_per_batch, settings.seed)
    source, target = corpus.training.lengths.sum(axis=0) / plan.batches_per_epoch
    logger.info(
        f"Batches: {plan.batches_per_epoch} an epoch, of {source:.0f} + {target:.0f} tokens on "
        f"average, {plan.padding_share:.0%} padding"
    )
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    replicas = workers.strategy.num_replicas_in_sync
    logger.info("Devices: %d %s, %s", replicas, kind, settings.precision)
    keras.utils.set_random_seed(settings.seed)
    with precision(settings), workers.strategy.scope():
        _fit(run, settings, corpus, plan, verbose, callbacks, workers)


def _finish(run: Run, settings: TrainSettings) -> None:
    """Averages the last checkpoints, and marks the run as complete."""
    last = min(settings.average_last, len(run.checkpoints))
    if last < settings.average_last:
        logger.warning("Averaging %d checkpoints: there are no more", last)
    if last:
        average_checkpoints(run, last)
    run.finish()


def _fit(
    run: Run,
    settings: TrainSettings,
    corpus: PreparedCorpus,
    plan: BatchPlan,
    verbose: int,
    user_callbacks: Sequence[keras.callbacks.Callback],
    workers: Workers,
) -> None:
    model = build_model(run.config)
    initialize(model, settings, is_new=not run.states)
    trained, metrics = _compile(model, settings)
    progress = TrainingProgress(trained, metrics, settings.steps)
    interval = settings.steps_per_validation or min(
        plan.batches_per_epoch, MAX_STEPS_PER_VALIDATION
    )
    _resume(run, progress, workers)
    data = functools.partial(distribute, workers.strategy)
    validation, steps = None, range(0)
    if corpus.validation is not None:
        validation_plan = BatchPlan(corpus.validation.lengths, settings.tokens_per_batch, seed=None)
        steps = range(validation_plan.batches_per_epoch)
        validation = data(corpus.validation, validation_plan, steps)
    with stop_signals() as signals:
        callbacks: list[keras.callbacks.Callback] = [progress]
        if settings.ema_decay is not None:
            callbacks.append(ExactSwap(swap_on_epoch=True))
        pairs = corpus.validation_pairs[: settings.bleu_sentences]
        if pairs and workers.is_chief:
            translator = make_translator(model, corpus.tokenizer, settings)
            callbacks.append(ValidationScores(translator, pairs, settings))
        callbacks.append(SaveRun(run, model, settings, interval, progress, workers, signals))
        if workers.is_chief:
            callbacks += [TensorBoard(run.path / "tensorboard", progress), *user_callbacks]
        for part in _split_epochs(range(progress.step, settings.steps), interval):
            trained.fit(
                data(corpus.training, plan, part, static_shapes=settings.jit),
                initial_epoch=part.start // interval,
                epochs=-(-part.stop // interval),  # the number of the last epoch
                steps_per_epoch=min(interval, len(part)),
                callbacks=callbacks,
                shuffle=False,  # the plan shuffles
                verbose=verbose if workers.is_chief else 0,
                validation_data=validation,
                validation_steps=len(steps) or None,
            )
            if trained.stop_training:
                break


def _resume(run: Run, progress: TrainingProgress, workers: Workers) -> None:
    """Restores the last saved state, if there is one."""
    if run.states:
        state, step = run.load_state()
        try:
            progress.restore(state, step)
        except (KeyError, ValueError) as error:
            file = run.path / run.states[-1].file
            raise InputError(f"{file} does not hold the training state of this model") from error
        logger.info("Resumed after %d updates", step)
    workers.check_same("saved states", str(progress.step))
    if workers.is_chief:
        run.reopen()
        run.drop_metrics_after(progress.step)


def _compile(
    model: Model, settings: TrainSettings
) -> tuple[TrainingModel, list[keras.metrics.Metric]]:
    """Returns the model for `fit`, and its metrics."""
    trained = TrainingModel(model, settings.r_drop, settings.accumulate, settings.jit)
    loss, metrics = loss_and_metrics(settings)
    trained.compile(
        optimizer=Adam(
            WarmupSchedule(
                model.config.d_model,
                settings.warmup_steps,
                settings.peak_rate,
                cooldown=settings.cooldown,
                total_steps=settings.steps,
            ),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=settings.clip_norm,
            use_ema=settings.ema_decay is not None,
            ema_momentum=settings.ema_decay or 0.0,
        ),
        loss=loss,
        metrics=metrics,
    )
    trained.optimizer.build(trained.trainable_variables)
    return trained, [trained._loss_tracker, *metrics]


def _split_epochs(steps: range, interval: int) -> Iterator[range]:
    """Splits off the rest of an interrupted epoch: `fit` takes epochs of one length."""
    boundary = min(steps.stop, -(-steps.start // interval) * interval)
    for part in (range(steps.start, boundary), range(boundary, steps.stop)):
        if part:
            yield part
