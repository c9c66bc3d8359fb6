"""The first sizes and weights of a run: its own, or those of the run that it starts from."""

import keras
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
    if not _extends(tokenizer, initial.tokenizer()):
        raise InputError(
            f"{settings.data} was prepared with another tokenizer than that of {initial.path}: "
            f"prepare it with --set init_from={initial.path}"
        )
    require(
        settings.freeze != "embeddings",
        "`freeze` must not be embeddings, because `protect` adds some",
        freeze=settings.freeze,
    )
    return settings.config(tokenizer.sizes)


def _extends(tokenizer: Tokenizer, initial: Tokenizer) -> bool:
    """Returns whether a tokenizer is another one with protection added."""
    if not tokenizer.protect or initial.protect:
        return False
    ids = tf.range(initial.vocab_size)
    same = tokenizer.source.pieces(ids) == initial.source.pieces(ids)
    return bool(tf.reduce_all(same))


def initialize(model: EncoderDecoder, settings: TrainSettings, is_new: bool) -> None:
    """Gives the model of a new run the weights that it starts from, and freezes some layers."""
    if settings.init_from is not None and is_new:
        initial = Run.load(settings.init_from)
        if initial.config.vocab_size == model.config.vocab_size:
            initial.load_weights(model, initial.checkpoint())
        else:  # new ids keep their fresh weights
            for weight, trained in zip(model.weights, initial.model().weights, strict=True):
                values = keras.ops.convert_to_numpy(weight)
                values[tuple(map(slice, trained.shape))] = keras.ops.convert_to_numpy(trained)
                weight.assign(values)
    frozen = {
        None: [],
        "embeddings": [model.source_embedding, model.target_embedding],
        "encoder": [*model.encoder_layers, *filter(None, [model.encoder_norm])],
    }
    for layer in frozen[settings.freeze]:
        layer.trainable = False
