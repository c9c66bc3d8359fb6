"""What depends on the architecture of a model: how to build it, and how to search with it."""

import tensorflow as tf

from keras_transformer.config import ModelConfig, TransformerConfig
from keras_transformer.model.transformer import Transformer
from keras_transformer.recurrent.model import Recurrent
from keras_transformer.recurrent.step import RecurrentStep
from keras_transformer.search.decoder_step import DecoderStep

Model = Transformer | Recurrent
Step = DecoderStep | RecurrentStep


def build_model(config: ModelConfig) -> Model:
    """Builds a model with fresh weights.

    Args:
        config: sizes and rates, which say the architecture.
    """
    return Transformer(config) if isinstance(config, TransformerConfig) else Recurrent(config)


def step_of(model: Model, max_length: int | tf.Tensor) -> Step:
    """Returns the step function of a search.

    Args:
        model: the model.
        max_length: int32 [], the maximum length of a hypothesis in tokens.
    """
    if isinstance(model, Transformer):
        return DecoderStep(model, max_length)
    return RecurrentStep(model)
