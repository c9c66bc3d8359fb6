"""The task of a parser: from sentences to constituency trees (section 6.3)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from keras_transformer.errors import InputError, require
from keras_transformer.parsing.trees import Tree, delinearize, parse_trees
from keras_transformer.trainers.data.corpora import Corpus, Pair
from keras_transformer.trainers.parsing.bracketing import BracketScores, score_brackets
from keras_transformer.trainers.parsing.treebank import load_treebank
from keras_transformer.trainers.tasks import Drawing, Scorer, ScoringProtocol, Task

if TYPE_CHECKING:
    from keras_transformer.config import ModelConfig
    from keras_transformer.tokenizers import Tokenizer
    from keras_transformer.trainers.scoring.evaluation import Evaluation
    from keras_transformer.trainers.settings import TrainSettings

MAX_DRAWN = 60  # words of a sentence whose trees are drawn
SHORT = 40  # words of the sentences of EVALB's second table
SIGNATURE = "EVALB|prm:COLLINS"


class Parsing(Task):
    """From a sentence to its constituency tree.

    The defaults are section 6.3's, but for the decoder, which also reads the next word.
    """

    name = "parsing"
    defaults = MappingProxyType(
        {
            "target": "trees",
            "architecture": "next_word",
            "beam_size": 21,
            "length_penalty": 0.3,
            "extra_length": 300,
            "augment": {},
        }
    )
    metrics = MappingProxyType({"f1": "F1"})
    num_examples = 1
    drops_unknown = True  # a sentence has no unknown token
    labels = MappingProxyType(
        {
            "f1": "F1 of brackets",
            "precision": "precision",
            "recall": "recall",
            "f1_short": f"F1, at most {SHORT} words",
            "f1_all": "F1, failures count as 0",
            "exact_match": "exact match, %",
            "tagging_accuracy": "tagging accuracy, %",
        }
    )

    def check(self, settings: "TrainSettings", config: "ModelConfig") -> None:
        """Raises `InputError` if settings do not fit trees with the words of sentences."""
        super().check(settings, config)
        for is_met, needed, name in (
            (settings.tokenizer != "wordpiece", "the `tokenizer` bpe or unigram", "tokenizer"),
            (not settings.lowercase, "words as they are, not in lower case", "lowercase"),
            (not settings.protect, "words as they are, not protected", "protect"),
            (not settings.augment, "sentences as they are", "augment"),
            (settings.monolingual is None, "trees for all sentences", "monolingual"),
            (config.max_positions is None, "positions for any length, not learned ones", "model"),
            (settings.extra_length >= 3, "an `extra_length` of at least 3", "extra_length"),
        ):
            require(is_met, f"`task` parsing needs {needed}", **{name: getattr(settings, name)})

    def load_data(self, data: str | list[str], source: str, target: str) -> Corpus:
        """Finds a treebank; see `load_treebank`."""
        if not isinstance(data, str):
            raise InputError(f"`task` parsing needs one file or folder as data. Received: {data}")
        return load_treebank(data)

    def learn_tokenizer(
        self, settings: "TrainSettings", corpus: Corpus, vocab_size: int
    ) -> "Tokenizer":
        """Learns the subwords of sentences and the symbols of trees."""
        from keras_transformer.parsing.tokenizer import TreeTokenizer

        kind: Literal["bpe", "unigram"] = "bpe" if settings.tokenizer == "bpe" else "unigram"
        pairs = (pair.sides for pair in corpus.pairs("train"))
        return TreeTokenizer.train(pairs, vocab_size, kind)

    def validation_scorers(self, settings: "TrainSettings", lowercase: bool) -> dict[str, Scorer]:
        """Returns F1, in which a failure counts as no bracket."""
        return {"val_f1": lambda trees, pairs: _score(trees, pairs).f1_all}

    def scorer(
        self, pairs: Sequence[Pair], protocol: ScoringProtocol
    ) -> Callable[[Sequence[str]], BracketScores]:
        """Returns a function that scores trees in brackets as EVALB does."""
        return lambda trees: _score(trees, pairs)

    def figures(self, scores: BracketScores) -> dict[str, Any]:
        """Returns the scores, and the F1 of short sentences."""
        found = {**scores.figures(), "f1_short": scores.up_to(SHORT).f1}
        found["num_pairs"] = found.pop("num_trees")
        return {
            name: value if name.startswith("num_") else {"value": value, "signature": SIGNATURE}
            for name, value in found.items()
        }

    def remark(self, figures: Mapping[str, Any]) -> str:
        """Returns which trees EVALB leaves out."""
        return (
            f"EVALB leaves out {figures['num_errors']:,} trees whose words differ from the gold "
            f"tree's, punctuation aside, and {figures['num_skipped']:,} trees without words"
        )

    def reference(self, pair: Pair) -> str:
        """Returns the gold tree in brackets."""
        return str(_gold_tree(pair))

    def sentence_scores(self, found: "Evaluation", lowercase: bool) -> tuple[str, list[float]]:
        """Returns the F1 of each tree."""
        gold = list(parse_trees(found.references, found.name))
        counts = score_brackets(found.hypotheses, gold).trees
        return "F1", [BracketScores.of([tree]).f1_all for tree in counts]

    def picture(self, found: "Evaluation", row: int) -> Drawing | None:
        """Returns the predicted and the gold tree, if they fit on a page."""
        from keras_transformer.parsing import plots

        trees = {"predicted": found.hypotheses[row], "gold": found.references[row]}
        if not all(trees.values()) or len(found.sources[row].split()) > MAX_DRAWN:
            return None
        return Drawing("trees", functools.partial(plots.trees, trees))


def _score(trees: Sequence[str], pairs: Sequence[Pair]) -> BracketScores:
    return score_brackets(trees, [_gold_tree(pair) for pair in pairs])


def _gold_tree(pair: Pair) -> Tree:
    """Returns the tree of a sentence and its symbols."""
    return delinearize(pair.target.split(" "), pair.source.split(" "))
