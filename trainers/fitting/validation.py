"""What a validation measures: the loss of a split, and the scores of results."""

from collections.abc import Sequence

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
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import find_task
from keras_transformer.translator import Translator


def loss_and_metrics(
    settings: TrainSettings,
) -> tuple[LabelSmoothedCrossEntropy, list[keras.metrics.Metric]]:
    """Returns the loss of a run, and its metrics per token."""
    loss = LabelSmoothedCrossEntropy(settings.label_smoothing, reduction="sum")
    return loss, [TokenLoss(), Perplexity(), TokenAccuracy()]


def make_translator(
    model: EncoderDecoder, tokenizer: Tokenizer, settings: TrainSettings
) -> Translator:
    """Returns a translator whose options of the search are those of the settings."""
    return Translator(model, tokenizer, DecodingOptions.of(settings.to_dict()))


def validation_scores(
    translator: Translator, pairs: Sequence[Pair], settings: TrainSettings
) -> dict[str, float]:
    """Translates sentences greedily, and scores the results; no scores without sentences.

    There are no scores either if those of the model are not finite: then the loss is not finite,
    which ends the training.
    """
    if not pairs:
        return {}
    try:
        results = translator.translate([pair.source for pair in pairs], beam_size=1)
    except NotFiniteError:
        return {}
    metrics = find_task(settings.task).validation_metrics(settings, translator.tokenizer.lowercase)
    texts = [result.text for result in results]
    return {name: metric(texts, pairs) for name, metric in metrics.items()}
