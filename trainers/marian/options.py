"""The options of published models that this package can compute; other options are ignored."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic

from keras_transformer.errors import InputError

_Options = TypeVar("_Options", bound=pydantic.BaseModel)
_No = Literal["false"]


class _OfMarian(pydantic.BaseModel):
    """Options as text, whose names have hyphens."""

    model_config = pydantic.ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"), allow_inf_nan=False
    )


class DecoderOptions(_OfMarian):
    """The files of a Marian release, and its search: decoder.yml."""

    models: Annotated[list[str], pydantic.Field(min_length=1, max_length=1)]
    vocabs: Annotated[list[str], pydantic.Field(min_length=2, max_length=2)]
    beam_size: int = 12
    normalize: float = 0.0


class MarianOptions(_OfMarian):
    """The model of a Marian release."""

    dim_emb: int
    transformer_dim_ffn: int
    transformer_heads: int
    enc_depth: int
    dec_depth: int
    type: Literal["transformer"] = "transformer"
    transformer_preprocess: Literal[""] = ""
    transformer_postprocess: Literal["dan"] = "dan"
    transformer_postprocess_emb: Literal["d", ""] = "d"
    transformer_postprocess_top: Literal[""] = ""
    transformer_ffn_activation: Literal["swish", "relu"] = "swish"
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
    transformer_tied_layers: Annotated[list[str], pydantic.Field(max_length=0)] = []
    right_left: _No = "false"
    ulr: _No = "false"
    output_omit_bias: Literal["true", "false"] = "false"


class HuggingFaceOptions(pydantic.BaseModel, strict=True):
    """The model of a Hugging Face folder: config.json, with the defaults of `MarianConfig`."""

    d_model: int
    encoder_ffn_dim: int
    encoder_attention_heads: int
    encoder_layers: int
    decoder_layers: int
    model_type: Literal["marian"] = "marian"
    activation_function: Literal["swish", "silu", "relu"] = pydantic.Field(
        default="gelu", validate_default=True
    )
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    static_position_embeddings: Literal[True] = True
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False


class HuggingFaceSearch(pydantic.BaseModel, strict=True, allow_inf_nan=False):
    """The search of a Hugging Face folder: generation_config.json, or in old ones config.json."""

    num_beams: int = 1
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = 0


def check(path: Path, kind: type[_Options], values: dict[str, Any]) -> _Options:
    """Returns the options of a file; `InputError` for one that must have another value."""
    try:
        return kind.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, expected = first["loc"][0], re.sub("^[A-Z][a-z]+ should", "must", first["msg"])
        if first["type"] == "missing":
            raise InputError(f"{path}: `{name}` is missing") from None
        raise InputError(f"{path}: `{name}` {expected}. Received: {first['input']!r}") from None
