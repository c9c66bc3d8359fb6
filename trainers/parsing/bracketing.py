"""Labelled bracketing scores, computed as the program EVALB computes them (section 6.3)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import Tree, parse_trees
from keras_transformer.trainers.parsing.treebank import TRACE


class Rules(NamedTuple):
    """What is scored: the parameters of EVALB, as its `.prm` files have them.

    Attributes:
        deleted: tags whose words are left out, and labels whose brackets are left out.
        equal_labels: groups of labels, or of tags, that count as one.
        equal_words: groups of words that count as one.
    """

    deleted: frozenset[str]
    equal_labels: tuple[tuple[str, ...], ...] = ()
    equal_words: tuple[tuple[str, ...], ...] = ()


# The usual rules: EVALB's COLLINS.prm.
COLLINS = Rules(
    deleted=frozenset({"TOP", TRACE, ",", ":", "``", "''", "."}), equal_labels=(("ADVP", "PRT"),)
)


class TreeCounts(NamedTuple):
    """The counts of one sentence.

    Attributes:
        status: "valid"; "skipped" if the prediction has no words; "error" if it is damaged, or has
            other words than the gold tree, of those that the rules keep.
        length: number of words in the gold tree, with punctuation.
        num_words: number of words that the rules keep.
        gold: number of brackets in the gold tree.
        predicted: number of brackets in the prediction; 0 unless valid, as are the next ones.
        matched: number of brackets in both.
        crossing: number of predicted brackets that cross one of the gold tree.
        correct_tags: number of words with the right tag.
    """

    status: str
    length: int
    num_words: int
    gold: int
    predicted: int = 0
    matched: int = 0
    crossing: int = 0
    correct_tags: int = 0


class BracketScores(NamedTuple):
    """Scores of a parser, in percent; `average_crossing` is a number per sentence.

    All but `f1_all` leave out the sentences that are not valid, as EVALB does.

    Attributes:
        trees: the counts of each sentence.
    """

    trees: tuple[TreeCounts, ...]

    def up_to(self, length: int) -> "BracketScores":
        """Returns the scores of the sentences of at most so many words."""
        return BracketScores(tuple(tree for tree in self.trees if tree.length <= length))

    @property
    def precision(self) -> float:
        """Predicted brackets that are in the gold tree."""
        return self._percent("matched", "predicted")

    @property
    def recall(self) -> float:
        """Gold brackets that are in the prediction."""
        return self._percent("matched", "gold")

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _share(2 * self._sum("matched"), self._sum("predicted") + self._sum("gold"))

    @property
    def f1_all(self) -> float:
        """F1 over all sentences: one that is not valid counts as a prediction without brackets."""
        gold = sum(tree.gold for tree in self.trees)
        return _share(2 * self._sum("matched"), self._sum("predicted") + gold)

    @property
    def exact_match(self) -> float:
        """Sentences with precision and recall 1."""
        exact = [tree.matched == tree.predicted == tree.gold for tree in self._valid]
        return _share(sum(exact), len(exact))

    @property
    def average_crossing(self) -> float:
        """Number of crossing brackets of a sentence."""
        return _share(self._sum("crossing"), len(self._valid)) / 100

    @property
    def no_crossing(self) -> float:
        """Sentences without a crossing bracket."""
        return _share(sum(tree.crossing == 0 for tree in self._valid), len(self._valid))

    @property
    def few_crossing(self) -> float:
        """Sentences with two or fewer crossing brackets."""
        return _share(sum(tree.crossing <= 2 for tree in self._valid), len(self._valid))

    @property
    def tagging_accuracy(self) -> float:
        """Words with the right tag."""
        return self._percent("correct_tags", "num_words")

    def figures(self) -> dict[str, float]:
        """Returns the scores and the numbers of sentences, by name."""
        status = Counter(tree.status for tree in self.trees)
        return {
            "f1": self.f1,
            "precision": self.precision,
            "recall": self.recall,
            "exact_match": self.exact_match,
            "average_crossing": self.average_crossing,
            "no_crossing": self.no_crossing,
            "few_crossing": self.few_crossing,
            "tagging_accuracy": self.tagging_accuracy,
            "f1_all": self.f1_all,
            "num_trees": len(self.trees),
            "num_valid": status["valid"],
            "num_errors": status["error"],
            "num_skipped": status["skipped"],
        }

    @property
    def _valid(self) -> list[TreeCounts]:
        return [tree for tree in self.trees if tree.status == "valid"]

    def _sum(self, field: str) -> int:
        return sum(getattr(tree, field) for tree in self._valid)

    def _percent(self, part: str, whole: str) -> float:
        return _share(self._sum(part), self._sum(whole))


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def score_brackets(
    predicted: Sequence[Tree | str | None], gold: Sequence[Tree], rules: Rules = COLLINS
) -> BracketScores:
    """Scores predicted trees as EVALB does.

    Function tags do not count (`NP-SBJ` is `NP`). Trees of `treebank.clean` have none.

    Args:
        predicted: trees, or texts in Penn format; None or an empty text where there is no tree.
        gold: the right trees.
        rules: what is scored.

    Raises:
        InputError: if the numbers of trees differ.
    """
    if len(predicted) != len(gold):
        raise InputError(f"`predicted` must have {len(gold)} trees. Received: {len(predicted)}")
    return BracketScores(
        tuple(_compare(*pair, rules) for pair in zip(predicted, gold, strict=True))
    )


class _Parse(NamedTuple):
    words: list[str]
    tags: list[str]
    brackets: list[tuple[str, int, int]]  # label, first word, word after the last


def _compare(predicted: Tree | str | None, gold: Tree, rules: Rules) -> TreeCounts:
    parse = _flatten([gold], rules)
    counts = TreeCounts(
        status="valid",
        length=sum(leaf.label != TRACE for leaf in gold.leaves()),
        num_words=len(parse.words),
        gold=len(parse.brackets),
    )
    try:
        trees = [predicted] if isinstance(predicted, Tree) else parse_trees([predicted or ""], "")
        guess = _flatten(trees, rules)
    except InputError:  # unbalanced
        return counts._replace(status="error")
    if not guess.words:
        return counts._replace(status="skipped")
    if guess.words != parse.words:
        return counts._replace(status="error")
    return counts._replace(
        predicted=len(guess.brackets),
        matched=(Counter(guess.brackets) & Counter(parse.brackets)).total(),
        crossing=sum(
            any(a < start < b < end or start < a < end < b for _, a, b in parse.brackets)
            for _, start, end in guess.brackets
        ),
        correct_tags=sum(a == b for a, b in zip(guess.tags, parse.tags, strict=True)),
    )


def _flatten(trees: Iterable[Tree], rules: Rules) -> _Parse:
    """Returns the words, tags and brackets that the rules keep. Equal ones have the same name."""
    labels = {label: group[0] for group in rules.equal_labels for label in group}
    same_words = {word: group[0] for group in rules.equal_words for word in group}
    deleted = {labels.get(label, label) for label in rules.deleted}
    words, tags, brackets = parse = _Parse([], [], [])

    def visit(tree: Tree) -> None:
        if not tree.children:
            if tree.label not in rules.deleted:
                words.append(same_words.get(tree.word, tree.word))
                tags.append(labels.get(tree.label, tree.label))
            return
        start = len(words)
        for child in tree.children:
            visit(child)
        label = re.split("[-=]", tree.label)[0]
        label = labels.get(label, label)
        if label not in deleted and start < len(words):
            brackets.append((label, start, len(words)))

    for tree in trees:
        visit(tree)
    return parse
