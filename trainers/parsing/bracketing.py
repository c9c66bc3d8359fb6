"""Labelled bracketing scores, computed as the program EVALB computes them (section 6.3)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import Tree, parse_trees
from keras_transformer.trainers.parsing.treebank import TRACE


class Rules(NamedTuple):
    """What is scored: the parameters of EVALB, as its `.prm` files have them."""

    deleted: frozenset[str]  # tags whose words are left out, and labels whose brackets are
    equal_labels: tuple[tuple[str, ...], ...] = ()  # groups of labels, or tags, that count as one
    equal_words: tuple[tuple[str, ...], ...] = ()


# The usual rules: EVALB's COLLINS.prm.
COLLINS = Rules(
    deleted=frozenset({"TOP", TRACE, ",", ":", "``", "''", "."}), equal_labels=(("ADVP", "PRT"),)
)


class TreeCounts(NamedTuple):
    """The counts of one sentence."""

    # "skipped" if the prediction has no words; "error" if it is damaged, or has other words than
    # the gold tree, of those that the rules keep. Then the last four counts are 0.
    status: Literal["valid", "skipped", "error"]
    length: int  # words in the gold tree, with punctuation
    num_words: int  # words that the rules keep
    gold: int  # brackets in the gold tree
    predicted: int = 0  # brackets in the prediction
    matched: int = 0  # brackets in both
    crossing: int = 0  # predicted brackets that cross one of the gold tree
    correct_tags: int = 0  # words with the right tag


class BracketScores(NamedTuple):
    """Scores of a parser, in percent; `average_crossing` is a number per sentence.

    All but `f1_all` leave out the sentences that are not valid, as EVALB does.
    """

    f1: float  # the harmonic mean of precision and recall
    precision: float  # predicted brackets that are in the gold tree
    recall: float  # gold brackets that are in the prediction
    exact_match: float  # sentences with precision and recall 1
    average_crossing: float  # number of crossing brackets of a sentence
    no_crossing: float  # sentences without a crossing bracket
    few_crossing: float  # sentences with two or fewer crossing brackets
    tagging_accuracy: float  # words with the right tag
    f1_all: float  # F1 over all sentences; one that is not valid has no predicted brackets
    num_trees: int  # number of sentences
    num_valid: int  # number of those that are valid
    num_errors: int  # number of those with damaged predictions, or with other words
    num_skipped: int  # number of those whose predictions have no words
    trees: tuple[TreeCounts, ...]  # the counts of each sentence

    @classmethod
    def of(cls, trees: Iterable[TreeCounts]) -> "BracketScores":
        """Returns the scores of sentences."""
        trees = tuple(trees)
        valid = [tree for tree in trees if tree.status == "valid"]
        status = Counter(tree.status for tree in trees)
        predicted, matched = (
            sum(getattr(t, name) for t in valid) for name in ("predicted", "matched")
        )
        gold, crossing = sum(tree.gold for tree in valid), [tree.crossing for tree in valid]
        return cls(
            f1=_percent(2 * matched, predicted + gold),
            precision=_percent(matched, predicted),
            recall=_percent(matched, gold),
            exact_match=_percent(
                sum(tree.matched == tree.predicted == tree.gold for tree in valid), len(valid)
            ),
            average_crossing=_percent(sum(crossing), len(valid)) / 100,
            no_crossing=_percent(sum(count == 0 for count in crossing), len(valid)),
            few_crossing=_percent(sum(count <= 2 for count in crossing), len(valid)),
            tagging_accuracy=_percent(
                sum(tree.correct_tags for tree in valid), sum(tree.num_words for tree in valid)
            ),
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
