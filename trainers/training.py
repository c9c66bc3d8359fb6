"""From a corpus to a run directory, by `model.fit`."""

import functools
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.files import locked
from keras_transformer.losses import LabelSmoothedCrossEntropy, Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.model import Transformer
from keras_transformer.run import Run, claim
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.trainers.averaging import average_checkpoints
from keras_transformer.trainers.batches import BatchPlan, distribute
from keras_transformer.trainers.callbacks import (
    ExactSwap,
    SaveRun,
    StepLimit,
    StopSignals,
    TrainingState,
    ValidationBleu,
    is_over,
)
from keras_transformer.trainers.preparation import Progress, no_progress, prepare
from keras_transformer.trainers.prepared import (
    PreparedCorpus,
    corpus_folder,
    is_prepared,
    is_whole,
    open_prepared,
    read_shard,
    shard_path,
)
from keras_transformer.trainers.recipes import TrainSettings
from keras_transformer.trainers.strategies import Workers, make_strategy
from keras_transformer.trainers.training_model import Adam, TrainingModel
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

MAX_STEPS_PER_VALIDATION = 1_000
# What may change when a training is resumed: when it ends (without a cooldown) and saves, and where
# it runs, but not what an update does.
RESUMABLE = (
    "steps",
    "max_hours",
    "patience",
    "keep_checkpoints",
    "average_last",
    "steps_per_save",
    "minutes_per_save",
    "strategy",
    "accumulate",
)
# What a run directory may hold before its manifest: a kill may have come before that.
BEGUN = {"checkpoints", "tokenizer.model", "run.json.tmp"}


def train(
    settings: TrainSettings,
    run_dir: str | Path,
    verbose: int = 1,
    *,
    resume: bool = False,
    progress: Progress = no_progress,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Run:
    """Trains a model and writes its run directory.

    Args:
        settings: what to train and how.
        run_dir: a directory that does not exist yet, or is empty.
        verbose: of `model.fit`: 1 for progress bars, 2 for a line an epoch, 0 for silence.
        resume: whether to go on with the interrupted run of `run_dir`, if there is one, from what
            was saved last; the result is that of a training without interruption.
        progress: called with the number of pairs prepared since the last call.
        callbacks: for `model.fit`, on the chief; called when a validation has been saved.

    Returns:
        The finished run.

    Raises:
        InputError: if a setting does not fit the data, or the directory is in use.
        TrainingStoppedError: if SIGTERM, SIGINT or the loss of another worker ends it early.
    """
    # First of all, for TensorFlow takes several machines before its first operation or not at all.
    workers = Workers(make_strategy(settings.strategy))
    path = Path(run_dir)
    with workers.watched(), _held(path, resume) if workers.is_chief else nullcontext():
        return _train(settings, path, verbose, progress, callbacks, workers)


def _train(
    settings: TrainSettings,
    path: Path,
    verbose: int,
    progress: Progress,
    callbacks: Sequence[keras.callbacks.Callback],
    workers: Workers,
) -> Run:
    run, corpus, is_done, is_complete = None, None, False, False
    if workers.is_chief:
        run = _open_run(settings, path)
        if run is not None:
            is_done, is_complete = is_over(run, settings), run.status == "complete"
        if not is_done:
            corpus = _open_corpus(settings, path, progress)
            run = _start_run(settings, path, corpus, run)
    # The chief decides, and the others wait for it.
    is_done, is_complete = workers.any(is_done, is_complete)
    _check_same(workers, json.dumps(settings.to_dict(), sort_keys=True), "settings")
    if run is None:
        if not (path / "run.json").is_file():
            raise InputError(f"All workers must share the directory {path}; this one does not")
        run = Run.load(path)
    if not is_done:
        corpus = corpus or open_prepared(corpus_folder(run), settings)
        plan = BatchPlan(corpus.training.lengths, settings.tokens_per_batch, settings.seed)
        source, target = corpus.training.lengths.sum(axis=0) / plan.batches_per_epoch
        logger.info(
            "Batches: %d an epoch, of %.0f + %.0f tokens on average, %.0f %% padding",
            plan.batches_per_epoch,
            source,
            target,
            100 * plan.padding_share,
        )
        replicas = workers.strategy.num_replicas_in_sync
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        logger.info("Devices: %d %s, %s", replicas, kind, settings.precision)
        keras.utils.set_random_seed(settings.seed)
        with _precision(settings.precision), workers.strategy.scope():
            _fit(run, settings, corpus, plan, verbose, callbacks, workers)
    elif is_complete:
        logger.info("%s is complete", path)
        return run
    if workers.is_chief:
        if settings.average_last:
            last = min(settings.average_last, len(run.checkpoints))
            if last < settings.average_last:
                logger.warning(
                    "Averaging %d instead of %d checkpoints: there are no more",
                    last,
                    settings.average_last,
                )
            average_checkpoints(run, last)
        run.finish()
    workers.wait()
    return run if workers.is_chief else Run.load(path)


def _check_same(workers: Workers, text: str, name: str) -> None:
    """Raises `InputError` unless all workers call it with the same text."""
    if not workers.have_same(text):
        raise InputError(
            f"The workers' {name} differ: start all of them with the same command, "
            "on the same run directory"
        )


@contextmanager
def _held(path: Path, resume: bool) -> Iterator[None]:
    """Claims or opens the run directory, and keeps others out of it.

    What fails before there is any work to lose leaves nothing behind.
    """
    is_new = not path.exists()
    going_on = resume and path.is_dir() and any(path.iterdir())
    if not going_on:
        claim(path)
    elif not (
        (path / "run.json").is_file()
        or (path / "corpus").is_dir()
        or {each.name for each in path.iterdir()} <= BEGUN
    ):
        Run.load(path)  # says what it is not
    with locked(path):
        try:
            yield
        except InputError as error:
            if not (going_on or _holds_work(path, error)):
                _clear(path, is_new)
            raise


def _holds_work(path: Path, error: InputError) -> bool:
    """Whether a call that goes on after an error, from the same run directory, spares work."""
    if (path / "run.json").is_file():
        return True
    if isinstance(error.__cause__, OSError | RuntimeError):  # a full disk, not what was asked for
        return is_prepared(path / "corpus")
    first = read_shard(shard_path(path / "corpus", "train", 0))
    return first is not None and first["kept"] > 0


def _clear(path: Path, is_new: bool) -> None:
    """Empties a directory that `claim` found empty, and deletes one that it made."""
    with suppress(OSError):  # what led here matters more
        for each in path.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        if is_new:
            path.rmdir()


def _open_corpus(settings: TrainSettings, path: Path, progress: Progress) -> PreparedCorpus:
    """Opens the corpus, or prepares it."""
    if is_prepared(settings.data):
        corpus = open_prepared(settings.data, settings)
    elif (path / "run.json").is_file() and is_whole(path / "corpus"):
        corpus = open_prepared(path / "corpus", settings)  # the text may be elsewhere now
    else:
        corpus = prepare(settings, path / "corpus", progress)
    if corpus.validation is None:
        if settings.patience is not None:
            raise InputError(
                "`patience` needs a validation split, and the corpus has none. "
                f"Received: patience={settings.patience}"
            )
        if settings.bleu_sentences:
            logger.warning("No validation BLEU: the corpus has no validation split")
    return corpus


def _start_run(settings: TrainSettings, path: Path, corpus: PreparedCorpus, run: Run | None) -> Run:
    """Starts the run directory, if it is not one, and else checks its tokenizer."""
    tokenizer = corpus.tokenizer
    if run is None:
        config = settings.config(tokenizer.vocab_size)
        return Run.create(
            path, config, tokenizer, settings.source, settings.target, settings.to_dict()
        )
    if run.tokenizer_sha256 != tokenizer.fingerprint:
        raise InputError(f"{path} was trained with another tokenizer than its corpus's")
    return run


def _open_run(settings: TrainSettings, path: Path) -> Run | None:
    """Opens the run directory of the same training; None for one that has not begun."""
    if not (path / "run.json").is_file():
        if (path / "checkpoints").is_dir() and any((path / "checkpoints").iterdir()):
            raise InputError(f"{path} holds checkpoints, but {path}/run.json is missing")
        return None
    run = Run.load(path)
    # A setting that is newer than the run had its default.
    defaults = TrainSettings(data=settings.data).to_dict()
    for name, value in settings.to_dict().items():
        before = run.settings.get(name, defaults[name])
        if name == "data" and _is_same_folder(before, value):
            continue
        is_fixed_by_cooldown = name == "steps" and settings.cooldown > 0
        if before != value and (name not in RESUMABLE or is_fixed_by_cooldown):
            reason = ", because it ends with a cooldown" if is_fixed_by_cooldown else ""
            raise InputError(
                f"{path} is a training with {name}={before!r}, which cannot change "
                f"when it is resumed{reason}. Received: {name}={value!r}"
            )
    if run.settings.get("average_last", 0) != settings.average_last:
        run.status, run.averaged = "training", None  # what its end makes is still to be made
    run.settings = settings.to_dict()
    return run


def _is_same_folder(one: str, other: str) -> bool:
    return Path(one).is_dir() and Path(other).is_dir() and Path(one).samefile(other)


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
    run: Run,
    settings: TrainSettings,
    corpus: PreparedCorpus,
    plan: BatchPlan,
    verbose: int,
    others: Sequence[keras.callbacks.Callback],
    workers: Workers,
) -> None:
    model = Transformer(run.config)
    trained, metrics = _compile(model, settings)
    state = TrainingState(trained, metrics)
    interval = settings.steps_per_validation or min(
        plan.batches_per_epoch, MAX_STEPS_PER_VALIDATION
    )
    step, seconds = 0, 0.0
    if run.states:
        saved, step = run.load_state()
        seconds = saved.seconds
        if step >= settings.steps:
            raise InputError(
                f"`steps` must be more than the {step} updates that {run.path} has saved. "
                f"Received: steps={settings.steps}"
            )
        try:
            state.restore(saved.arrays, saved.in_epoch)
        except InputError as error:
            raise InputError(f"{run.path / run.states[-1].file}: {error}") from error
        del saved  # as large as three models
        logger.info("Resumed after %d updates", step)
    _check_same(workers, str(step), "saved states")
    if workers.is_chief:
        run.start_again()
        run.cut_metrics(step)
    data = functools.partial(distribute, workers.strategy)
    validation: dict[str, Any] = {}
    if corpus.validation is not None:
        validation_plan = BatchPlan(corpus.validation.lengths, settings.tokens_per_batch, seed=None)
        steps = range(validation_plan.batches_per_epoch)
        validation = {
            "validation_data": data(corpus.validation, validation_plan, steps),
            "validation_steps": len(steps),
        }
    with StopSignals() as signals:
        limit = StepLimit(settings.steps, step)
        callbacks = [limit, state]
        if settings.ema_decay is not None:
            callbacks.append(ExactSwap(swap_on_epoch=True))
        pairs = corpus.validation_pairs[: settings.bleu_sentences]
        if pairs and workers.is_chief:
            sources, references = map(list, zip(*pairs, strict=True))
            translator = Translator(model, corpus.tokenizer)
            callbacks.append(ValidationBleu(translator, sources, references))
        callbacks.append(
            SaveRun(run, model, settings, interval, limit, state, workers, signals, seconds)
        )
        if workers.is_chief:
            callbacks += [keras.callbacks.TensorBoard(run.path / "tensorboard"), *others]
        for part in _parts(range(step, settings.steps), interval):
            with _damage_named(corpus):
                trained.fit(
                    data(
                        corpus.training,
                        plan,
                        part,
                        static_shapes=settings.jit,  # only updates are compiled
                        parts=settings.accumulate,
                    ),
                    # `epochs` is the last one's number.
                    initial_epoch=part.start // interval,
                    epochs=-(-part.stop // interval),
                    steps_per_epoch=min(interval, len(part)),
                    callbacks=callbacks,
                    shuffle=False,  # the plan has shuffled
                    verbose=verbose if workers.is_chief else 0,
                    **validation,
                )
            if trained.stop_training:
                break


@contextmanager
def _damage_named(corpus: PreparedCorpus) -> Iterator[None]:
    """Raises the `InputError` of a damaged shard, which `fit` would wrap in TensorFlow's."""
    try:
        yield
    except tf.errors.OpError as error:
        for pairs in (corpus.training, corpus.validation):
            if pairs is not None and pairs.damage is not None:
                raise pairs.damage from error
        raise


def _compile(
    model: Transformer, settings: TrainSettings
) -> tuple[TrainingModel, list[keras.metrics.Metric]]:
    """Returns what `fit` trains, and its metrics."""
    trained = TrainingModel(model, settings.r_drop, settings.accumulate, settings.jit)
    metrics = [TokenLoss(), Perplexity(), TokenAccuracy()]
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
        loss=LabelSmoothedCrossEntropy(settings.label_smoothing),
        metrics=metrics,
        jit_compile=False,  # "auto" crashes on several GPUs; see `TrainingModel`
    )
    trained.optimizer.build(trained.trainable_variables)
    return trained, [trained._loss_tracker, *metrics]


def _parts(steps: range, interval: int) -> Iterator[range]:
    """Cuts off what is left of an interrupted epoch, for `fit` wants epochs of one length."""
    boundary = min(steps.stop, -(-steps.start // interval) * interval)
    for part in (range(steps.start, boundary), range(boundary, steps.stop)):
        if part:
            yield part
