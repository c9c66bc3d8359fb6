"""The task of a parser: from sentences to constituency trees (section 6.3)."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from keras_transformer.errors import InputError, require
from keras_transformer.parsing.trees import Tree, delinearize, parse_trees
from keras_transformer.trainers.data.corpora import Corpus, Pair
from keras_transformer.trainers.parsing.bracketing import BracketScores, score_brackets
from keras_transformer.trainers.parsing.treebank import load_treebank
from keras_transformer.trainers.tasks import Breakdown, Drawing, Metric, Scorer, Task

if TYPE_CHECKING:
    from keras_transformer.config import ModelConfig
    from keras_transformer.tokenizers import Tokenizer
    from keras_transformer.trainers.scoring.evaluation import Evaluation
    from keras_transformer.trainers.settings import TrainSettings

MAX_DRAWN = 60  # words of a sentence whose trees are drawn
SHORT = 40  # words of the sentences of EVALB's second table
SIGNATURE = "EVALB|prm:COLLINS"


def _check_settings(settings: "TrainSettings", config: "ModelConfig") -> None:
    for is_met, needed, name in (
        (settings.tokenizer != "wordpiece", "the `tokenizer` bpe or unigram", "tokenizer"),
        (not settings.lowercase, "words as they are, not in lower case", "lowercase"),
        (not settings.protect, "words as they are, not protected", "protect"),
        (not settings.augment, "sentences as they are", "augment"),
        (settings.monolingual is None, "trees for all sentences", "monolingual"),
        (settings.teacher is None, "trees as they are, not a teacher's", "teacher"),
        (config.max_positions is None, "positions for any length, not learned ones", "model"),
        (settings.extra_length >= 3, "an `extra_length` of at least 3", "extra_length"),
    ):
        require(is_met, f"`task` parsing needs {needed}", **{name: getattr(settings, name)})


def _load_data(data: str | list[str], source: str, target: str, has_all: bool = True) -> Corpus:
    if not isinstance(data, str):
        raise InputError(f"`task` parsing needs one file or folder as data. Received: {data}")
    return load_treebank(data)


def _learn_tokenizer(settings: "TrainSettings", corpus: Corpus, vocab_size: int) -> "Tokenizer":
    from keras_transformer.parsing.tokenizer import TreeTokenizer

    kind: Literal["bpe", "unigram"] = "bpe" if settings.tokenizer == "bpe" else "unigram"
    pairs = (pair.sides for pair in corpus.pairs("train"))
    return TreeTokenizer.train(pairs, vocab_size, kind)


def _validation_metrics(settings: "TrainSettings", lowercase: bool) -> dict[str, Metric]:
    """Returns F1, in which a failure counts as no bracket."""
    return {"val_f1": lambda trees, pairs: score_brackets(trees, _gold(pairs)).f1_all}


def _scorer(pairs: Sequence[Pair], language: str, source_language: str = "en") -> Scorer:
    gold = _gold(pairs)
    return Scorer(list(map(str, gold)), functools.partial(score_brackets, gold=gold), _figures)


def _gold(pairs: Sequence[Pair]) -> list[Tree]:
    return [delinearize(pair.target.split(" "), pair.source.split(" ")) for pair in pairs]


def _figures(scores: BracketScores) -> dict[str, Any]:
    figures = {**scores.figures(), "f1_short": scores.up_to(SHORT).f1}
    figures["num_pairs"] = figures.pop("num_trees")
    return {
        name: value if name.startswith("num_") else {"value": value, "signature": SIGNATURE}
        for name, value in figures.items()
    }


def _remark(figures: Mapping[str, Any]) -> str:
    return (
        f"EVALB leaves out {figures['num_errors']:,} trees whose words differ from the gold "
        f"tree's, punctuation aside, and {figures['num_skipped']:,} trees without words"
    )


def _breakdown(evaluation: "Evaluation", lowercase: bool) -> Breakdown:
    """Returns the F1 of each tree, and pictures of predicted and gold trees that fit on a page."""

    def picture(row: int) -> Drawing | None:
        from keras_transformer.parsing import plots

        trees = {"predicted": evaluation.hypotheses[row], "gold": evaluation.references[row]}
        if not all(trees.values()) or len(evaluation.sources[row].split()) > MAX_DRAWN:
            return None
        return Drawing("trees", functools.partial(plots.trees, trees))

    gold = list(parse_trees(evaluation.references, evaluation.name))
    counts = score_brackets(evaluation.hypotheses, gold).trees
    scores = [BracketScores.of([tree]).f1_all for tree in counts]
    return Breakdown("F1", scores, 1, picture=picture)


PARSING = Task(
    name="parsing",
    metrics={"f1": "F1"},
    labels={
        "f1": "F1 of brackets",
        "precision": "precision",
        "recall": "recall",
        "f1_short": f"F1, at most {SHORT} words",
        "f1_all": "F1, failures count as 0",
        "exact_match": "exact match, %",
        "tagging_accuracy": "tagging accuracy, %",
    },
    # Those of section 6.3, but for the decoder, which also reads the next word.
    defaults={
        "target": "trees",
        "architecture": "next_word",
        "beam_size": 21,
        "length_penalty": 0.3,
        "extra_length": 300,
        "augment": {},
    },
    drops_unknown=True,  # a sentence has no unknown token
    load_data=_load_data,
    learn_tokenizer=_learn_tokenizer,
    validation_metrics=_validation_metrics,
    scorer=_scorer,
    breakdown=_breakdown,
    check_settings=_check_settings,
    remark=_remark,
)
