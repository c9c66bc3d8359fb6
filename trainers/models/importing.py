"""Import of Marian models, as Marian and as Hugging Face publish them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import sacremoses

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError, require
from keras_transformer.files import require_new
from keras_transformer.models.layout import SHARED_EMBEDDING
from keras_transformer.models.marian import MarianTokenizer
from keras_transformer.run import Run
from keras_transformer.tokenizers import SPECIAL_PIECES
from keras_transformer.trainers.models.folders import MarianModel, read_folder
from keras_transformer.trainers.models.runs import Order, PublishedModel, write_run

LAYER_NORM_EPSILONS = {"marian": 1e-9, "huggingface": 1e-5}


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
        target_tag: the tag of the target, such as ">>deu<<", instead of `target`. A model of
            several target languages puts it before each source that has none.
        normalize_punctuation: whether to normalize the punctuation of sources as Moses does, as in
            the text that most published models were trained on.

    Raises:
        InputError: if the folder holds no such model, or one that this package cannot compute, or
            if `run_dir` exists.
    """
    folder, run_dir = Path(folder), Path(run_dir)
    require_new(run_dir)
    model = read_folder(folder)
    rule = "`target_tag` must be in the model's vocabulary"
    require(target_tag is None or target_tag in model.vocabularies[0], rule, target_tag=target_tag)
    source = source or model.languages.get("source")
    target = (target_tag or "")[2:-2] or target or model.languages.get("target")
    if source is None or target is None:
        raise InputError(f"{folder} names no languages: `source` and `target` must be given")
    orders = list(map(_order, model.vocabularies))
    substitutions = _moses_substitutions(source) if normalize_punctuation else []
    tokenizer = _tokenizer(model, orders, substitutions)
    config = TransformerConfig(
        vocab_size=max(map(len, orders)),
        share_embeddings=SHARED_EMBEDDING in model.weights,
        output_bias=True,
        position_encoding="marian" if like == "marian" else "sinusoidal",
        layer_norm_epsilon=LAYER_NORM_EPSILONS[like],
        **model.sizes,
    )
    search = {**model.search, "length_penalty_kind": "marian"}
    languages = source, target
    return write_run(
        PublishedModel(folder, config, tokenizer, model.weights, orders, search, languages), run_dir
    )


def _order(vocabulary: dict[str, int]) -> Order:
    # Hugging Face's decoder starts from the embedding of <pad>, and Marian's from zeros.
    special = [-1, *(vocabulary.get(piece, -1) for piece in ("<unk>", "<pad>", "</s>"))]
    return [*special, *sorted(set(vocabulary.values()) - set(special))]


def _moses_substitutions(language: str) -> list[tuple[str, str]]:
    """Returns what Moses replaces, as regular expressions of TensorFlow."""
    return [
        (pattern, text.replace(r"\g<1>", r"\1").replace(r"\g<2>", r"\2"))
        for pattern, text in sacremoses.MosesPunctNormalizer(language).substitutions
    ]


def _tokenizer(
    model: MarianModel,
    orders: Sequence[Order],
    substitutions: list[tuple[str, str]],
) -> MarianTokenizer:
    pieces = []
    for vocabulary, order in zip(model.vocabularies, orders, strict=True):
        piece_of = {index: piece for piece, index in vocabulary.items()}
        pieces.append([*SPECIAL_PIECES, *(piece_of[index] for index in order[4:])])
    return MarianTokenizer.from_files(
        model.sentencepiece, pieces, substitutions, cuts_tag=model.cuts_tag
    )
