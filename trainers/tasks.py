"""What the tasks differ in: translation, and constituency parsing (section 6.3)."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import sacrebleu

from keras_transformer.bleu import make_bleu
from keras_transformer.parsing.trees import Tree, delinearize
from keras_transformer.tokenizers import Tokenizer, TreeTokenizer, train_tokenizer
from keras_transformer.trainers.data.corpora import Corpus, Pair, load_corpus
from keras_transformer.trainers.parsing.bracketing import BracketScores, score_brackets
from keras_transformer.trainers.parsing.treebank import load_treebank
from keras_transformer.trainers.scoring.scores import bleu_tokenizer
from keras_transformer.trainers.settings import Task, TrainSettings

DEFAULT_VOCAB_SIZE = 8_000

# Takes results, and the pairs of their sources.
Scorer = Callable[[Sequence[str], Sequence[Pair]], float]


def load_data(task: Task, data: str, source: str, target: str) -> Corpus:
    """Finds the data of a task; see `load_corpus` and `load_treebank`."""
    return load_treebank(data) if task == "parsing" else load_corpus(data, source, target)


def learn_tokenizer(settings: TrainSettings, corpus: Corpus) -> tuple[Tokenizer, int]:
    """Returns the tokenizer of a corpus, and the maximum size of its vocabulary."""
    vocab_size = settings.vocab_size or DEFAULT_VOCAB_SIZE
    if settings.task == "parsing":
        kind: Literal["bpe", "unigram"] = "bpe" if settings.tokenizer == "bpe" else "unigram"
        return TreeTokenizer.train(corpus.pairs("train"), vocab_size, kind), vocab_size
    pairs, same_pairs = itertools.tee(corpus.pairs("train"))
    sources, targets = (pair.source for pair in pairs), (pair.target for pair in same_pairs)
    tokenizer = train_tokenizer(
        settings.tokenizer, sources, vocab_size, settings.lowercase, targets
    )
    return tokenizer, vocab_size


def validation_scorers(settings: TrainSettings, lowercase: bool) -> Mapping[str, Scorer]:
    """Returns the scores of a validation, by name.

    Args:
        settings: of the training.
        lowercase: whether BLEU and chrF ignore case.
    """
    if settings.task == "parsing":
        return {"val_f1": lambda trees, pairs: score_parses(trees, pairs).f1_all}
    metrics: dict[str, sacrebleu.BLEU | sacrebleu.CHRF] = {
        "val_bleu": make_bleu(bleu_tokenizer(settings.target), lowercase)
    }
    if settings.metric == "chrf":
        metrics["val_chrf"] = sacrebleu.CHRF(lowercase=lowercase)

    def scorer(metric: sacrebleu.BLEU | sacrebleu.CHRF) -> Scorer:
        return lambda texts, pairs: (
            metric.corpus_score(texts, [[pair.target for pair in pairs]]).score
        )

    return {name: scorer(metric) for name, metric in metrics.items()}


def gold_tree(pair: Pair) -> Tree:
    """Returns the tree of a sentence and its symbols."""
    return delinearize(pair.target.split(" "), pair.source.split(" "))


def score_parses(trees: Sequence[str], pairs: Sequence[Pair]) -> BracketScores:
    """Scores trees in brackets; the pairs have the gold trees."""
    return score_brackets(trees, [gold_tree(pair) for pair in pairs])
