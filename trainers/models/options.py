"""The options of published models that this package can compute; other options are ignored.

Options that this package has too have its names, and the names of the files as aliases.
"""

from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pydantic
from pydantic import Field

from keras_transformer.errors import InputError
from keras_transformer.records import describe
from keras_transformer.trainers.models.files import read_json

# Those that a `TransformerConfig` has.
SIZES = {"d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "activation"}
SIZES |= {"scale_embeddings"}

_Options = TypeVar("_Options", bound=pydantic.BaseModel)
_No = Literal["false"]


class _OfMarian(pydantic.BaseModel):
    """Options as text, whose names have hyphens."""

    model_config = pydantic.ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"), allow_inf_nan=False
    )


class DecoderOptions(_OfMarian):
    """The files of a Marian release, and its search: decoder.yml."""

    models: Annotated[list[str], Field(min_length=1, max_length=1)]
    vocabs: Annotated[list[str], Field(min_length=2, max_length=2)]
    beam_size: int = 12
    length_penalty: float = Field(default=0.0, alias="normalize")


class MarianOptions(_OfMarian):
    """The model of a Marian release."""

    d_model: int = Field(alias="dim-emb")
    d_ff: int = Field(alias="transformer-dim-ffn")
    num_heads: int = Field(alias="transformer-heads")
    num_encoder_layers: int = Field(alias="enc-depth")
    num_decoder_layers: int = Field(alias="dec-depth")
    activation: Literal["swish", "relu"] = Field("swish", alias="transformer-ffn-activation")
    type: Literal["transformer"] = "transformer"
    transformer_preprocess: Literal[""] = ""
    transformer_postprocess: Literal["dan"] = "dan"
    transformer_postprocess_emb: Literal["d", ""] = "d"
    transformer_postprocess_top: Literal[""] = ""
    transformer_ffn_depth: Literal["2"] = "2"
    transformer_decoder_ffn_depth: Literal["0", "2"] = "0"
    transformer_decoder_dim_ffn: Literal["0"] = "0"
    transformer_decoder_autoreg: Literal["self-attention"] = "self-attention"
    transformer_train_position_embeddings: _No = "false"
    transformer_train_positions: _No = "false"
    transformer_disable_position_embeddings: _No = "false"
    transformer_no_projection: _No = "false"
    transformer_no_bias: _No = "false"
    transformer_no_affine: _No = "false"
    transformer_rnn_projection: _No = "false"
    transformer_pool: _No = "false"
    transformer_attention_mask: Literal["default"] = "default"
    transformer_tied_layers: Annotated[list[str], Field(max_length=0)] = []
    right_left: _No = "false"
    ulr: _No = "false"
    output_omit_bias: Literal["true", "false"] = "false"


class _OfHuggingFace(pydantic.BaseModel, strict=True):
    """A model of Hugging Face: config.json."""

    d_model: int
    d_ff: int = Field(alias="encoder_ffn_dim")
    num_heads: int = Field(alias="encoder_attention_heads")
    num_encoder_layers: int = Field(alias="encoder_layers")
    num_decoder_layers: int = Field(alias="decoder_layers")
    activation: Literal["swish", "silu", "relu", "gelu"] = Field(
        "gelu", alias="activation_function"
    )
    scale_embeddings: bool = Field(default=False, alias="scale_embedding")


class HuggingFaceOptions(_OfHuggingFace):
    """A Marian model, with the defaults of `MarianConfig`."""

    model_type: Literal["marian"] = "marian"
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    static_position_embeddings: Literal[True] = True
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False


class MultilingualOptions(_OfHuggingFace):
    """A model such as M2M-100, with the defaults of `M2M100Config`."""

    model_type: Literal["m2m_100"]
    vocab_size: int
    activation: Literal["swish", "relu", "gelu"] = Field("relu", alias="activation_function")
    scale_embeddings: bool = Field(default=True, alias="scale_embedding")
    tie_word_embeddings: Literal[True] = True


class HuggingFaceSearch(pydantic.BaseModel, strict=True, allow_inf_nan=False):
    """The search of a Hugging Face folder: generation_config.json, or in old ones config.json."""

    beam_size: int = Field(default=1, alias="num_beams")
    length_penalty: float = 1.0
    no_repeat_ngram: int = Field(default=0, alias="no_repeat_ngram_size")


_HuggingFace = TypeVar("_HuggingFace", bound=_OfHuggingFace)


class HuggingFaceSettings(NamedTuple, Generic[_HuggingFace]):
    """What the JSON files of a Hugging Face folder say, except vocabularies."""

    config: dict[str, Any]
    options: _HuggingFace  # those of `config`, checked
    tokenizer_config: dict[str, Any]
    search: dict[str, Any]  # settings


def read_settings(folder: Path, kind: type[_HuggingFace]) -> HuggingFaceSettings[_HuggingFace]:
    """Reads the settings of a folder; `InputError` if a model of this kind must have others."""
    path = folder / "config.json"
    config = read_json(path)
    options = check(path, kind, config)
    for name, expected in {  # the decoder's sizes are the encoder's
        "decoder_ffn_dim": options.d_ff,
        "decoder_attention_heads": options.num_heads,
    }.items():
        if (value := config.get(name, expected)) != expected:
            raise InputError(f"{path}: `{name}` must be {expected}. Received: {value!r}")
    tokenizer_config, generation = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "generation_config.json")
    )
    search = check(folder, HuggingFaceSearch, {**config, **generation})
    return HuggingFaceSettings(config, options, tokenizer_config, search.model_dump())


def check(path: Path, kind: type[_Options], values: dict[str, Any]) -> _Options:
    """Returns the options of a file; `InputError` for one that must have another value."""
    try:
        return kind.model_validate(values)
    except pydantic.ValidationError as error:
        raise InputError(f"{path}: {describe(error)}") from None
