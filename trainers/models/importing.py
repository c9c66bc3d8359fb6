"""Import of Marian models, as Marian and as Hugging Face publish them, into a run directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sacremoses

from keras_transformer.config import BOS_ID, TransformerConfig
from keras_transformer.errors import InputError, require
from keras_transformer.files import atomic_folder
from keras_transformer.model.transformer import Transformer
from keras_transformer.models.layout import SHARED_EMBEDDING, from_huggingface, huggingface_name
from keras_transformer.models.marian import MarianTokenizer
from keras_transformer.run import Run
from keras_transformer.tokenizers import SPECIAL_PIECES
from keras_transformer.trainers.models.folders import MarianModel, read_folder
from keras_transformer.trainers.settings import TrainSettings

LAYER_NORM_EPSILONS = {"marian": 1e-9, "huggingface": 1e-5}
# The bias of the logits of tokens that no translation contains: their probability is 0, and a
# label-smoothed loss stays finite.
NEVER = -1e3

# The model's id at the place of each of our ids; -1 for a token that the model does not have.
Order = list[int]


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
    if run_dir.exists():
        raise InputError(f"{run_dir} exists already: choose another run directory")
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
    transformer = Transformer(config)
    _assign(transformer, model, orders, folder)
    search: dict[str, Any] = {**model.search, "length_penalty_kind": "marian"}
    settings = TrainSettings(data="", source=source, target=target, **search)
    with atomic_folder(run_dir) as written:
        run = Run.create(written, config, tokenizer, source, target, settings.to_dict())
        run.save_checkpoint(transformer, step=0, metrics={}, is_best=True)
        run.finish()
    return Run.load(run_dir)


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


def _assign(
    transformer: Transformer, model: MarianModel, orders: Sequence[Order], folder: Path
) -> None:
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
    none = np.full_like(rows[:1], fill)
    return np.concatenate([rows, none])[[*order, *[-1] * (count - len(order))]]
