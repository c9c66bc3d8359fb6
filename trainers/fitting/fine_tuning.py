"""The first sizes and weights of a run: its own, or those of the run that it starts from."""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError, require
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.run import Run
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.settings import TrainSettings


def initial_config(settings: TrainSettings, tokenizer: Tokenizer) -> ModelConfig:
    """Returns the sizes of a new run's model."""
    if settings.init_from is None:
        return settings.config(tokenizer.sizes)
    initial = Run.load(settings.init_from)
    if initial.tokenizer_sha256 == tokenizer.fingerprint:
        sizes = {name: getattr(initial.config, name) for name in initial.config.of_tokenizer}
        return settings.config(sizes)
    if _places(initial.tokenizer(), tokenizer) is None:
        raise InputError(
            f"{settings.data} was prepared with another tokenizer than that of {initial.path}: "
            f"prepare it with --set init_from={initial.path}"
        )
    require(
        settings.freeze != "embeddings",
        "`freeze` must not be embeddings, because `protect` or a language adds some",
        freeze=settings.freeze,
    )
    return settings.config(tokenizer.sizes)


def _places(initial: Tokenizer, tokenizer: Tokenizer) -> np.ndarray | None:
    """Returns where a tokenizer that adds protection or tags has a run's pieces, or None."""
    pieces, more = (
        tokenizer.source.pieces(tf.range(tokenizer.vocab_size)).numpy().tolist()
        for tokenizer in (initial, tokenizer)
    )
    known = set(pieces)
    places = np.array([place for place, piece in enumerate(more) if piece in known])
    adds_some = len(tokenizer.protect) > len(initial.protect) or tokenizer.source_languages
    return places if adds_some and [more[place] for place in places] == pieces else None


def initialize(
    model: EncoderDecoder, tokenizer: Tokenizer, settings: TrainSettings, is_new: bool
) -> None:
    """Gives the model of a new run the weights that it starts from, and freezes some layers."""
    if settings.init_from is not None and is_new:
        initial = Run.load(settings.init_from)
        if initial.config.vocab_size == model.config.vocab_size:
            initial.load_weights(model, initial.checkpoint())
        else:  # new ids keep their fresh weights
            places = _places(initial.tokenizer(), tokenizer)
            for weight, trained in zip(model.weights, initial.model().weights, strict=True):
                values = keras.ops.convert_to_numpy(weight)
                sizes = zip(weight.shape, trained.shape, strict=True)
                rows = (np.arange(old) if old == new else places for new, old in sizes)
                values[np.ix_(*rows)] = keras.ops.convert_to_numpy(trained)
                weight.assign(values)
    frozen = {
        None: [],
        "embeddings": [model.source_embedding, model.target_embedding],
        "encoder": [*model.encoder_layers, *filter(None, [model.encoder_norm])],
    }
    for layer in frozen[settings.freeze]:
        layer.trainable = False
