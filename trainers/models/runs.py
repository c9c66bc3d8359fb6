"""Run directories of published models: their weights, in this package's order of ids."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.files import atomic_folder
from keras_transformer.models.layout import from_huggingface, huggingface_name
from keras_transformer.registry import allocate_model
from keras_transformer.run import Run
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.settings import TrainSettings

# The bias of the logits of tokens that no translation contains: their probability is 0, and a
# label-smoothed loss stays finite.
NEVER = -1e3

# The model's id at the place of each of our ids; -1 for a token that the model does not have.
Order = Sequence[int]


class PublishedModel(NamedTuple):
    """A model of a folder."""

    folder: Path
    config: TransformerConfig
    tokenizer: Tokenizer
    weights: Mapping[str, ArrayLike]  # by Hugging Face's names
    orders: Sequence[Order]  # of the vocabularies of source and target, or of both
    search: Mapping[str, Any]  # settings
    languages: tuple[str, str]  # source and target


def write_run(model: PublishedModel, run_dir: Path) -> Run:
    """Writes a model as a run directory, which must not exist; `InputError` if weights differ."""
    transformer = allocate_model(model.config)
    expected = {huggingface_name(variable.path) for variable in transformer.weights}
    if missing := sorted(expected - model.weights.keys()):
        raise InputError(f"{model.folder}: the weight {missing[0]} is missing")
    if left := sorted(model.weights.keys() - expected):
        raise InputError(f"{model.folder}: no known model has a weight {', '.join(left[:3])}")
    source, target = model.languages
    settings = TrainSettings(data="", source=source, target=target, **model.search)
    with atomic_folder(run_dir) as written:
        run = Run.create(written, model.config, model.tokenizer, source, target, settings.to_dict())
        with _PublishedWeights(model):
            run.save_checkpoint(transformer, step=0, metrics={}, is_best=True)
        run.finish()
    return Run.load(run_dir)


class _PublishedWeights(keras.StatelessScope):
    """In this scope, variables have a model's weights, each of which is read when it is used."""

    def __init__(self, model: PublishedModel) -> None:
        super().__init__()
        self.model = model

    def get_current_value(self, variable: keras.Variable) -> np.ndarray:
        return _weight(self.model, variable)


def _weight(model: PublishedModel, variable: keras.Variable) -> np.ndarray:
    """Reads a weight, in our order."""
    path, name = variable.path, huggingface_name(variable.path)
    weight = np.asarray(model.weights[name], np.float32)
    order = model.orders[0 if path.startswith("source_embedding") else -1]
    is_bias = name == "final_logits_bias"
    if is_bias or path.endswith("embeddings") or path == "output/kernel":
        weight = weight.ravel() if is_bias else weight
        if len(weight) != max(order) + 1:
            raise InputError(
                f"{model.folder}: the weight {name} must have a row for each of the "
                f"{max(order) + 1} pieces. Received: {len(weight)} rows"
            )
        weight = reorder(weight, order, model.config.vocab_size, NEVER if is_bias else 0.0)
        # A start symbol of its own counts; its padding or its end would count twice.
        if is_bias and (order[PAD_ID] < 0 or order[BOS_ID] == order[EOS_ID]):
            weight[BOS_ID] = NEVER
    weight = from_huggingface(path, weight)
    if weight.shape != tuple(variable.shape):
        raise InputError(
            f"{model.folder}: the weight {name} must have the sizes {tuple(variable.shape)}. "
            f"Received: {weight.shape}"
        )
    return weight


def reorder(rows: np.ndarray, order: Order, count: int, fill: float) -> np.ndarray:
    """Returns rows in our order; `fill` where the model has none."""
    ids = np.array([*order, *[-1] * (count - len(order))])
    ordered = rows[ids]
    ordered[ids < 0] = fill
    return ordered
