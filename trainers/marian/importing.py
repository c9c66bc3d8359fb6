"""Import of Marian models, as Marian and as Hugging Face publish them, into a run directory.

Both forms become a `MarianModel`, whose weights have Hugging Face's names and order of axes.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import sacremoses

from keras_transformer.config import BOS_ID, TransformerConfig
from keras_transformer.errors import InputError, one_line
from keras_transformer.marian.layout import (
    DECODER_EMBEDDING,
    EMBEDDINGS,
    ENCODER_EMBEDDING,
    OUTPUT_WEIGHT,
    SHARED_EMBEDDING,
    from_huggingface,
    huggingface_name,
)
from keras_transformer.model.transformer import Transformer
from keras_transformer.run import Run
from keras_transformer.tokenizers import SPECIAL_PIECES, MarianTokenizer
from keras_transformer.trainers.marian.files import (
    parse_yaml,
    read_bytes,
    read_json,
    read_npz,
    read_sentencepiece,
    read_vocabulary,
)
from keras_transformer.trainers.marian.tensors import read_tensors
from keras_transformer.trainers.settings import TrainSettings

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
LAYER_NORM_EPSILONS = {"marian": 1e-9, "huggingface": 1e-5}
# The bias of the logits of tokens that no translation contains: their probability is 0, and a
# label-smoothed loss stays finite.
NEVER = -1e3

# What the models' options must be; an option that is missing has the first value.
MARIAN_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-ffn-activation": ("swish", "relu"),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-decoder-dim-ffn": ("0",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-train-positions": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-no-projection": ("false",),
    "transformer-no-bias": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-rnn-projection": ("false",),
    "transformer-pool": ("false",),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "right-left": ("false",),
    "ulr": ("false",),
}
HUGGINGFACE_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "activation_function": ("swish", "silu", "relu"),
    "scale_embedding": (True, False),
    "static_position_embeddings": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
}
# Options of decoder.yml that this package's search does not have, and how they are off.
NO_SEARCH_OPTIONS = ("word-penalty", "allow-unk", "shortlist", "output-sampling")
OFF = ("0", "0.0", "false", "[]", "")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
# From Marian's names to Hugging Face's.
_KINDS = (("W", "weight"), ("b", "bias"))
_ATTENTIONS = (("self", "self_attn"), ("context", "encoder_attn"))
MARIAN_NAMES = {
    "Wemb": SHARED_EMBEDDING,
    "encoder_Wemb": ENCODER_EMBEDDING,
    "decoder_Wemb": DECODER_EMBEDDING,
    "decoder_ff_logit_out_W": OUTPUT_WEIGHT,
    "decoder_ff_logit_out_Wt": OUTPUT_WEIGHT,
    "decoder_ff_logit_out_b": "final_logits_bias",
}
MARIAN_LAYER_NAMES = {
    **{
        f"{marian}_{kind}{letter}": f"{name}.{projection}_proj.{weight}"
        for marian, name in _ATTENTIONS
        for letter, projection in zip("qkvo", ("q", "k", "v", "out"), strict=True)
        for kind, weight in _KINDS
    },
    **{f"ffn_{kind}{i}": f"fc{i}.{weight}" for kind, weight in _KINDS for i in (1, 2)},
    **{
        f"{marian}_ln_{kind}": f"{name}_layer_norm.{weight}"
        for marian, name in (
            ("self_Wo", "self_attn"),
            ("context_Wo", "encoder_attn"),
            ("ffn_ffn", "final"),
        )
        for kind, weight in (("scale", "weight"), ("bias", "bias"))
    },
}


class MarianModel(NamedTuple):
    """A model as its folder holds it.

    Attributes:
        sizes: attributes of `TransformerConfig`.
        weights: by Hugging Face's names.
        vocabularies: pieces and their ids; one for both languages, or one for each.
        sentencepiece: the SentencePiece models of source and target.
        search: settings of the search.
        languages: "source" and "target", if the folder names them.
        cuts_tag: whether SentencePiece does not see the tag of a target language.
    """

    sizes: dict[str, Any]
    weights: dict[str, np.ndarray]
    vocabularies: list[dict[str, int]]
    sentencepiece: list[bytes]
    search: dict[str, Any]
    languages: dict[str, str]
    cuts_tag: bool


# The model's id at the place of each of our ids; None for a token that the model does not have.
Order = list[int | None]


def import_marian(
    folder: str | Path,
    run_dir: str | Path,
    source: str | None = None,
    target: str | None = None,
    *,
    like: Literal["marian", "huggingface"] = "marian",
    target_tag: str | None = None,
    normalize_punctuation: bool = False,
) -> Run:
    """Writes a Marian model as a run directory, which all commands read.

    Args:
        folder: Marian's release (`decoder.yml`, the model's `.npz`, vocabularies, `source.spm` and
            `target.spm`) or Hugging Face's (`config.json`, `model.safetensors` or
            `pytorch_model.bin`, in shards or not, `vocab.json`, `source.spm` and `target.spm`).
        run_dir: a directory that does not exist yet.
        source: source language; None for what the folder says.
        target: target language; None for what the folder says.
        like: the implementation to reproduce. Marian trained the published models. Hugging Face's
            transformers has different positions and another epsilon in layer normalization.
        target_tag: the tag to put before each source of a model of several target languages, such
            as ">>deu<<"; None if the texts have it.
        normalize_punctuation: whether to normalize the punctuation of sources as Moses does, as in
            the text that most published models were trained on.

    Returns:
        The run.

    Raises:
        InputError: if the folder holds no such model, or one that this package cannot compute, or
            if `run_dir` exists.
    """
    folder, run_dir = Path(folder), Path(run_dir)
    if run_dir.exists():
        raise InputError(f"{run_dir} exists already: choose another run directory")
    is_huggingface = (folder / "config.json").is_file()
    if not (is_huggingface or (folder / "decoder.yml").is_file()):
        raise InputError(f"{folder} must hold Marian's decoder.yml, or Hugging Face's config.json")
    model = _read_huggingface(folder) if is_huggingface else _read_marian(folder)
    source = source or model.languages.get("source")
    target = target or model.languages.get("target")
    if source is None or target is None:
        raise InputError(f"{folder} names no languages: `source` and `target` must be given")
    orders = list(map(_order, model.vocabularies))
    config = TransformerConfig(
        vocab_size=max(map(len, orders)),
        share_embeddings=SHARED_EMBEDDING in model.weights,
        output_bias=True,
        position_encoding="marian" if like == "marian" else "sinusoidal",
        layer_norm_epsilon=LAYER_NORM_EPSILONS[like],
        **model.sizes,
    )
    substitutions = _moses_substitutions(source) if normalize_punctuation else []
    if target_tag is not None:
        if target_tag not in model.vocabularies[0]:
            raise InputError(
                "`target_tag` must be in the model's vocabulary. "
                f"Received: target_tag={target_tag!r}"
            )
        # A blank text stays blank, so that its translation is empty.
        substitutions.append((r"^([\s\p{Z}]*[^\s\p{Z}])", rf"{target_tag} \1"))
    pieces = list(map(_pieces, model.vocabularies, orders))
    tokenizer = MarianTokenizer.from_files(
        model.sentencepiece, pieces, substitutions, cuts_tag=model.cuts_tag
    )
    transformer = Transformer(config)
    _assign(transformer, model, orders, folder)
    settings = TrainSettings(data="", source=source, target=target, **model.search)
    run = Run.create(run_dir, config, tokenizer, source, target, settings.to_dict())
    run.save_checkpoint(transformer, step=0, metrics={}, is_best=True)
    run.finish()
    return run


def _order(vocabulary: dict[str, int]) -> Order:
    # Hugging Face's decoder starts from the embedding of <pad>, and Marian's from zeros.
    special = [None, *(vocabulary.get(piece) for piece in ("<unk>", "<pad>", "</s>"))]
    return [*special, *sorted(set(vocabulary.values()) - set(special))]


def _pieces(vocabulary: dict[str, int], order: Order) -> list[str]:
    piece_of = {index: piece for piece, index in vocabulary.items()}
    return [*SPECIAL_PIECES, *(piece_of[index] for index in order[4:] if index is not None)]


def _moses_substitutions(language: str) -> list[tuple[str, str]]:
    """Returns what Moses replaces, as regular expressions of TensorFlow."""
    substitutions = sacremoses.MosesPunctNormalizer(language).substitutions
    return [
        (pattern, text.replace(r"\g<1>", r"\1").replace(r"\g<2>", r"\2"))
        for pattern, text in substitutions
    ]


def _assign(
    transformer: Transformer, model: MarianModel, orders: Sequence[Order], folder: Path
) -> None:
    """Sets all weights of a transformer."""
    left = dict(model.weights)
    for variable in transformer.weights:
        path, name = variable.path, huggingface_name(variable.path)
        if name not in left:
            raise InputError(f"{folder}: the weight {name} is missing")
        weight = left.pop(name).astype(np.float32)
        side = 0 if path.startswith("source_embedding") else -1
        is_bias = name == "final_logits_bias"
        if is_bias or path.endswith("embeddings") or path == "output/kernel":
            weight = weight.ravel() if is_bias else weight
            if len(weight) != len(model.vocabularies[side]):
                raise InputError(
                    f"{folder}: the weight {name} must have a row for each of the "
                    f"{len(model.vocabularies[side])} pieces. Received: {len(weight)} rows"
                )
            fill = NEVER if is_bias else 0.0
            weight = _reorder(weight, orders[side], transformer.config.vocab_size, fill)
            if is_bias:
                weight[BOS_ID] = NEVER
        weight = from_huggingface(path, weight)
        if weight.shape != tuple(variable.shape):
            raise InputError(
                f"{folder}: the weight {name} must have the sizes {tuple(variable.shape)}. "
                f"Received: {weight.shape}"
            )
        variable.assign(weight)
    if left:
        raise InputError(f"{folder}: no known model has a weight {', '.join(sorted(left)[:3])}")


def _reorder(rows: np.ndarray, order: Order, count: int, fill: float) -> np.ndarray:
    """Returns rows in our order; `fill` where the model has none."""
    reordered = np.full((count, *rows.shape[1:]), fill, np.float32)
    for index, row in enumerate(order):
        if row is not None:
            reordered[index] = rows[row]
    return reordered


# --- The two forms of a folder --------------------------------------------------------------------


def _read_huggingface(folder: Path) -> MarianModel:
    path = folder / "config.json"
    # A file may leave out what is the default of `MarianConfig`.
    config = {"activation_function": "gelu", "scale_embedding": False, **read_json(path)}
    _check_options(path, config, HUGGINGFACE_OPTIONS)
    tokens, generation = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "generation_config.json")
    )
    is_shared = config.get("share_encoder_decoder_embeddings", True)
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
    for name, value in (
        ("eos_token_id", vocabularies[-1]["</s>"]),
        ("decoder_start_token_id", vocabularies[-1]["<pad>"]),
        ("decoder_ffn_dim", config.get("encoder_ffn_dim")),
        ("decoder_attention_heads", config.get("encoder_attention_heads")),
    ):
        _check_options(path, config, {name: (value,)})
    search = {**config, **generation}
    return MarianModel(
        sizes={
            "d_model": _number(path, config, "d_model"),
            "d_ff": _number(path, config, "encoder_ffn_dim"),
            "num_heads": _number(path, config, "encoder_attention_heads"),
            "num_encoder_layers": _number(path, config, "encoder_layers"),
            "num_decoder_layers": _number(path, config, "decoder_layers"),
            "activation": config["activation_function"].replace("silu", "swish"),
            "scale_embeddings": config["scale_embedding"],
        },
        weights=_distinct(
            folder, _read_weights(folder), is_shared, config.get("tie_word_embeddings", True)
        ),
        vocabularies=vocabularies,
        sentencepiece=[read_sentencepiece(folder / f"{side}.spm") for side in SIDES],
        search=_search(
            _number(folder, search, "num_beams", default=1),
            _number(folder, search, "length_penalty", float, default=1.0),
        ),
        languages={side: tokens[f"{side}_lang"] for side in SIDES if tokens.get(f"{side}_lang")},
        cuts_tag=True,
    )


def _read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Reads weights of one file, or of the shards that an index names."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return read_tensors(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = read_json(index).get("weight_map")
            if not isinstance(shards, dict) or not all(
                isinstance(file, str) and Path(file).name == file for file in shards.values()
            ):
                raise InputError(f"{index} must hold a `weight_map` to files of its folder")
            return {
                weight: array
                for file in dict.fromkeys(shards.values())
                for weight, array in read_tensors(folder / file).items()
            }
    raise InputError(
        f"{folder} must hold {' or '.join(WEIGHT_FILES)}, or the index of its shards (.index.json)"
    )


def _read_marian(folder: Path) -> MarianModel:
    decoder_path = folder / "decoder.yml"
    decoder = parse_yaml(decoder_path, read_bytes(decoder_path))
    # Marian writes full paths, and the folder may have moved since.
    path, *files = (
        folder / Path(file).name
        for key, count in (("models", 1), ("vocabs", 2))
        for file in _file_names(decoder_path, decoder, key, count)
    )
    ignored = [name for name in NO_SEARCH_OPTIONS if str(decoder.get(name, "")).lower() not in OFF]
    if ignored:
        logger.warning("%s: the search has no %s", decoder_path, ", ".join(ignored))
    arrays = read_npz(path)
    options = parse_yaml(path, arrays.pop("special:model.yml", np.zeros(0, np.int8)).tobytes())
    _check_options(path, options, MARIAN_OPTIONS)
    weights = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise InputError(
                f"{path} must hold floating-point weights. Received: {name} of {array.dtype}"
            )
        if match := re.fullmatch(r"(encoder|decoder)_l(\d+)_(\w+)", name):
            layer = MARIAN_LAYER_NAMES.get(match[3], match[3])
            renamed = f"model.{match[1]}.layers.{int(match[2]) - 1}.{layer}"
        else:
            renamed = MARIAN_NAMES.get(name, name)
        # Marian stores [in, out] and [1, out], but [V, D] in embeddings and the output's "Wt".
        weights[renamed] = array if name.endswith(("Wemb", "Wt")) else np.squeeze(array.T)
    vocabularies = [read_vocabulary(file) for file in dict.fromkeys(files)]
    if options.get("output-omit-bias") == "true":
        weights["final_logits_bias"] = np.zeros(len(vocabularies[-1]), np.float32)
    # A model's own ids may be those of SentencePiece; otherwise the release has it beside them.
    models = [
        file if file.suffix == ".spm" else folder / f"{side}.spm"
        for file, side in zip(files, SIDES, strict=True)
    ]
    return MarianModel(
        sizes={
            "d_model": _number(path, options, "dim-emb"),
            "d_ff": _number(path, options, "transformer-dim-ffn"),
            "num_heads": _number(path, options, "transformer-heads"),
            "num_encoder_layers": _number(path, options, "enc-depth"),
            "num_decoder_layers": _number(path, options, "dec-depth"),
            "activation": options.get("transformer-ffn-activation", "swish"),
        },
        weights=_distinct(path, weights, SHARED_EMBEDDING in weights, OUTPUT_WEIGHT not in weights),
        vocabularies=vocabularies,
        sentencepiece=list(map(read_sentencepiece, models)),
        search=_search(
            _number(decoder_path, decoder, "beam-size", default=12),
            _number(decoder_path, decoder, "normalize", float, default=0.0),
        ),
        languages={},
        cuts_tag=files[0].suffix != ".spm",  # Marian gives its own SentencePiece the complete line
    )


def _file_names(path: Path, decoder: Mapping[str, Any], key: str, count: int) -> list[str]:
    names = decoder.get(key)
    if (
        not isinstance(names, list)
        or len(names) != count
        or not all(isinstance(name, str) for name in names)
    ):
        raise InputError(
            f"{path}: `{key}` must be a list of {count} file name{'s' * (count > 1)}. "
            f"Received: {one_line(names, 100)}"
        )
    return names


def _distinct(
    path: Path, weights: dict[str, np.ndarray], is_shared: bool, is_output_tied: bool
) -> dict[str, np.ndarray]:
    """Returns the weights, each matrix of embeddings once, under the name that the model reads.

    A file may hold a shared matrix under any of its names, or under all.
    """
    rest = {
        name: weight
        for name, weight in weights.items()
        if name not in EMBEDDINGS and "embed_positions" not in name  # sinusoids
    }
    decoders = [DECODER_EMBEDDING, OUTPUT_WEIGHT] if is_output_tied else [DECODER_EMBEDDING]
    encoders = (
        [SHARED_EMBEDDING, ENCODER_EMBEDDING, *decoders] if is_shared else [ENCODER_EMBEDDING]
    )

    def first(names: Sequence[str]) -> np.ndarray:
        present = [weights[name] for name in names if name in weights]
        if not present:
            raise InputError(f"{path}: the weight {names[0]} is missing")
        return present[0]

    encoder = first(encoders)
    if is_shared and is_output_tied:
        return {**rest, SHARED_EMBEDDING: encoder}
    decoder = encoder if is_shared else first(decoders)
    output = decoder if is_output_tied else first([OUTPUT_WEIGHT])
    return {**rest, ENCODER_EMBEDDING: encoder, DECODER_EMBEDDING: decoder, OUTPUT_WEIGHT: output}


def _search(beam_size: float, length_penalty: float) -> dict[str, Any]:
    """Returns the settings of a search by Marian's or Hugging Face's options."""
    return {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "length_penalty_kind": "marian",
    }


def _number(
    path: Path,
    options: Mapping[str, Any],
    name: str,
    kind: type[int] | type[float] = int,
    default: float | None = None,
) -> float:
    """Returns an option, which may be the text of a number."""
    value = options.get(name, default)
    try:
        number = kind(value)
        if isinstance(value, bool) or (isinstance(value, float) and number != value):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        expected = "an integer" if kind is int else "a number"
        raise InputError(f"{path}: `{name}` must be {expected}. Received: {value!r}") from None
    return number


def _check_options(
    path: Path, options: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Raises `InputError` if an option has another value than the first, or than the allowed."""
    for name, values in allowed.items():
        if options.get(name, values[0]) not in values:
            expected = " or ".join(repr(value) for value in values)
            raise InputError(f"{path}: `{name}` must be {expected}. Received: {options[name]!r}")
