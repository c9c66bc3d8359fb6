"""Trainings that start from another run: its tokenizer, its sizes and its weights."""

from collections.abc import Iterable, Iterator
from itertools import islice

from keras_transformer.architectures import Model
from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.run import Run
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.trainers.corpora import Pair
from keras_transformer.trainers.recipes import TrainSettings

RATES = ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate")


def initial_config(settings: TrainSettings, tokenizer: Tokenizer) -> ModelConfig:
    """Returns the sizes of a training's model: its own, or those of the run that it starts from."""
    if settings.init_from is None:
        own_target = tokenizer.own_target
        target_vocab_size = own_target.vocab_size if own_target else None
        return settings.config(tokenizer.vocab_size, target_vocab_size, tokenizer.word_id_ends)
    initial = Run.load(settings.init_from)
    if initial.config.architecture != settings.architecture:
        raise InputError(
            f"`architecture` must be that of `init_from`, {initial.config.architecture!r}. "
            f"Received: architecture={settings.architecture!r}"
        )
    reads_words = getattr(initial.config, "word_id_ends", None) is not None
    if settings.next_word_input != reads_words:
        raise InputError(
            f"`next_word_input` must be that of `init_from`, {reads_words}. "
            f"Received: next_word_input={settings.next_word_input}"
        )
    if sizes := set(settings.model) - set(RATES):
        raise InputError(
            f"With `init_from`, `model` may change {', '.join(RATES)} only. "
            f"Received: {', '.join(sorted(sizes))}"
        )
    if initial.tokenizer_sha256 != tokenizer.fingerprint:
        raise InputError(
            f"{settings.data} was prepared with another tokenizer than that of {initial.path}: "
            f"prepare it with --set init_from={initial.path}"
        )
    config = type(initial.config)(**{**initial.config.to_dict(), **settings.model})
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


def mixed(pairs: Iterable[Pair], others: Iterable[Pair], share: float) -> Iterator[Pair]:
    """Yields the pairs, then the first of the others, so that these are a share of all."""
    count = 0
    for pair in pairs:
        count += 1
        yield pair
    yield from islice(others, round(count * share / (1 - share)))
