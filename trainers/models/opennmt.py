"""Import of OpenNMT-tf 2 models, from a model directory into a run directory."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError, one_line
from keras_transformer.files import require_new
from keras_transformer.models.layout import (
    DECODER_EMBEDDING,
    ENCODER_EMBEDDING,
    OUTPUT_WEIGHT,
    SHARED_EMBEDDING,
)
from keras_transformer.models.opennmt import make_tokenizer
from keras_transformer.run import Run
from keras_transformer.trainers.models.files import read_sentencepiece
from keras_transformer.trainers.models.opennmt_files import (
    Controls,
    DataOptions,
    Description,
    find_file,
    find_sentencepiece,
    find_yaml,
    read_description,
    read_options,
    read_vocabulary,
)
from keras_transformer.trainers.models.runs import Order, PublishedModel, write_run

LAYER_NORM_EPSILON = 1e-3  # Keras's default
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the name of each weight
SOURCE = "model/examples_inputter/features_inputter/embedding"
TARGET = "model/examples_inputter/labels_inputter/embedding"  # missing if it is that of the source
KERNEL = "model/decoder/output_layer/kernel"  # missing if it is the embedding of the target
BIAS = "model/decoder/output_layer/bias"
# From OpenNMT-tf's names of other weights to Hugging Face's.
NAMES = {
    r"self_attention": "self_attn",
    r"attention/0": "encoder_attn",
    r"layer/linear_output": "out_proj",
    r"layer/linear_(\w)\w+": r"\1_proj",
    r"ffn/(input|output)_layer_norm": "final_layer_norm",
    r"/(input|output)_layer_norm": "_layer_norm",
    r"ffn/layer/inner": "fc1",
    r"ffn/layer/outer": "fc2",
    r"/(kernel|gamma)$": "/weight",
    r"/beta$": "/bias",
    r"/": ".",
}


def is_opennmt(folder: Path) -> bool:
    """Returns whether a folder holds a checkpoint."""
    return any(folder.glob("ckpt*.index"))


def import_opennmt(
    folder: str | Path,
    run_dir: str | Path,
    source: str | None = None,
    target: str | None = None,
    *,
    config: str | Path | None = None,
    sentencepiece: Sequence[str | Path] = (),
    num_heads: int | None = None,
) -> Run:
    """Writes a Transformer of OpenNMT-tf 2 as a run directory, which all commands read.

    Args:
        folder: a model directory, of whose checkpoints, `ckpt-N.index` and `ckpt-N.data-*`, the
            newest is taken; or the directory `avg` of averaged ones.
        run_dir: a directory that does not exist yet.
        source: source language.
        target: target language.
        config: the YAML file of its training; None for the one in the folder or in one of the two
            folders above.
        sentencepiece: the SentencePiece models of source and target, or one of both, if the text
            was cut beforehand; empty for those that the YAML file names.
        num_heads: number of attention heads; None for what `model_description.py` says, whose
            Python is read and not run.

    Raises:
        InputError: if the folder holds no such model, or one that this package cannot compute, or
            if `run_dir` exists.
    """
    folder, run_dir = Path(folder), Path(run_dir)
    require_new(run_dir)
    if source is None or target is None:
        raise InputError(f"{folder} names no languages: `source` and `target` must be given")
    path, weights = _read_checkpoint(folder)
    yaml = find_yaml(folder) if config is None else Path(config)
    data, search = read_options(yaml)
    description = _describe(folder, num_heads)
    files = [find_file(name, yaml) for name in (data.source_vocabulary, data.target_vocabulary)]
    vocabularies = list(map(read_vocabulary, files))
    models = list(map(read_sentencepiece, _sentencepiece_files(data, yaml, sentencepiece)))
    controls = data.source_sequence_controls or Controls(end=description.ends_source)
    model = PublishedModel(
        path,
        _config(path, weights, vocabularies, description),
        make_tokenizer(models, vocabularies, (controls.start, controls.end)),
        _renamed(weights, len(vocabularies[-1]) + 1),
        list(map(_order, vocabularies)),
        search.model_dump(),
        (source, target),
    )
    return write_run(model, run_dir)


def _describe(folder: Path, num_heads: int | None) -> Description:
    name = "model_description.py"
    paths = [path for path in (folder / name, folder.resolve().parent / name) if path.is_file()]
    description = read_description(paths[0]) if paths else Description()
    num_heads = num_heads or description.num_heads
    if num_heads is None:
        raise InputError(
            f"{folder}: no {name} says the number of attention heads, so `num_heads` must be given"
        )
    return description._replace(num_heads=num_heads)


def _sentencepiece_files(data: DataOptions, yaml: Path, given: Sequence[str | Path]) -> list[Path]:
    """Returns the files of source and target."""
    named = [
        find_sentencepiece(tokenization, yaml)
        for tokenization in (data.source_tokenization, data.target_tokenization)
    ]
    files = [Path(file) for file in given] or [file for file in named if file]
    if len(files) not in (1, 2) or (not given and None in named):
        raise InputError(
            f"{yaml} names no SentencePiece model of both languages, so `sentencepiece` must be "
            f"one file or two. Received: {', '.join(map(str, files)) or 'none'}"
        )
    return [files[0], files[-1]]


def _order(tokens: Sequence[str]) -> Order:
    return [0, len(tokens), 1, 2, *range(3, len(tokens))]


class _Weight(NamedTuple):
    """A weight of a checkpoint, which `np.asarray` reads, in Hugging Face's order of axes."""

    path: Path
    reader: Any
    name: str
    shape: Sequence[int]  # in the checkpoint

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        try:
            array = self.reader.get_tensor(self.name + VALUE)
        except Exception as error:  # a damaged file may raise anything
            raise InputError(f"{self.path} is damaged: {one_line(error)}") from error
        array = array.T if self.name.endswith("/kernel") else array
        return array.astype(dtype or array.dtype, copy=False)


def _read_checkpoint(folder: Path) -> tuple[Path, dict[str, _Weight]]:
    """Returns the newest checkpoint's file and its weights by OpenNMT-tf's names."""
    # ckpt-200 is newer than ckpt-99; an exported ckpt has no number.
    paths = sorted(folder.glob("ckpt*.index"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise InputError(f"{folder} must hold a checkpoint of OpenNMT-tf 2, ckpt-N.index")
    try:
        reader = tf.train.load_checkpoint(str(paths[-1].with_suffix("")))
        shapes = reader.get_variable_to_shape_map()
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{paths[-1]} is damaged: {one_line(error)}") from error
    names = [name.removesuffix(VALUE) for name in shapes if name.endswith(VALUE)]
    return paths[-1], {
        name: _Weight(paths[-1], reader, name, shapes[name + VALUE])
        for name in names
        if name.startswith("model/") and "/.OPTIMIZER_SLOT/" not in name
    }


def _config(
    path: Path,
    weights: Mapping[str, _Weight],
    vocabularies: Sequence[Sequence[str]],
    description: Description,
) -> TransformerConfig:
    inner = "model/encoder/layers/0/ffn/layer/inner/kernel"
    if not {inner, SOURCE} <= weights.keys():
        raise InputError(f"{path} must hold a Transformer of OpenNMT-tf 2 with one source")
    layers = {match[1] for name in weights if (match := re.match(r"(model/\w+/layers/\d+)/", name))}
    described: dict[str, Any] = {
        "num_heads": description.num_heads,
        "activation": description.activation,
    }
    return TransformerConfig(
        vocab_size=max(map(len, vocabularies)) + 1,
        d_model=weights[inner].shape[0],
        d_ff=weights[inner].shape[1],
        num_encoder_layers=sum("/encoder/" in layer for layer in layers),
        num_decoder_layers=sum("/decoder/" in layer for layer in layers),
        norm_first="model/encoder/layer_norm/gamma" in weights,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        position_encoding="marian",
        first_position=1,
        output_bias=True,
        share_embeddings=not {TARGET, KERNEL} & weights.keys(),
        **described,
    )


def _renamed(weights: Mapping[str, _Weight], num_ids: int) -> dict[str, ArrayLike]:
    """Returns weights by Hugging Face's names; biases that a model does not have are zeros."""
    left: dict[str, Any] = dict(weights)
    source = left.pop(SOURCE)
    target = left.pop(TARGET, source)
    output = left.pop(KERNEL, target)
    renamed = {"final_logits_bias": left.pop(BIAS, np.zeros(num_ids))}
    if source is output:
        renamed[SHARED_EMBEDDING] = source
    else:
        renamed |= {ENCODER_EMBEDDING: source, DECODER_EMBEDDING: target, OUTPUT_WEIGHT: output}
    for name, weight in left.items():
        for part, theirs in NAMES.items():
            name = re.sub(part, theirs, name)
        renamed[name] = weight
        if name.endswith("_proj.weight"):
            renamed.setdefault(name.replace("weight", "bias"), np.zeros(weight.shape[1]))
    return renamed
