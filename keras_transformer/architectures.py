"""The architectures: how to configure a model, to build it, and to search with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import InputError
from keras_transformer.rooms import Architecture, brought, load

if TYPE_CHECKING:
    from keras_transformer.config import ModelConfig
    from keras_transformer.model.encoder_decoder import EncoderDecoder
    from keras_transformer.search.beam_search import Step

TRANSFORMER = Architecture(
    config="config:TransformerConfig",
    model="model.transformer:Transformer",
    step="search.decoder_step:DecoderStep",
)


def architectures() -> dict[str, Architecture]:
    """Returns all architectures by name."""
    return {"transformer": TRANSFORMER, **brought("ARCHITECTURES")}


def config_type(architecture: str) -> "type[ModelConfig]":
    """Returns the class of an architecture's configurations."""
    known = architectures()
    if architecture not in known:
        raise InputError(
            f"`architecture` must be one of {', '.join(known)}. "
            f"Received: architecture={architecture!r}"
        )
    found: type[ModelConfig] = load(known[architecture].config)
    return found


def build_model(config: "ModelConfig") -> "EncoderDecoder":
    """Builds a model with fresh weights.

    Args:
        config: sizes and rates.
    """
    found: EncoderDecoder = load(architectures()[config.architecture].model)(config)
    return found


@contextmanager
def precision(policy: str) -> Iterator[None]:
    """Builds layers with a dtype policy of Keras, such as "mixed_bfloat16"."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def step_of(model: "EncoderDecoder", max_length: Any, num_sequences: Any) -> "Step":
    """Returns the step function of a search.

    Args:
        model: the model.
        max_length: int32 [], the maximum length of a hypothesis in tokens.
        num_sequences: int32 [], the number of hypotheses of all rows.
    """
    step = load(architectures()[model.config.architecture].step)
    found: Step = step(model, max_length, num_sequences)
    return found
