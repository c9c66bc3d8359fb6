"""The encoder-decoder Transformer of "Attention Is All You Need" in Keras 3 and TensorFlow.

Shapes are written with one set of letters throughout:

    B batch      S source length   T target length   D d_model   N heads   H head size (d_k, d_v)
    F d_ff       V vocabulary      K beams           C cache length        L layers

Public names are imported when they are first used, so that `keras-transformer --help` does not wait
for TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import wrapt

from keras_transformer._version import __version__

if TYPE_CHECKING:
    from keras_transformer.attention import MultiHeadAttention
    from keras_transformer.config import DecodingOptions, TransformerConfig
    from keras_transformer.decoding import beam_search, greedy_search
    from keras_transformer.embedding import PositionalEmbedding
    from keras_transformer.errors import InputError
    from keras_transformer.layers import DecoderLayer, EncoderLayer, FeedForward
    from keras_transformer.losses import (
        LabelSmoothedCrossEntropy,
        Perplexity,
        TokenAccuracy,
        TokenLoss,
    )
    from keras_transformer.model import Transformer
    from keras_transformer.run import Run
    from keras_transformer.schedules import WarmupSchedule
    from keras_transformer.tokenizer import Tokenizer
    from keras_transformer.translator import Attention, Translation, Translator

_MODULES = {
    "Attention": "translator",
    "DecoderLayer": "layers",
    "DecodingOptions": "config",
    "EncoderLayer": "layers",
    "FeedForward": "layers",
    "InputError": "errors",
    "LabelSmoothedCrossEntropy": "losses",
    "MultiHeadAttention": "attention",
    "Perplexity": "losses",
    "PositionalEmbedding": "embedding",
    "Run": "run",
    "TokenAccuracy": "losses",
    "TokenLoss": "losses",
    "Tokenizer": "tokenizer",
    "Transformer": "model",
    "TransformerConfig": "config",
    "Translation": "translator",
    "Translator": "translator",
    "WarmupSchedule": "schedules",
    "beam_search": "decoding",
    "greedy_search": "decoding",
}

__all__ = [
    "Attention",
    "DecoderLayer",
    "DecodingOptions",
    "EncoderLayer",
    "FeedForward",
    "InputError",
    "LabelSmoothedCrossEntropy",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEmbedding",
    "Run",
    "TokenAccuracy",
    "TokenLoss",
    "Tokenizer",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Translator",
    "WarmupSchedule",
    "__version__",
    "beam_search",
    "greedy_search",
]

_OF_KERAS = ("attention", "embedding", "layers", "losses", "model", "schedules")


@wrapt.when_imported("keras")
def _register(keras: Any) -> None:
    """Lets Keras find the classes of saved models; a module is imported when Keras needs it."""
    for name, module in _MODULES.items():
        if module in _OF_KERAS:
            found = wrapt.lazy_import(f"{__name__}.{module}", name)
            keras.saving.get_custom_objects().setdefault(f"{__name__}>{name}", found)
    # An HDF5 file (`.h5`) names a model's class without the package.
    found = wrapt.lazy_import(f"{__name__}.model", "Transformer")
    keras.saving.get_custom_objects()["Transformer"] = found


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
