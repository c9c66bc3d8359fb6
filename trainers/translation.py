"""The task of a translator: from one language to another."""

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.trainers.data.corpora import Corpus, Pair, load_corpus
from keras_transformer.trainers.data.languages import split_names
from keras_transformer.trainers.tasks import Breakdown, Drawing, Metric, Scorer, Task

if TYPE_CHECKING:
    from keras_transformer.tokenizers import Tokenizer
    from keras_transformer.trainers.scoring.evaluation import Evaluation
    from keras_transformer.trainers.scoring.scores import Scores
    from keras_transformer.trainers.settings import TrainSettings


def _learn_tokenizer(settings: "TrainSettings", corpus: Corpus, vocab_size: int) -> "Tokenizer":
    num_tags = len(split_names(settings.target)) if len(settings.pairs) > 1 else 0
    return _with_languages(settings, _learn_subwords(settings, corpus, vocab_size - num_tags))


def _with_languages(settings: "TrainSettings", tokenizer: "Tokenizer") -> "Tokenizer":
    """Returns a tokenizer with all languages that texts must name."""
    sources, targets = split_names(settings.source), split_names(settings.target)
    tokenizer = tokenizer.of_languages(settings.pairs[0])
    known = tokenizer.known_languages
    if len(settings.pairs) > 1:
        has_all = {*sources} <= {*known.sources} and {*targets} <= {*known.targets}
    else:  # a common code stands for a name of the model: "de" for "deu_Latn"
        has_all = not known.targets or bool(known.source and known.target)
    if has_all:
        return tokenizer
    return tokenizer.with_languages(sources, targets).of_languages(settings.pairs[0])


def _learn_subwords(settings: "TrainSettings", corpus: Corpus, vocab_size: int) -> "Tokenizer":
    from keras_transformer.tokenizers import train_tokenizer

    languages = settings.pairs[0]
    if settings.protect:
        from keras_transformer.protection.tokenizer import ProtectingTokenizer

        return ProtectingTokenizer.learn(
            lambda: (pair.sides for pair in corpus.pairs("train")),
            vocab_size,
            settings.protect,
            settings.protect_free,
            model_type=settings.tokenizer,
            lowercase=settings.lowercase,
            languages=languages,
        )
    pairs, same_pairs = itertools.tee(corpus.pairs("train"))
    sources, targets = (pair.source for pair in pairs), (pair.target for pair in same_pairs)
    return train_tokenizer(
        settings.tokenizer, sources, vocab_size, settings.lowercase, targets, languages
    )


def _adapt_tokenizer(
    settings: "TrainSettings", corpus: Corpus, tokenizer: "Tokenizer"
) -> "Tokenizer":
    if settings.protect:
        from keras_transformer.protection.tokenizer import ProtectingTokenizer

        pairs = (pair.sides for pair in corpus.pairs("train"))
        protection = settings.protect, settings.protect_free
        tokenizer = ProtectingTokenizer.extend(tokenizer, pairs, *protection)
    return _with_languages(settings, tokenizer)


def _validation_metrics(settings: "TrainSettings", lowercase: bool) -> dict[str, Metric]:
    """Returns BLEU by the target's tokenizer, and chrF if it is `metric`."""
    import sacrebleu  # takes time

    from keras_transformer.trainers.scoring.scores import bleu_tokenizer, make_bleu

    def metric(score: sacrebleu.BLEU | sacrebleu.CHRF) -> Metric:
        return lambda texts, pairs: (
            score.corpus_score(texts, [[pair.target for pair in pairs]]).score
        )

    metrics = {"val_bleu": metric(make_bleu(bleu_tokenizer(settings.target), lowercase))}
    if settings.metric == "chrf":
        metrics["val_chrf"] = metric(sacrebleu.CHRF(lowercase=lowercase))
    return metrics


def _scorer(
    pairs: Sequence[Pair],
    language: str,
    source_language: str = "en",
    tokenize: str | None = None,
    tokenized_references: Sequence[str] | None = None,
) -> Scorer:
    from keras_transformer.trainers.scoring.scores import bleu_tokenizer, make_bleu, score

    # An error shows before the translation, which may take long.
    make_bleu(tokenize or bleu_tokenizer(language))
    references = [pair.target for pair in pairs]
    scored = functools.partial(
        score,
        references=references,
        language=language,
        tokenized_references=tokenized_references,
        source_language=source_language,
        tokenize=tokenize,
    )
    return Scorer(references, scored, _figures)


def _figures(scores: "Scores") -> dict[str, Any]:
    return {
        name: value._asdict() if hasattr(value, "_asdict") else value
        for name, value in scores._asdict().items()
    }


def _breakdown(evaluation: "Evaluation", lowercase: bool) -> Breakdown:
    """Returns the chrF of each translation, and BLEU by length, in the tokens of the scores."""
    from keras_transformer import plots
    from keras_transformer.trainers.scoring.breakdown import bleu_by_length, sentence_chrf

    texts, tokenize = (evaluation.hypotheses, evaluation.references), evaluation.scores["tokenize"]
    groups = bleu_by_length(*texts, tokenize=tokenize, lowercase=lowercase)
    overview = Drawing(
        "bleu-by-length",
        functools.partial(plots.bleu_by_length, groups, tokenize=tokenize),
        "BLEU of sentences of similar length, in tokens of the reference as sacreBLEU counts them.",
    )
    return Breakdown("chrF", sentence_chrf(*texts, lowercase), 3, overview)


TRANSLATION = Task(
    name="translation",
    metrics={"bleu": "BLEU", "chrf": "chrF"},
    labels={
        "bleu": "BLEU",
        "bleu_lowercased": "BLEU, lower-cased",
        "bleu_multimodal": "BLEU, multimodal protocol",
        "bleu_paper": "BLEU, the paper's protocol",
        "chrf": "chrF",
    },
    options=("test_set", "tokenized_references", "baseline", "tokenize", "noise"),
    load_data=load_corpus,
    learn_tokenizer=_learn_tokenizer,
    adapt_tokenizer=_adapt_tokenizer,
    validation_metrics=_validation_metrics,
    scorer=_scorer,
    breakdown=_breakdown,
)
