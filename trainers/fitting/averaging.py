"""The mean of a run's last checkpoints (section 6.1)."""

import logging
from collections.abc import Sequence

import numpy as np

from keras_transformer.architectures import Model, build_model
from keras_transformer.errors import InputError
from keras_transformer.run import Checkpoint, Run
from keras_transformer.trainers.data.prepared import (
    Manifest,
    TokenizedPairs,
    corpus_folder,
    is_complete,
    read_validation_pairs,
)
from keras_transformer.trainers.fitting.validation import precision, validate
from keras_transformer.trainers.settings import TrainSettings

logger = logging.getLogger(__name__)


def average_checkpoints(run: Run, last: int) -> Checkpoint:
    """Averages the weights of the newest checkpoints into the run's averaged one.

    It validates the average as the training validates a checkpoint, if the run's corpus is still
    there. Every command then uses the average by default, unless the best checkpoint validates
    better (`Run.choice`).

    Args:
        run: the run.
        last: number of checkpoints (5 for base, 20 for big: section 6.1).

    Raises:
        InputError: if the run keeps fewer checkpoints, or one is damaged or of another model.
    """
    kept = len(run.checkpoints)
    if not 1 <= last <= kept:
        raise InputError(
            f"`last` must be at least 1 and at most the number of checkpoints in {run.path}, "
            f"{kept}, which the setting `keep_checkpoints` limits. Received: last={last}"
        )
    chosen = run.checkpoints[-last:]
    settings = TrainSettings.from_dict({"data": "", **run.settings})
    with precision(settings):
        model = build_model(run.config)
    _average(run, model, chosen)
    return run.save_average(model, chosen, _validate(run, model, settings))


def _average(run: Run, model: Model, checkpoints: Sequence[Checkpoint]) -> None:
    """Gives a model the mean of the weights of checkpoints."""
    total = [np.zeros(weights.shape) for weights in model.get_weights()]  # float64
    for checkpoint in checkpoints:
        run.load_weights(model, checkpoint)
        for sum_, weights in zip(total, model.get_weights(), strict=True):
            sum_ += weights
    model.set_weights([weights / len(checkpoints) for weights in total])


def _validate(run: Run, model: Model, settings: TrainSettings) -> dict[str, float]:
    """Returns the validation metrics of a model; none if the validation split is not there."""
    folder = corpus_folder(run)
    try:
        if not is_complete(folder):
            raise InputError(f"the corpus of {run.path} is not there")
        if Manifest.read(folder).val is None:
            return {}
        tokenized = TokenizedPairs(folder, "val")
        pairs = read_validation_pairs(folder)
        if settings.bleu_sentences and not pairs:
            raise InputError(f"the validation text of {run.path} is not there")
    except InputError as error:
        logger.warning("The average is not validated: %s", error)
        return {}
    return validate(model, run.tokenizer(), tokenized, pairs, settings)
