"""The grammar of benchmarks/pcfg.py beside hand counts, and its parser beside an exhaustive one."""

import math
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from pcfg import Grammar, Symbol, count, signatures_of

from keras_transformer.trees import parse_trees

TEXT = """
(S (NP (DT the) (NN dog)) (VP (VB saw) (NP (DT a) (NN cat))) (. .))
(S (NP (NP (DT the) (NN cat)) (PP (IN with) (NP (DT the) (NN dog)))) (VP (VB ran)) (. .))
(S (NP (DT the) (NN dog)) (VP (VB saw) (NP (DT the) (NN cat)) (PP (IN with) (NP (NN glass)))))
(S (NP (NN glass)) (VP (VB saw) (NP (NN dog)) (PP (IN with) (NP (DT a) (NN cat)))) (. .))
(NP (NN saw) (PP (IN with) (NP (DT a) (JJ red) (JJ big) (NN dog))))
(HEADING (NP (NN Dogs)))
"""
TREES = list(parse_trees(TEXT.splitlines(), "text"))


def tree_of(text):
    (tree,) = parse_trees([text], "text")
    return tree


def test_counts():
    counts = count(TREES[1:2], parents=1, siblings=1)
    sentence, subject = Symbol(("S",)), Symbol(("NP",), ("S",))
    inner, prepositional = Symbol(("NP",), ("NP",)), Symbol(("PP",), ("NP",))
    first_parts = Symbol((), whole=sentence, siblings=(".",))
    noun_phrase = (Symbol(("DT",), ("NP",)), Symbol(("NN",), ("NP",)))
    assert counts.roots == {sentence: 1}
    assert counts.rules == Counter(
        [
            (sentence, first_parts, Symbol((".",), ("S",))),
            (first_parts, subject, Symbol(("VP", "VB"), ("S",))),
            (subject, inner, prepositional),
            (inner, *noun_phrase),
            (prepositional, Symbol(("IN",), ("PP",)), Symbol(("NP",), ("PP",))),
            (Symbol(("NP",), ("PP",)), *noun_phrase),
        ]
    )
    assert counts.words["the"] == {Symbol(("DT",), ("NP",)): 2}


@pytest.mark.parametrize(
    ("parents", "symbol"),
    [(0, Symbol(("C",))), (2, Symbol(("C",), ("NP", "X"))), (9, Symbol(("C",), ("S", "NP", "X")))],
)
def test_parents(parents, symbol):
    counts = count([tree_of("(S (NP (X (C c) (D d))) (E e))")], parents, siblings=1)
    assert counts.words["c"] == {symbol: 1}


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [(0, {"": 3}), (1, {"C": 1, "B": 2}), (2, {"C": 1, "BC": 1, "BB": 1})],
)
def test_siblings(siblings, expected):
    tree = tree_of("(NP (A a) (B b) (B b) (B b) (C c))")
    rules = count([tree], parents=0, siblings=siblings).rules
    parts = Counter()
    for (_, first_parts, _), number in rules.items():
        parts["".join(first_parts.siblings)] += number * (first_parts.whole is not None)
    assert +parts == expected


def test_looks():
    shape = "A.a0-Aa"
    assert signatures_of("AB.abc12-Xy") == [(), (shape,), (shape, "Xy"), (shape, "Xy", "-Xy")]


def test_word_scores():
    trees = [tree_of("(X (A xx) (A xx))"), tree_of("(X (A xx) (B y7))")]
    grammar = Grammar(count(trees, parents=0, siblings=0))
    a, b = (
        [grammar.symbols[i].labels for i in grammar.tags].index((label,)) for label in ("A", "B")
    )

    def scores(word):
        shares = np.exp(grammar.word_scores(word)) * np.where(np.arange(2) == a, 3, 1) / 4
        return pytest.approx(shares[[a, b]], rel=1e-5)

    # Shares of the tags are 3/4 and 1/4, among all words and those that look like no other.
    assert scores("?") == [3 / 4, 1 / 4]
    # Three words look like `zz`, all tagged A: (3 + 1 * 3/4) / (3 + 1).
    assert scores("zz") == [15 / 16, 1 / 16]
    # Two more looks, and the word itself.
    assert scores("xx") == [1 - 1 / 4**5, 1 / 4**5]


class Slow:
    """The scores of all trees, by plain loops."""

    def __init__(self, parents, siblings):
        self.counts = count(TREES, parents, siblings)
        self.count_like = lambda tree: count([tree], parents, siblings)
        self.fast = lambda **options: Grammar(self.counts, **options)
        total = Counter()
        for rule, number in self.counts.rules.items():
            total[rule[0]] += number
        self.rules = {
            rule: math.log(number / total[rule[0]]) for rule, number in self.counts.rules.items()
        }
        self.roots = {
            symbol: math.log(number / len(TREES)) for symbol, number in self.counts.roots.items()
        }
        grammar = self.fast()
        self.word = lambda word: dict(
            zip((grammar.symbols[i] for i in grammar.tags), grammar.word_scores(word), strict=True)
        )

    def best(self, words):
        """The score of the best tree; minus infinity if there is none."""
        n = len(words)
        cells = {(i, i + 1): self.word(word) for i, word in enumerate(words)}
        for length in range(2, n + 1):
            for i in range(n - length + 1):
                cell = cells[i, i + length] = defaultdict(lambda: -math.inf)
                for k in range(i + 1, i + length):
                    for (a, b, c), score in self.rules.items():
                        if b in cells[i, k] and c in cells[k, i + length]:
                            found = score + cells[i, k][b] + cells[k, i + length][c]
                            cell[a] = max(cell[a], found)
        top = cells[0, n]
        return max((top[a] + self.roots[a] for a in top if a in self.roots), default=-math.inf)

    def score(self, tree):
        """The score of a tree."""
        counts = self.count_like(tree)
        return (
            sum(self.roots[symbol] for symbol in counts.roots)
            + sum(number * self.rules[rule] for rule, number in counts.rules.items())
            + sum(
                number * self.word(word)[symbol]
                for word, symbols in counts.words.items()
                for symbol, number in symbols.items()
            )
        )


@pytest.mark.parametrize(("parents", "siblings"), [(0, 0), (1, 1), (2, 5)])
def test_finds_the_best_tree(parents, siblings):
    slow = Slow(parents, siblings)
    grammar = slow.fast(kept=(70, 50), margin=math.inf)
    random.seed(13)
    vocabulary = [*sorted(slow.counts.words), "glasses"]
    failures = 0
    for _ in range(25):
        words = random.choices(vocabulary, k=random.randint(1, 6))
        tree = grammar.parse(words)
        if tree is None:
            failures += 1
            assert slow.best(words) == -math.inf
        else:
            assert tree.words == words
            assert slow.score(tree) == pytest.approx(slow.best(words), rel=1e-4)
    assert failures < 20


def test_parses_what_it_has_read():
    grammar = Grammar(count(TREES, parents=2, siblings=2))
    assert [grammar.parse(tree.words) for tree in TREES] == TREES


def test_a_span_keeps_the_best_symbols():
    grammar = Grammar(count(TREES, parents=1, siblings=1), kept=(3, 1))
    words = TREES[1].words
    grammar.parse(words)
    # Symbols with a label come first, then parts of rules.
    labelled, parts = np.split(grammar.ids, [3], axis=2)
    assert ((labelled > 0).sum(2).max(), (parts > 0).sum(2).max()) == (3, 1)
    assert labelled.max() < grammar.num_labelled <= parts[parts > 0].min()
    # The most likely tag of a word, and not the one that makes the word most likely.
    shares = [np.exp(grammar.word_scores(word)) * grammar.tag_shares for word in words]
    assert labelled[1, :, 0].tolist() == grammar.tags[np.argmax(shares, axis=1)].tolist()


def test_a_span_keeps_what_is_nearly_as_good():
    kept = []
    for margin in (math.inf, 2.0):
        grammar = Grammar(count(TREES, parents=1, siblings=1), margin=margin)
        grammar.parse(TREES[1].words)
        merits = (grammar.chart + grammar.prior[grammar.ids])[1:-1]
        best = merits.max(2, keepdims=True)
        kept.append(np.sum(grammar.ids[1:-1] > 0))
        assert (merits >= best - margin)[grammar.ids[1:-1] > 0].all()
    assert kept[0] > kept[1] > len(TREES[1].words)
