"""Trainings that start from another run: its tokenizer, its sizes and its weights."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keras_transformer.architectures import Model
from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.settings import DECIDED, TrainSettings, check_decided

logger = logging.getLogger(__name__)

OF_TOKENIZER = ("vocab_size", "target_vocab_size", "word_id_ends")
RATES = ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate")


def completed(settings: TrainSettings, run_dir: Path | None = None) -> TrainSettings:
    """Returns settings in which all that the run `init_from` decides is that run's.

    Args:
        settings: of a training. A setting that has its default value counts as not given.
        run_dir: the directory of a training to resume. If its run began from the same run, it has
            all that is decided, and `init_from` may be gone; a rate that is not given stays.

    Raises:
        InputError: if a setting contradicts the run.
    """
    if settings.init_from is None:
        return settings
    initial = None
    if run_dir is not None and (run_dir / "run.json").is_file():
        resumed = Run.load(run_dir)
        initial = resumed if resumed.settings.get("init_from") == settings.init_from else None
    initial = initial or Run.load(settings.init_from)
    defaults = TrainSettings(data="").to_dict()
    decided = {**defaults, **initial.settings, "architecture": initial.config.architecture}
    given = {name: getattr(settings, name) for name in DECIDED}
    check_decided(decided, {name: each for name, each in given.items() if each != defaults[name]})
    sizes = initial.config.to_dict()
    changed = {name for name, each in settings.model.items() if each != sizes.get(name)}
    if others := sorted(changed - set(RATES)):
        raise InputError(
            f"With `init_from`, `model` may change {', '.join(RATES)} only. "
            f"Received: {', '.join(others)}"
        )
    decided = {name: decided[name] for name in DECIDED}
    preset = TrainSettings(data="", **decided).config(vocab_size=8).to_dict()
    # `run.json` then says by `preset` and `model` what the model is.
    model = {
        name: value
        for name, value in sizes.items()
        if value != preset[name] and name not in OF_TOKENIZER
    }
    return dataclasses.replace(settings, **decided, model={**model, **settings.model})


def initial_config(settings: TrainSettings, tokenizer: Tokenizer) -> ModelConfig:
    """Returns the sizes of a training's model: its own, or those of the run that it starts from."""
    if settings.init_from is None:
        target_vocab_size = None if tokenizer.shares_pieces else tokenizer.target.vocab_size
        return settings.config(tokenizer.vocab_size, target_vocab_size, tokenizer.word_id_ends)
    initial = Run.load(settings.init_from)
    if initial.tokenizer_sha256 != tokenizer.fingerprint:
        raise InputError(
            f"{settings.data} was prepared with another tokenizer than that of {initial.path}: "
            f"prepare it with --set init_from={initial.path}"
        )
    rates = {name: settings.model[name] for name in RATES if name in settings.model}
    config = type(initial.config)(**{**initial.config.to_dict(), **rates})
    if config.max_positions is not None and settings.max_length > config.max_positions:
        raise InputError(
            f"`max_length` must be at most the {config.max_positions} learned positions of "
            f"`init_from`. Received: max_length={settings.max_length}"
        )
    return config


def initialize(model: Model, settings: TrainSettings, is_new: bool) -> None:
    """Gives the model of a new training its initial weights, and freezes some of its layers."""
    if settings.init_from is not None and is_new:
        initial = Run.load(settings.init_from)
        initial.load_weights(model, initial.checkpoint())
    frozen = {
        None: [],
        "embeddings": [model.source_embedding, model.target_embedding],
        "encoder": model.encoder_layers,
    }
    for layer in frozen[settings.freeze]:
        layer.trainable = False


def mixed(
    pairs: Iterable[Pair], others: Callable[[], Iterable[Pair]], share: float
) -> Iterator[Pair]:
    """Yields the pairs, then a sample of the others, so that these are a share of all.

    The sample is spread evenly over all others. If there are too few of them, it takes them all and
    logs a warning.

    Args:
        pairs: new pairs.
        others: returns the other pairs; called twice.
        share: at least 0 and below 1.
    """
    count = 0
    for pair in pairs:
        count += 1
        yield pair
    wanted = round(count * share / (1 - share))
    total = sum(1 for _ in others())
    sample = min(wanted, total)
    logger.info("Mixed in: %s of %s other pairs", f"{sample:,}", f"{total:,}")
    if sample < wanted:
        logger.warning(
            "The other pairs are %.2g of all pairs, less than `mix_share`=%s, because there are "
            "only %s",
            *(sample / (count + sample), share, f"{total:,}"),
        )
    for index, pair in enumerate(others()):
        if (index + 1) * sample // total > index * sample // total:
            yield pair
