"""What a validation measures: the loss of a split, and the scores of results."""

import dataclasses
import statistics
from collections.abc import Sequence

import keras

from keras_transformer.errors import NotFiniteError
from keras_transformer.model import losses
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import find_task
from keras_transformer.translator import Translator


def loss_and_metrics(
    settings: TrainSettings,
) -> tuple[losses.LabelSmoothedCrossEntropy, list[keras.metrics.Metric]]:
    """Returns the loss of a run, and its metrics per token."""
    loss = losses.LabelSmoothedCrossEntropy(settings.label_smoothing, reduction="sum")
    return loss, [losses.TokenLoss(), losses.Perplexity(), losses.TokenAccuracy()]


def validation_scores(
    translator: Translator, pairs: Sequence[Pair], settings: TrainSettings
) -> dict[str, float]:
    """Translates sentences greedily, and scores each pair of languages, and all on average.

    There are no scores without sentences, or if those of the model are not finite: then the loss
    is not finite either, which ends the training.
    """
    if not pairs:
        return {}
    try:
        results = translator.translate([pair.tagged_source for pair in pairs], beam_size=1)
    except NotFiniteError:
        return {}
    task, lowercase = find_task(settings.task), translator.tokenizer.lowercase
    scores: dict[str, dict[str, float]] = {}
    for languages in dict.fromkeys(pair.languages for pair in pairs):
        rows = [row for row, pair in enumerate(pairs) if pair.languages == languages]
        texts, own = [results[row].text for row in rows], [pairs[row] for row in rows]
        source, target = languages or settings.pairs[0]
        of_pair = dataclasses.replace(settings, source=source, target=target)
        metrics = task.validation_metrics(of_pair, lowercase)
        scores[f"_{source}-{target}"] = {
            name: metric(texts, own) for name, metric in metrics.items()
        }
    of_all, *others = scores.values()
    means = {name: statistics.fmean(x[name] for x in scores.values()) for name in of_all}
    by_pair = {name + pair: x for pair, own in scores.items() for name, x in own.items()}
    return means | (by_pair if others else {})
