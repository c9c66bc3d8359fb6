"""The encoder-decoder Transformer of "Attention Is All You Need" in Keras 3 and TensorFlow.

Shapes are written with one set of letters throughout:

    B batch      S source length   T target length   D d_model   N heads   H head size (d_k, d_v)
    F d_ff       V vocabulary      K beams           C cache length        L layers
    U units of a recurrent state

Public names are imported when they are first used, so that `keras-transformer --help` does not wait
for TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import wrapt

from keras_transformer._version import __version__

if TYPE_CHECKING:
    from keras_transformer.config import DecodingOptions as DecodingOptions
    from keras_transformer.config import RecurrentConfig as RecurrentConfig
    from keras_transformer.config import TransformerConfig as TransformerConfig
    from keras_transformer.errors import InputError as InputError
    from keras_transformer.model.attention import MultiHeadAttention as MultiHeadAttention
    from keras_transformer.model.embedding import PositionalEmbedding as PositionalEmbedding
    from keras_transformer.model.layers import DecoderLayer as DecoderLayer
    from keras_transformer.model.layers import EncoderLayer as EncoderLayer
    from keras_transformer.model.layers import FeedForward as FeedForward
    from keras_transformer.model.losses import (
        LabelSmoothedCrossEntropy as LabelSmoothedCrossEntropy,
    )
    from keras_transformer.model.losses import Perplexity as Perplexity
    from keras_transformer.model.losses import TokenAccuracy as TokenAccuracy
    from keras_transformer.model.losses import TokenLoss as TokenLoss
    from keras_transformer.model.schedules import WarmupSchedule as WarmupSchedule
    from keras_transformer.model.transformer import Transformer as Transformer
    from keras_transformer.recurrent.model import Recurrent as Recurrent
    from keras_transformer.run import Run as Run
    from keras_transformer.search.beam_search import beam_search as beam_search
    from keras_transformer.search.beam_search import greedy_search as greedy_search
    from keras_transformer.tokenizers import Tokenizer as Tokenizer
    from keras_transformer.translator import Attention as Attention
    from keras_transformer.translator import Translation as Translation
    from keras_transformer.translator import Translator as Translator

_NAMES = {
    "model.attention": ["MultiHeadAttention"],
    "config": ["DecodingOptions", "RecurrentConfig", "TransformerConfig"],
    "search.beam_search": ["beam_search", "greedy_search"],
    "model.embedding": ["PositionalEmbedding"],
    "errors": ["InputError"],
    "model.layers": ["DecoderLayer", "EncoderLayer", "FeedForward"],
    "model.losses": ["LabelSmoothedCrossEntropy", "Perplexity", "TokenAccuracy", "TokenLoss"],
    "model.transformer": ["Transformer"],
    "recurrent.model": ["Recurrent"],
    "run": ["Run"],
    "model.schedules": ["WarmupSchedule"],
    "tokenizers": ["Tokenizer"],
    "translator": ["Attention", "Translation", "Translator"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULES)]

_OF_KERAS = ("model.", "recurrent.")


@wrapt.when_imported("keras")
def _register(keras: Any) -> None:
    """Lets Keras find the classes of saved models; a module is imported when Keras needs it."""
    for name, module in _MODULES.items():
        if module.startswith(_OF_KERAS):
            found = wrapt.lazy_import(f"{__name__}.{module}", name)
            keras.saving.get_custom_objects().setdefault(f"{__name__}>{name}", found)
    # An HDF5 file (`.h5`) names a model's class without the package.
    for name in ("Transformer", "Recurrent"):
        found = wrapt.lazy_import(f"{__name__}.{_MODULES[name]}", name)
        keras.saving.get_custom_objects().setdefault(name, found)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
