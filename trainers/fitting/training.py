"""From a corpus to a run directory, by `model.fit`."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import keras
import tensorflow as tf

from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.model.tensor import precision
from keras_transformer.registry import build_model
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan, distribute, plan_of
from keras_transformer.trainers.data.cleaning import Progress
from keras_transformer.trainers.data.prepared import PreparedCorpus
from keras_transformer.trainers.fitting.averaging import average
from keras_transformer.trainers.fitting.callbacks import SaveRun, TensorBoard, stop_signals
from keras_transformer.trainers.fitting.fine_tuning import initialize
from keras_transformer.trainers.fitting.opening import locked_run_dir, open_run
from keras_transformer.trainers.fitting.strategies import Workers, make_strategy
from keras_transformer.trainers.fitting.training_model import Adam, TrainingModel
from keras_transformer.trainers.fitting.training_state import MovingAverage, TrainingState
from keras_transformer.trainers.fitting.validation import loss_and_metrics, validation_scores
from keras_transformer.trainers.recipes import completed
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator

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
    """Trains a model by its `settings`, and returns its finished run.

    Args:
        run_dir: a directory that does not exist yet, or is empty.
        verbose: of `model.fit`: 1 for progress bars, 2 for a line per epoch, 0 for silence.
        resume: whether to resume the interrupted training of `run_dir`, if there is one, from its
            last save; the result is that of a run without interruption.
        progress: called with the number of pairs prepared since the last call.
        callbacks: for `model.fit`, on the chief; called after a validation is saved.

    Raises:
        InputError: if a setting does not fit the data, or the directory is in use.
        TrainingStoppedError: if SIGTERM, SIGINT or the loss of another worker ends it early.
    """
    path = Path(run_dir)
    settings = completed(settings.with_absolute_paths(), path if resume else None)
    # TensorFlow accepts several machines only before its first operation.
    workers = Workers(make_strategy(settings.strategy))
    with workers.watched(), locked_run_dir(path, resume) if workers.is_chief else nullcontext():
        run, corpus = open_run(settings, path, progress, workers)
        if corpus is not None:
            keras.utils.set_random_seed(settings.seed)
            with precision(settings.precision), workers.strategy.scope():
                _fit(run, settings, corpus, verbose, callbacks, workers)
        elif run.status == "complete":
            logger.info("%s is complete", path)
        if workers.is_chief and run.status != "complete":
            _finish(run, settings)
        workers.wait()
        return run if workers.is_chief else Run.load(path)


def _fit(
    run: Run,
    settings: TrainSettings,
    corpus: PreparedCorpus,
    verbose: int,
    user_callbacks: Sequence[keras.callbacks.Callback],
    workers: Workers,
) -> None:
    strategy = workers.strategy
    plan = plan_of(corpus.training, settings)
    _log_plan(plan, strategy, settings)
    model = build_model(run.config)
    initialize(model, corpus.tokenizer, settings, is_new=not run.states)
    trained, metrics = _compile(model, settings)
    interval = settings.steps_per_validation or min(
        plan.batches_per_epoch, MAX_STEPS_PER_VALIDATION
    )
    validation, num_batches = None, None
    if corpus.validation is not None:
        val_plan = BatchPlan(corpus.validation.lengths, settings.tokens_per_batch, seed=None)
        num_batches = val_plan.batches_per_epoch
        validation = distribute(strategy, corpus.validation, val_plan, range(num_batches))
    pairs = corpus.first_validation_pairs(settings.bleu_sentences)
    translator = Translator(model, corpus.tokenizer, settings.search)
    with stop_signals() as signals:
        saved = SaveRun(
            run,
            settings,
            model,
            TrainingState(trained, metrics),
            MovingAverage(trained),
            workers,
            signals,
            score=lambda: validation_scores(translator, pairs, settings),
        )
        saved.resume()
        callbacks: list[keras.callbacks.Callback] = [saved]
        if workers.is_chief:
            callbacks += [TensorBoard(run.path / "tensorboard", saved), *user_callbacks]
        for part in _split_epochs(range(saved.step, settings.steps), interval):
            trained.fit(
                distribute(strategy, corpus.training, plan, part, static_shapes=settings.jit),
                initial_epoch=part.start // interval,
                epochs=-(-part.stop // interval),  # the number of the last epoch
                steps_per_epoch=min(interval, len(part)),
                callbacks=callbacks,
                shuffle=False,  # the plan shuffles
                verbose=verbose if workers.is_chief else 0,
                validation_data=validation,
                validation_steps=num_batches,
            )
            if trained.stop_training:
                break


def _log_plan(plan: BatchPlan, strategy: tf.distribute.Strategy, settings: TrainSettings) -> None:
    source, target = plan.mean_tokens
    logger.info(
        f"Batches: {plan.batches_per_epoch} an epoch, of {source:.0f} + {target:.0f} tokens on "
        f"average, {plan.padding_share:.0%} padding"
    )
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    logger.info("Devices: %d %s, %s", strategy.num_replicas_in_sync, kind, settings.precision)


def _compile(
    model: EncoderDecoder, settings: TrainSettings
) -> tuple[TrainingModel, list[keras.metrics.Metric]]:
    trained = TrainingModel(model, settings.r_drop, settings.accumulate, settings.jit)
    loss, metrics = loss_and_metrics(settings)
    optimizer = Adam(
        settings.schedule(model.config.d_model),
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        global_clipnorm=settings.clip_norm,
        use_ema=settings.ema_decay is not None,
        ema_momentum=settings.ema_decay or 0.0,
    )
    trained.compile(optimizer, loss, metrics)
    trained.optimizer.build(trained.trainable_variables)
    return trained, [trained.metrics[0], *metrics]  # the first is the mean of the loss


def _split_epochs(steps: range, interval: int) -> Iterator[range]:
    """Splits off the rest of an interrupted epoch: `fit` takes epochs of one length."""
    boundary = min(steps.stop, -(-steps.start // interval) * interval)
    for part in (range(steps.start, boundary), range(boundary, steps.stop)):
        if part:
            yield part


def _finish(run: Run, settings: TrainSettings) -> None:
    last = min(settings.average_last, len(run.checkpoints))
    if last < settings.average_last:
        logger.warning("Averaging %d checkpoints: there are no more", last)
    if last:
        average(run, last)
    run.finish()
