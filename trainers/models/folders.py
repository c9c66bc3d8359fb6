"""The two forms of a published model: Marian's folder, and Hugging Face's.

Both become a `MarianModel`, whose weights have Hugging Face's names and order of axes.
"""

import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from keras_transformer.errors import InputError
from keras_transformer.models.layout import (
    DECODER_EMBEDDING,
    EMBEDDINGS,
    ENCODER_EMBEDDING,
    OUTPUT_WEIGHT,
    SHARED_EMBEDDING,
)
from keras_transformer.trainers.models.files import (
    parse_yaml,
    read_bytes,
    read_json,
    read_npz,
    read_sentencepiece,
    read_vocabulary,
)
from keras_transformer.trainers.models.options import (
    SIZES,
    DecoderOptions,
    HuggingFaceOptions,
    MarianOptions,
    check,
    read_settings,
)
from keras_transformer.trainers.models.tensors import read_tensors

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")

# Options of decoder.yml that this package's search does not have, and how they are off.
NO_SEARCH_OPTIONS = ("word-penalty", "allow-unk", "shortlist", "output-sampling")
OFF = ("0", "0.0", "false", "[]", "")
# From Marian's names of weights to Hugging Face's.
MARIAN_NAMES = {
    "Wemb": SHARED_EMBEDDING,
    "encoder_Wemb": ENCODER_EMBEDDING,
    "decoder_Wemb": DECODER_EMBEDDING,
    "decoder_ff_logit_out_W": OUTPUT_WEIGHT,
    "decoder_ff_logit_out_Wt": OUTPUT_WEIGHT,
    "decoder_ff_logit_out_b": "final_logits_bias",
}
MARIAN_LAYER_NAMES = {
    f"{marian}{kind}{letter}": f"{name}.{weight}"
    for kind, weight in (("W", "weight"), ("b", "bias"))
    for marian, letter, name in (
        *(("self_", matrix[0], f"self_attn.{matrix}_proj") for matrix in ("q", "k", "v", "out")),
        *(
            ("context_", matrix[0], f"encoder_attn.{matrix}_proj")
            for matrix in ("q", "k", "v", "out")
        ),
        *(("ffn_", number, f"fc{number}") for number in "12"),
    )
} | {
    f"{marian}_ln_{kind}": f"{name}_layer_norm.{weight}"
    for kind, weight in (("scale", "weight"), ("bias", "bias"))
    for marian, name in (
        ("self_Wo", "self_attn"),
        ("context_Wo", "encoder_attn"),
        ("ffn_ffn", "final"),
    )
}


class MarianModel(NamedTuple):
    """A model as its folder holds it."""

    sizes: dict[str, Any]  # attributes of `TransformerConfig`
    weights: dict[str, ArrayLike]  # by Hugging Face's names
    vocabularies: list[dict[str, int]]  # pieces and ids; one for both languages, or one for each
    sentencepiece: list[bytes]  # models of source and target
    search: dict[str, float]  # settings of the search
    languages: dict[str, str]  # "source" and "target", if the folder names them
    cuts_tag: bool  # whether SentencePiece does not see the tag of a target language


def read_folder(folder: Path) -> MarianModel:
    """Reads a folder of either form; `InputError` if it holds no model that can be computed."""
    if (folder / "config.json").is_file():
        return _read_huggingface(folder)
    if (folder / "decoder.yml").is_file():
        return _read_marian(folder)
    raise InputError(f"{folder} must hold Marian's decoder.yml, or Hugging Face's config.json")


def _read_huggingface(folder: Path) -> MarianModel:
    settings = read_settings(folder, HuggingFaceOptions)
    options, tokens = settings.options, settings.tokenizer_config
    is_shared, is_tied = options.share_encoder_decoder_embeddings, options.tie_word_embeddings
    names = ("vocab.json",) if is_shared else ("vocab.json", "target_vocab.json")
    needed = (*names, "source.spm", "target.spm")
    if missing := [name for name in needed if not (folder / name).is_file()]:
        raise InputError(
            f"{folder} must hold {', '.join(needed)}; tokenizer.json is not read. "
            f"Missing: {', '.join(missing)}"
        )
    vocabularies = [read_vocabulary(folder / name) for name in names]
    if "<pad>" not in vocabularies[-1]:
        raise InputError(f"{folder / names[-1]} must hold <pad>, the decoder's first input")
    for name, expected in {
        "eos_token_id": vocabularies[-1]["</s>"],
        "decoder_start_token_id": vocabularies[-1]["<pad>"],
    }.items():
        if (value := settings.config.get(name, expected)) != expected:
            raise InputError(
                f"{folder / 'config.json'}: `{name}` must be {expected}. Received: {value!r}"
            )
    return MarianModel(
        sizes=options.model_dump(include=SIZES)
        | {"activation": options.activation.replace("silu", "swish")},
        weights=distinct(folder, read_weights(folder), is_shared, is_tied),
        vocabularies=vocabularies,
        sentencepiece=[read_sentencepiece(folder / f"{side}.spm") for side in SIDES],
        search=settings.search,
        languages={side: tokens[f"{side}_lang"] for side in SIDES if tokens.get(f"{side}_lang")},
        cuts_tag=True,
    )


def read_weights(folder: Path) -> dict[str, ArrayLike]:
    """Finds the weights of Hugging Face's folder, in shards or not."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return {**read_tensors(folder / name)}
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = read_json(index).get("weight_map")
            if not isinstance(shards, dict) or not all(
                isinstance(file, str) and Path(file).name == file for file in shards.values()
            ):
                raise InputError(f"{index} must hold a `weight_map` to files of its folder")
            weights: dict[str, ArrayLike] = {}
            for file in dict.fromkeys(shards.values()):
                weights |= read_tensors(folder / file)
            return weights
    raise InputError(
        f"{folder} must hold {' or '.join(WEIGHT_FILES)}, or the index of its shards (.index.json)"
    )


def _read_marian(folder: Path) -> MarianModel:
    decoder_path = folder / "decoder.yml"
    decoder = parse_yaml(decoder_path, read_bytes(decoder_path))
    release = check(decoder_path, DecoderOptions, decoder)
    ignored = [name for name in NO_SEARCH_OPTIONS if str(decoder.get(name, "")).lower() not in OFF]
    if ignored:
        logger.warning("%s: the search has no %s", decoder_path, ", ".join(ignored))
    # Marian writes full paths, and the folder may have moved since.
    path, *files = (folder / Path(name).name for name in (*release.models, *release.vocabs))
    arrays = read_npz(path)
    text = arrays.pop("special:model.yml", np.zeros(0, np.int8)).tobytes()
    options = check(path, MarianOptions, parse_yaml(path, text))
    weights: dict[str, ArrayLike] = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise InputError(
                f"{path} must hold floating-point weights. Received: {name} of {array.dtype}"
            )
        renamed = MARIAN_NAMES.get(name, name)
        if match := re.fullmatch(r"(encoder|decoder)_l(\d+)_(\w+)", name):
            layer = MARIAN_LAYER_NAMES.get(match[3], match[3])
            renamed = f"model.{match[1]}.layers.{int(match[2]) - 1}.{layer}"
        # Marian stores [in, out] and [1, out], but [V, D] in embeddings and the output's "Wt".
        weights[renamed] = array if name.endswith(("Wemb", "Wt")) else np.squeeze(array.T)
    vocabularies = [read_vocabulary(file) for file in dict.fromkeys(files)]
    if options.output_omit_bias == "true":
        weights["final_logits_bias"] = np.zeros(len(vocabularies[-1]), np.float32)
    # A model's own ids may be those of SentencePiece; otherwise the release has it beside them.
    models = [
        file if file.suffix == ".spm" else folder / f"{side}.spm"
        for file, side in zip(files, SIDES, strict=True)
    ]
    is_shared, is_tied = SHARED_EMBEDDING in weights, OUTPUT_WEIGHT not in weights
    return MarianModel(
        sizes=options.model_dump(include=SIZES),
        weights=distinct(path, weights, is_shared, is_tied),
        vocabularies=vocabularies,
        sentencepiece=list(map(read_sentencepiece, models)),
        search=release.model_dump(include={"beam_size", "length_penalty"}),
        languages={},
        cuts_tag=files[0].suffix != ".spm",  # Marian gives its own SentencePiece the complete line
    )


def distinct(
    path: Path, weights: dict[str, ArrayLike], is_shared: bool, is_tied: bool
) -> dict[str, ArrayLike]:
    """Returns the weights; each matrix of embeddings has one name, where a file may have more."""

    def first(*names: str) -> ArrayLike:
        present = [weights[name] for name in names if name in weights]
        if not present:
            raise InputError(f"{path}: the weight {names[0]} is missing")
        return present[0]

    rest = {
        name: weight
        for name, weight in weights.items()
        if name not in EMBEDDINGS and "embed_positions" not in name  # sinusoids
    }
    decoders = (DECODER_EMBEDDING, OUTPUT_WEIGHT) if is_tied else (DECODER_EMBEDDING,)
    if is_shared:
        encoder = decoder = first(SHARED_EMBEDDING, ENCODER_EMBEDDING, *decoders)
    else:
        encoder, decoder = first(ENCODER_EMBEDDING), first(*decoders)
    if is_shared and is_tied:
        return {**rest, SHARED_EMBEDDING: encoder}
    output = decoder if is_tied else first(OUTPUT_WEIGHT)
    return {**rest, ENCODER_EMBEDDING: encoder, DECODER_EMBEDDING: decoder, OUTPUT_WEIGHT: output}
