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
        f1: the harmonic mean of precision and recall.
        precision: predicted brackets that are in the gold tree.
        recall: gold brackets that are in the prediction.
        exact_match: sentences with precision and recall 1.
        average_crossing: number of crossing brackets of a sentence.
        no_crossing: sentences without a crossing bracket.
        few_crossing: sentences with two or fewer crossing brackets.
        tagging_accuracy: words with the right tag.
        f1_all: F1 over all sentences: one that is not valid counts as a prediction without
            brackets.
        num_trees: number of sentences.
        num_valid: number of those that are valid.
        num_errors: number of those with damaged predictions, or with other words.
        num_skipped: number of those whose predictions have no words.
        trees: the counts of each sentence.
    """

    f1: float
    precision: float
    recall: float
    exact_match: float
    average_crossing: float
    no_crossing: float
    few_crossing: float
    tagging_accuracy: float
    f1_all: float
    num_trees: int
    num_valid: int
    num_errors: int
    num_skipped: int
    trees: tuple[TreeCounts, ...]

    @classmethod
    def of(cls, trees: Iterable[TreeCounts]) -> "BracketScores":
        """Returns the scores of sentences."""
        trees = tuple(trees)
        valid = [tree for tree in trees if tree.status == "valid"]
        gold, predicted, matched, crossing, correct_tags, num_words = (
            sum(getattr(tree, name) for tree in valid)
            for name in ("gold", "predicted", "matched", "crossing", "correct_tags", "num_words")
        )
        status = Counter(tree.status for tree in trees)
        return cls(
            f1=_percent(2 * matched, predicted + gold),
            precision=_percent(matched, predicted),
            recall=_percent(matched, gold),
            exact_match=_percent(
                sum(tree.matched == tree.predicted == tree.gold for tree in valid), len(valid)
            ),
            average_crossing=_percent(crossing, len(valid)) / 100,
            no_crossing=_percent(sum(tree.crossing == 0 for tree in valid), len(valid)),
            few_crossing=_percent(sum(tree.crossing <= 2 for tree in valid), len(valid)),
            tagging_accuracy=_percent(correct_tags, num_words),
            f1_all=_percent(2 * matched, predicted + sum(tree.gold for tree in trees)),
            num_trees=len(trees),
            num_valid=len(valid),
            num_errors=status["error"],
            num_skipped=status["skipped"],
            trees=trees,
        )

    def up_to(self, length: int) -> "BracketScores":
        """Returns the scores of the sentences of at most so many words."""
        return self.of(tree for tree in self.trees if tree.length <= length)

    def figures(self) -> dict[str, float]:
        """Returns the scores and the numbers of sentences, by name."""
        return {name: value for name, value in self._asdict().items() if name != "trees"}


def _percent(part: int, whole: int) -> float:
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
    return BracketScores.of(_compare(*pair, rules) for pair in zip(predicted, gold, strict=True))


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
