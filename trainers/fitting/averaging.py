"""The mean of a run's last checkpoints (section 6.1)."""

import logging

import numpy as np

from keras_transformer.checkpoints import Checkpoint
from keras_transformer.errors import InputError, require
from keras_transformer.files import locked
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.model.tensor import precision
from keras_transformer.registry import build_model
from keras_transformer.run import Run
from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
from keras_transformer.trainers.data.prepared import CorpusManifest, PreparedCorpus, corpus_folder
from keras_transformer.trainers.fitting.training_model import Adam, TrainingModel
from keras_transformer.trainers.fitting.validation import loss_and_metrics, validation_scores
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator

logger = logging.getLogger(__name__)

MAX_TOKENS_PER_BATCH = 4096  # which any device can hold


def average_checkpoints(run: Run, last: int) -> Checkpoint:
    """Averages the weights of the newest checkpoints into the run's averaged one.

    The average is validated as a checkpoint is, if the corpus of the `run` is still there. Commands
    then use it unless the best checkpoint validates clearly better (`Run.choice`). The `last` 5
    checkpoints are the paper's for base, 20 for big (section 6.1).

    Raises:
        InputError: if the run keeps fewer checkpoints, or one is damaged or of another model, or if
            another call is writing the run.
    """
    with locked(run.path):
        newest = Run.load(run.path)  # training may have written since `run` was loaded
        run.averaged = average(newest, last)
    return run.averaged


def average(run: Run, last: int) -> Checkpoint:
    """`average_checkpoints` of a run that the caller has locked."""
    num_kept = len(run.checkpoints)
    require(
        1 <= last <= num_kept,
        f"`last` must be from 1 to {num_kept}, the number of checkpoints in {run.path}, which the "
        "setting `keep_checkpoints` limits",
        last=last,
    )
    chosen = run.checkpoints[-last:]
    settings = TrainSettings.of_run(run)
    with precision(settings.precision):
        model = build_model(run.config)
    total = [np.zeros(weights.shape) for weights in model.get_weights()]  # float64
    for checkpoint in chosen:
        run.load_weights(model, checkpoint)
        for sum_, weights in zip(total, model.get_weights(), strict=True):
            sum_ += weights
    model.set_weights([weights / last for weights in total])
    return run.save_average(model, chosen, _validate(run, model, settings))


def _validate(run: Run, model: EncoderDecoder, settings: TrainSettings) -> dict[str, float]:
    try:
        manifest = CorpusManifest.read(corpus_folder(run))
        corpus = PreparedCorpus.of(manifest, run.tokenizer(), check_files=True)
        if corpus.validation is None:
            return {}
        pairs = corpus.first_validation_pairs(settings.bleu_sentences)
        if settings.bleu_sentences and not pairs:
            raise InputError(f"the validation text of {run.path} is not there")
    except InputError as error:
        logger.warning("The average is not validated: %s", error)
        return {}
    trained = TrainingModel(model)
    trained.compile(Adam(), *loss_and_metrics(settings))
    # One device computes what all share in training. Means over tokens do not depend on batches.
    lengths = corpus.validation.lengths
    size = max(int(lengths.max()), min(settings.tokens_per_batch, MAX_TOKENS_PER_BATCH))
    plan = BatchPlan(lengths, size, seed=None)
    batches = make_dataset(corpus.validation, plan, range(plan.batches_per_epoch))
    logs = trained.evaluate(batches, verbose=0, return_dict=True)
    # The loss itself is a mean over batches.
    metrics = {f"val_{name}": float(value) for name, value in logs.items() if name != "loss"}
    translator = Translator(model, corpus.tokenizer, settings.search)
    return metrics | validation_scores(translator, pairs, settings)
