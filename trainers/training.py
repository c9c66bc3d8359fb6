"""From a corpus to a run directory, by `model.fit`."""

import dataclasses
import itertools
import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.losses import LabelSmoothedCrossEntropy, Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.model import Transformer
from keras_transformer.run import Run, claim
from keras_transformer.schedules import WarmupSchedule
from keras_transformer.tokenizer import Tokenizer, VocabularyTooLargeError
from keras_transformer.trainers.batches import BatchPlan, TokenizedPairs, make_dataset
from keras_transformer.trainers.corpora import Corpus, load_corpus
from keras_transformer.trainers.strategies import StrategyName, TrainingModel, make_strategy

logger = logging.getLogger(__name__)

MAX_STEPS_PER_VALIDATION = 1_000
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train; the run directory records them.

    Attributes:
        data: "bundled", "tfds:NAME[/CONFIG]", or a folder of files `{language}.{split}.txt`.
        source: source language.
        target: target language.
        preset: sizes of the model, "tiny", "base" or "big".
        vocab_size: number of subwords of both languages; None for 8,000, or as many as the
            corpus supports.
        steps: updates.
        seed: of weights, dropout and batches.
        tokens_per_batch: most tokens of each side of a batch (25,000: section 5.1).
        max_length: pairs with a side of more tokens are dropped.
        warmup_steps: step of the highest learning rate (4,000: section 5.3).
        peak_rate: the highest learning rate; None for the paper's.
        label_smoothing: 0.1: section 5.4.
        model_overrides: attributes of `TransformerConfig` that differ from the preset's.
        steps_per_validation: updates between validations and checkpoints; None for an epoch, or
            for `MAX_STEPS_PER_VALIDATION` in a long one.
        strategy: "one" device, or "mirrored" over this machine's GPUs.
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        jit: whether to compile the step by XLA; every bucket of lengths compiles once.
    """

    data: str
    source: str = "en"
    target: str = "de"
    preset: str = "tiny"
    vocab_size: int | None = None
    steps: int = 10_000
    seed: int = 1
    tokens_per_batch: int = 4096
    max_length: int = 256
    warmup_steps: int = 4000
    peak_rate: float | None = None
    label_smoothing: float = 0.1
    model_overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps_per_validation: int | None = None
    strategy: StrategyName = "one"
    precision: str = "float32"
    jit: bool = False

    def __post_init__(self) -> None:
        counts = ("steps", "tokens_per_batch", "warmup_steps", "steps_per_validation", "vocab_size")
        for name in counts:
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**31:
                raise InputError(
                    f"`{name}` must be at least 1 and below 2**31. Received: {name}={value}"
                )
        if not 2 <= self.max_length <= self.tokens_per_batch:
            raise InputError(
                "`max_length` must be at least 2 and at most `tokens_per_batch`. Received: "
                f"max_length={self.max_length}, tokens_per_batch={self.tokens_per_batch}"
            )
        if not 0 <= self.seed < 2**32:
            raise InputError(f"`seed` must be 0 to 2**32 - 1. Received: seed={self.seed}")
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                "`label_smoothing` must be at least 0 and below 1. "
                f"Received: label_smoothing={self.label_smoothing}"
            )
        if self.peak_rate is not None and not 0 < self.peak_rate < math.inf:
            raise InputError(
                f"`peak_rate` must be positive and finite. Received: peak_rate={self.peak_rate}"
            )
        if self.precision not in PRECISIONS:
            raise InputError(
                f"`precision` must be one of {', '.join(PRECISIONS)}. "
                f"Received: precision={self.precision!r}"
            )


class StepLimit(keras.callbacks.Callback):
    """Ends `fit` after a number of updates, in the middle of an epoch if need be."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts an update."""
        self.step += 1
        if self.step >= self.steps:
            self.model.stop_training = True


class SaveRun(keras.callbacks.Callback):
    """Writes checkpoints and metrics to the run directory after every validation."""

    def __init__(self, run: Run, model: Transformer, limit: StepLimit) -> None:
        super().__init__()
        self.run = run
        self.transformer = model
        self.limit = limit
        self.lowest = float("inf")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves; the best checkpoint is that of the lowest validation loss."""
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        for name in ("loss", "val_token_loss"):
            if not math.isfinite(metrics.get(name, 0.0)):
                raise InputError(
                    f"`{name}` is {metrics[name]} after {self.limit.step} updates: "
                    "try a lower `peak_rate` or more `warmup_steps`"
                )
        self.run.log_metrics(self.limit.step, metrics)
        # Without a validation set the newest weights are the best known.
        loss = metrics.get("val_token_loss", -math.inf)
        is_best = loss < self.lowest or loss == -math.inf
        self.lowest = min(self.lowest, loss)
        self.run.save_checkpoint(self.transformer, self.limit.step, metrics, is_best)


def train(settings: TrainSettings, run_dir: str | Path, verbose: int = 1) -> Run:
    """Trains a model and writes its run directory.

    Args:
        settings: what to train and how.
        run_dir: a directory that does not exist yet, or is empty.
        verbose: of `model.fit`: 1 for progress bars, 2 for a line an epoch, 0 for silence.

    Returns:
        The finished run.

    Raises:
        InputError: if a setting does not fit the data, or the directory is in use.
    """
    # What can be told at once is told before anything is written.
    config = _config(settings, vocab_size=8)
    if config.position_encoding == "learned" and settings.max_length > config.max_length:
        raise InputError(
            f"`max_length` must be at most the model's {config.max_length} learned positions. "
            f"Received: max_length={settings.max_length}"
        )
    strategy = make_strategy(settings.strategy)
    corpus = load_corpus(settings.data, settings.source, settings.target)
    corpus.pairs("train")
    path = claim(run_dir)
    try:
        run, training, validation = _prepare(settings, corpus, path, verbose)
        plan = BatchPlan(training.lengths, settings.tokens_per_batch, settings.seed)
    except InputError:
        shutil.rmtree(path)  # `claim` found it empty; no training is lost
        raise
    logger.info(
        "Batches: %d an epoch, %.0f %% padding", plan.batches_per_epoch, 100 * plan.padding_share
    )
    keras.utils.set_random_seed(settings.seed)
    with _precision(settings.precision), strategy.scope():
        _fit(run, settings, training, plan, validation, verbose)
    run.finish()
    return run


def _config(settings: TrainSettings, vocab_size: int) -> TransformerConfig:
    return TransformerConfig.from_preset(
        settings.preset, vocab_size=vocab_size, **settings.model_overrides
    )


@contextmanager
def _precision(policy: str) -> Iterator[None]:
    """Sets Keras's default dtype policy for a while."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _prepare(
    settings: TrainSettings, corpus: Corpus, path: Path, verbose: int
) -> tuple[Run, TokenizedPairs, TokenizedPairs | None]:
    """Trains the tokenizer, starts the run directory and tokenises the corpus."""
    started = time.monotonic()
    tokenizer = _train_tokenizer(corpus, settings.vocab_size)
    run = Run.create(
        path,
        _config(settings, tokenizer.vocab_size),
        tokenizer,
        settings.source,
        settings.target,
        dataclasses.asdict(settings),
    )
    logger.info(
        "Tokenizer: %d subwords in %.1f s: %s",
        tokenizer.vocab_size,
        time.monotonic() - started,
        path / "tokenizer.model",
    )
    return run, *_tokenize(corpus, tokenizer, path / "corpus", settings.max_length, verbose)


def _train_tokenizer(corpus: Corpus, vocab_size: int | None) -> Tokenizer:
    def texts() -> Iterator[str]:
        return itertools.chain.from_iterable(corpus.pairs("train"))

    if vocab_size is not None:
        return Tokenizer.train(texts(), vocab_size)
    try:
        return Tokenizer.train(texts(), 8_000)
    except VocabularyTooLargeError as error:
        return Tokenizer.train(texts(), error.limit)


def _tokenize(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, max_length: int, verbose: int
) -> tuple[TokenizedPairs, TokenizedPairs | None]:
    """Tokenises the training and, if there is one, the validation split."""
    folder.mkdir()
    started = time.monotonic()
    bar = keras.utils.Progbar(None, unit_name="pair", verbose=int(verbose == 1))
    training, tally = TokenizedPairs.write(
        folder / "train", corpus.pairs("train"), tokenizer, max_length, progress=bar.add
    )
    logger.info(
        "Corpus: %d pairs (dropped: %d empty, %d too long) in %.1f s: %s",
        *tally,
        time.monotonic() - started,
        folder,
    )
    split = corpus.validation_split
    if split is None:
        logger.warning("No validation: %s has no split val, valid, validation or dev", corpus.name)
        return training, None
    validation, tally = TokenizedPairs.write(
        folder / "val", corpus.pairs(split), tokenizer, max_length
    )
    logger.info("Validation: %d pairs (dropped: %d empty, %d too long)", *tally)
    return training, validation


def _fit(
    run: Run,
    settings: TrainSettings,
    training: TokenizedPairs,
    plan: BatchPlan,
    validation: TokenizedPairs | None,
    verbose: int,
) -> None:
    model = Transformer(run.config)
    trained = TrainingModel(model)
    trained.compile(
        optimizer=keras.optimizers.Adam(
            WarmupSchedule(run.config.d_model, settings.warmup_steps, settings.peak_rate),
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
        ),
        loss=LabelSmoothedCrossEntropy(settings.label_smoothing),
        metrics=[TokenLoss(), Perplexity(), TokenAccuracy()],
        # "auto" would mean no XLA on a CPU, and a crash under several replicas.
        jit_compile=settings.jit,
    )
    validation_data = None
    if validation is not None:
        validation_plan = BatchPlan(validation.lengths, settings.tokens_per_batch, seed=None)
        validation_data = make_dataset(
            validation, validation_plan, range(validation_plan.batches_per_epoch), settings.jit
        )
    interval = settings.steps_per_validation or min(
        plan.batches_per_epoch, MAX_STEPS_PER_VALIDATION
    )
    steps_per_epoch = min(interval, settings.steps)
    limit = StepLimit(settings.steps)
    trained.fit(
        make_dataset(training, plan, range(settings.steps), settings.jit),
        epochs=-(-settings.steps // steps_per_epoch),
        steps_per_epoch=steps_per_epoch,
        validation_data=validation_data,
        callbacks=[
            limit,
            SaveRun(run, model, limit),
            keras.callbacks.TensorBoard(run.path / "tensorboard"),
        ],
        shuffle=False,  # the plan has shuffled
        verbose=verbose,
    )
