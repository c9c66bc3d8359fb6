"""What the package is made of: architectures, tokenizers, tasks, and sets of protected strings.

A value "module:name" is in `keras_transformer`, and is imported when it is needed. What the
Transformer does not need is a room: a folder, here and perhaps one of the same name in `trainers/`,
which the rest of the package knows only by its lines in these tables. To remove a room, delete its
folders, its lines here and in `setup.cfg`. Then only what is its own fails: of `recurrent`, the
public names in `__init__.pyi`; of `ensemble`, the command of this name; of `models`, the commands
`import` and `convert --to marian`; of `protection`, the setting `protect`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.config import ModelConfig
    from keras_transformer.model.encoder_decoder import EncoderDecoder
    from keras_transformer.search.beam_search import Step


class Architecture(NamedTuple):
    """What an architecture consists of, each as "module:name"."""

    config: str  # its `ModelConfig`
    model: str  # its `EncoderDecoder`, built from the config
    step: str  # the `Step` of a search, built from what `step_of` takes


ARCHITECTURES = {
    "transformer": Architecture(
        config="config:TransformerConfig",
        model="model.transformer:Transformer",
        step="search.decoder_step:DecoderStep",
    ),
    "recurrent": Architecture(
        config="recurrent.config:RecurrentConfig",
        model="recurrent.model:Recurrent",
        step="recurrent.step:RecurrentStep",
    ),
    "ensemble": Architecture(
        config="ensemble.config:EnsembleConfig",
        model="ensemble.model:Ensemble",
        step="ensemble.step:EnsembleStep",
    ),
    "next_word": Architecture(
        config="parsing.config:NextWordConfig",
        model="parsing.next_word:NextWordTransformer",
        step="parsing.next_word_step:NextWordStep",
    ),
}

# How the file of a tokenizer begins, and its class.
TOKENIZERS = {
    b"# word-pieces": "tokenizers.subword:WordPieceTokenizer",
    b"# protected\n": "protection.tokenizer:ProtectingTokenizer",
    b"# marian\n": "models.marian:MarianTokenizer",
    b"# trees\n": "parsing.tokenizer:TreeTokenizer",
    b"": "tokenizers.subword:SentencePieceTokenizer",  # any other
}

TASKS = {
    "translation": "trainers.translation:TRANSLATION",
    "parsing": "trainers.parsing.task:PARSING",
}

# The sets of `protection/patterns.py`, and what they have.
PROTECTED_SETS = {
    "tags": "tags and entities of XML and HTML",
    "urls": "addresses of web and mail",
    "placeholders": "such as %s and {name}",
    "options": "of commands, such as --help and -h",
    "symbols": "emoji and other symbols",
    "foreign": "letters of scripts that the training text does not have",
}


def load(name: str) -> Any:
    """Imports "module:name"."""
    module, attribute = name.split(":")
    return getattr(import_module(f"keras_transformer.{module}"), attribute)


def config_type(architecture: str) -> "type[ModelConfig]":
    """Returns the class of an architecture's configurations."""
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"`architecture` must be one of {', '.join(ARCHITECTURES)}. "
            f"Received: architecture={architecture!r}"
        )
    config: type[ModelConfig] = load(ARCHITECTURES[architecture].config)
    return config


def build_model(config: "ModelConfig") -> "EncoderDecoder":
    """Builds a model with fresh weights."""
    model: EncoderDecoder = load(ARCHITECTURES[config.architecture].model)(config)
    return model


def allocate_model(config: "ModelConfig") -> "EncoderDecoder":
    """Builds a model whose weights get their values later, for little time and memory."""
    import tensorflow as tf

    def allocate(make: Callable[..., Any], initial_value: Any, **options: Any) -> Any:
        if callable(initial_value):
            with tf.Graph().as_default():  # which computes nothing
                value = initial_value()
            if value.dtype.is_floating:
                initial_value = tf.raw_ops.Empty(shape=value.shape, dtype=value.dtype)
        return make(initial_value=initial_value, **options)

    with tf.variable_creator_scope(allocate):
        return build_model(config)


def step_of(model: "EncoderDecoder", max_length: Any, num_sequences: Any) -> "Step":
    """Returns the step function of a search.

    Args:
        model: the model.
        max_length: int32 [], the maximum length of a hypothesis in tokens.
        num_sequences: int32 [], the number of hypotheses of all rows.
    """
    step: Step = load(ARCHITECTURES[model.config.architecture].step)(
        model, max_length, num_sequences
    )
    return step
