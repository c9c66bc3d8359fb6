"""Validation: the loss of a split, and the scores of its translations or trees."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import keras

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import NotFiniteError
from keras_transformer.model.encoder_decoder import EncoderDecoder
from keras_transformer.model.losses import (
    LabelSmoothedCrossEntropy,
    Perplexity,
    TokenAccuracy,
    TokenLoss,
)
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.data.prepared import TokenizedPairs
from keras_transformer.trainers.fitting.training_model import Adam, TrainingModel
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import find_task
from keras_transformer.translator import Translator

MAX_TOKENS_PER_BATCH = 4096  # of `validate`, which any device can hold


def loss_and_metrics(
    settings: TrainSettings,
) -> tuple[LabelSmoothedCrossEntropy, list[keras.metrics.Metric]]:
    """Returns the loss of a training, and its metrics per token."""
    loss = LabelSmoothedCrossEntropy(settings.label_smoothing, reduction="sum")
    return loss, [TokenLoss(), Perplexity(), TokenAccuracy()]


@contextmanager
def precision(settings: TrainSettings) -> Iterator[None]:
    """Builds layers with the precision of a training."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(settings.precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def make_translator(
    model: EncoderDecoder, tokenizer: Tokenizer, settings: TrainSettings
) -> Translator:
    """Returns a translator whose options of the search are those of the settings."""
    return Translator(model, tokenizer, DecodingOptions.of(settings.to_dict()))


def validation_scores(
    translator: Translator, pairs: Sequence[Pair], settings: TrainSettings
) -> dict[str, float]:
    """Translates or parses sentences greedily, and scores the results.

    The scores are `val_bleu`, and `val_chrf` if `metric` is "chrf", or `val_f1`. BLEU uses the
    tokenizer of the target language. BLEU and chrF ignore case if the model's tokenizer does.

    Raises:
        NotFiniteError: if the scores of the model are not finite.
    """
    found = translator.translate([pair.source for pair in pairs], beam_size=1)
    scorers = find_task(settings.task).validation_scorers(settings, translator.tokenizer.lowercase)
    texts = [translation.text for translation in found]
    return {name: scorer(texts, pairs) for name, scorer in scorers.items()}


def validate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    tokenized: TokenizedPairs,
    pairs: Sequence[Pair],
    settings: TrainSettings,
) -> dict[str, float]:
    """Returns the metrics per token and the scores of a validation, by name, of any weights.

    Args:
        model: a model of that training, built with its `precision`.
        tokenizer: its tokenizer.
        tokenized: the validation split.
        pairs: the text of that split.
        settings: those of the training.
    """
    trained = TrainingModel(model)
    loss, metrics = loss_and_metrics(settings)
    trained.compile(Adam(), loss, metrics)
    # One device computes what all share in training. Means over tokens do not depend on batches.
    longest = int(tokenized.lengths.max())
    size = max(longest, min(settings.tokens_per_batch, MAX_TOKENS_PER_BATCH))
    plan = BatchPlan(tokenized.lengths, size, seed=None)
    batches = make_dataset(tokenized, plan, range(plan.batches_per_epoch))
    logs = trained.evaluate(batches, verbose=0, return_dict=True)
    # The loss itself is a mean over batches.
    found = {f"val_{name}": float(value) for name, value in logs.items() if name != "loss"}
    if scored := pairs[: settings.bleu_sentences]:
        translator = make_translator(model, tokenizer, settings)
        with suppress(NotFiniteError):  # the loss is not finite either
            found |= validation_scores(translator, scored, settings)
    return found
