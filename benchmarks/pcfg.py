"""The baseline for a parser: a probabilistic context-free grammar of the same training trees.

A chain of constituents over the same words is one symbol, which remembers the label above it
(vertical Markovization, Klein and Manning 2003). A rule with many parts becomes rules with two: the
last part, and a symbol for the others, which remembers the sibling that follows (horizontal
Markovization). A word that the training trees lack has the tags of rare words with its signature,
such as its ending.

The parser (CKY) fills all spans of a length at once, and keeps the best symbols of each span.

    python benchmarks/pcfg.py TREEBANK [--split dev] [--parents 1] [--siblings 1]
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import numpy as np
import typer

from keras_transformer.errors import InputError
from keras_transformer.trainers.bracketing import score_brackets
from keras_transformer.trainers.tasks import gold_tree
from keras_transformer.trainers.treebank import load_treebank
from keras_transformer.trees import Tree

RARE = 5  # an unknown word has the tags of words with at most so many occurrences
SMOOTHING = 1.0  # weight of a word's signatures beside its own occurrences
KEPT = (30, 40)  # symbols with a label, and parts of rules, that a span keeps
MARGIN = 12.0  # in nats: a span keeps what is at most so much worse than its best symbol


class Symbol(NamedTuple):
    """A chain of labels and its parents, or the first parts of a rule and what follows them."""

    labels: tuple[str, ...]  # from the top; the last one may be a tag
    parents: tuple[str, ...] = ()
    whole: "Symbol | None" = None  # the left side of the rule
    siblings: tuple[str, ...] = ()


class Counts(NamedTuple):
    """How often the training trees have what."""

    roots: Counter[Symbol]
    rules: Counter[tuple[Symbol, Symbol, Symbol]]
    words: dict[str, Counter[Symbol]]


def count(trees: Iterable[Tree], parents: int, siblings: int) -> Counts:
    """Counts the rules and words of trees."""
    counts = Counts(Counter(), Counter(), defaultdict(Counter))

    def visit(tree: Tree, above: tuple[str, ...]) -> Symbol:
        labels = [tree.label]
        while len(tree.children) == 1:
            tree = tree.children[0]
            labels.append(tree.label)
        symbol = Symbol(tuple(labels), above[max(0, len(above) - parents) :])
        if not tree.children:
            counts.words[tree.word][symbol] += 1
            return symbol
        parts = [visit(child, (*above, *labels)) for child in tree.children]
        whole, follow = symbol, tuple(part.labels[0] for part in parts)
        for i in range(len(parts) - 1, 1, -1):
            first_parts = Symbol((), whole=symbol, siblings=follow[i : i + siblings])
            counts.rules[whole, first_parts, parts[i]] += 1
            whole = first_parts
        counts.rules[whole, parts[0], parts[1]] += 1
        return symbol

    for tree in trees:
        counts.roots[visit(tree, ())] += 1
    return counts


def signatures_of(word: str) -> list[tuple[str, ...]]:
    """Returns descriptions of a word, each more exact than the one before."""
    shape = re.sub(r"(.)\1+", r"\1", re.sub("[a-z]", "a", re.sub("[A-Z]", "A", word)))
    shape = re.sub("[0-9]+", "0", shape)
    parts = (shape, word[-2:], word[-3:])
    return [parts[:size] for size in range(4)]


class Grammar:
    """A grammar and its parser.

    Args:
        counts: of the training trees.
        kept: how many symbols with a label, and how many parts of rules, a span keeps.
        margin: how much worse than the best symbol of a span another may be.
    """

    def __init__(
        self, counts: Counts, kept: tuple[int, int] = KEPT, margin: float = MARGIN
    ) -> None:
        self.kept, self.margin = kept, margin
        found = {symbol for rule in counts.rules for symbol in rule} | set(counts.roots)
        # 0 is no symbol, and those with a label come first.
        self.symbols = [Symbol(()), *sorted(found, key=lambda symbol: not symbol.labels)]
        index = {symbol: i for i, symbol in enumerate(self.symbols)}
        size, self.num_labelled = len(index), 1 + sum(bool(symbol.labels) for symbol in found)
        total = np.zeros(size)
        for (whole, *_), number in counts.rules.items():
            total[index[whole]] += number
        rules = sorted(
            (index[b] * self.num_labelled + index[c], index[a], np.log(number / total[index[a]]))
            for (a, b, c), number in counts.rules.items()
        )
        pairs, wholes, scores = zip(*rules, strict=True)
        self.wholes, self.scores = np.array(wholes), np.array(scores, np.float32)
        # Rules with the same right side are neighbours; the table has its number, or 0.
        unique, self.first = np.unique(pairs, return_index=True)
        self.first = np.append(self.first, len(pairs))
        self.table = np.zeros(size * self.num_labelled, np.int32)
        self.table[unique] = 1 + np.arange(len(unique))
        # Words.
        self.seen: dict[object, np.ndarray] = {}
        self.tags = np.unique([index[symbol] for c in counts.words.values() for symbol in c])
        column = {self.symbols[i]: k for k, i in enumerate(self.tags)}
        tag_counts = np.zeros(len(self.tags))
        for word, symbols in counts.words.items():
            row = np.zeros(len(self.tags), np.float32)
            for symbol, number in symbols.items():
                row[column[symbol]] = number
            tag_counts += row
            self.seen[word] = row
            if row.sum() <= RARE:
                for signature in signatures_of(word):
                    self.seen[signature] = self.seen.get(signature, 0) + row
        self.tag_shares = tag_counts / tag_counts.sum()
        total[self.tags] += tag_counts
        with np.errstate(divide="ignore"):
            self.prior = np.log(total / total.sum()).astype(np.float32)
            roots = np.array([counts.roots[symbol] for symbol in self.symbols])
            self.roots = np.log(roots / roots.sum()).astype(np.float32)

    def word_scores(self, word: str) -> np.ndarray:
        """Returns log P(tag | word) - log P(tag) of all tags, up to a constant log P(word)."""
        share = self.tag_shares
        for signature in (*signatures_of(word), word):
            if signature in self.seen:
                row = self.seen[signature]
                share = (row + SMOOTHING * share) / (row.sum() + SMOOTHING)
        return np.log(share / self.tag_shares).astype(np.float32)

    def parse(self, words: list[str]) -> Tree | None:
        """Returns the most likely tree, up to what the spans lose; None if there is none."""
        n, (labelled, parts) = len(words), self.kept
        shape = (n + 1, n, labelled + parts)  # length of the span, first word, place in the span
        self.ids = np.zeros(shape, np.int64)
        self.chart = np.full(shape, -np.inf, np.float32)
        self.back = np.zeros((*shape, 3), np.int32)  # length of the left part, and both places
        scores = np.stack([self.word_scores(word) for word in words])
        starts, tags = np.indices(scores.shape).reshape(2, -1)
        self._keep(1, starts, self.tags[tags], scores.ravel(), np.zeros((scores.size, 3), np.int32))
        for length in range(2, n + 1):
            self._combine(length, n)
        if not self.ids[n, 0, 0]:
            return None
        return self._tree(words, n, 0, 0)[0]

    def _combine(self, length: int, n: int) -> None:
        """Fills the spans of a length: any rule, from any two parts."""
        labelled, places = self.kept[0], sum(self.kept)
        start, left = np.indices((n - length + 1, length - 1)).reshape(2, -1)
        left += 1
        b, c = self.ids[left, start], self.ids[length - left, start + left, :labelled]
        pairs = self.table.take(b[:, :, None] * self.num_labelled + c[:, None, :]).ravel()
        hits = np.flatnonzero(pairs)
        pairs = pairs[hits] - 1
        row, place = np.divmod(hits, labelled * places)
        back = np.stack([left[row], *np.divmod(place, labelled)], axis=1)
        start, left = start[row], left[row]
        scores = self.chart[left, start, back[:, 1]]
        scores = scores + self.chart[length - left, start + left, back[:, 2]]
        # Each pair has one or more rules.
        numbers = self.first[pairs + 1] - self.first[pairs]
        hit = np.repeat(np.arange(len(hits)), numbers)
        rule = np.arange(len(hit)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        rule += self.first[pairs[hit]]
        scores = scores[hit] + self.scores[rule]
        self._keep(length, start[hit], self.wholes[rule], scores, back[hit])

    def _keep(
        self, length: int, start: np.ndarray, ids: np.ndarray, scores: np.ndarray, back: np.ndarray
    ) -> None:
        """Writes the best symbols of each span, each with its best score."""
        is_root = length == self.ids.shape[1]
        merit = scores + (self.roots if is_root else self.prior)[ids]
        is_part = ids >= self.num_labelled
        cell = 2 * start + is_part
        # The best of each symbol, then the best symbols.
        order = np.lexsort((-scores, ids, start))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(ids[order]) != 0) | (np.diff(start[order]) != 0)
        order = order[first]
        order = order[np.lexsort((-merit[order], cell[order]))]
        begins = np.searchsorted(cell[order], cell[order])
        rank = np.arange(len(order)) - begins
        best = np.full(start.max(initial=0) + 1, -np.inf, np.float32)
        np.maximum.at(best, start, merit)
        kept = (rank < np.array(self.kept)[is_part[order] * 1]) & np.isfinite(merit[order])
        kept &= merit[order] >= best[start[order]] - self.margin
        order, rank = order[kept], rank[kept]
        place = rank + is_part[order] * self.kept[0]
        at = length, start[order], place
        self.ids[at], self.chart[at], self.back[at] = ids[order], scores[order], back[order]

    def _tree(self, words: list[str], length: int, start: int, place: int) -> list[Tree]:
        """Returns the trees of an entry of the chart: several if it is a part of a rule."""
        symbol = self.symbols[self.ids[length, start, place]]
        if length == 1:
            trees = [Tree(symbol.labels[-1], word=words[start])]
            chain = symbol.labels[:-1]
        else:
            left, b, c = self.back[length, start, place]
            trees = self._tree(words, left, start, b)
            trees += self._tree(words, length - left, start + left, c)
            chain = symbol.labels
        for label in reversed(chain):
            trees = [Tree(label, tuple(trees))]
        return trees


def main(
    treebank: Annotated[str, typer.Argument(help="Folder with train.trees and the split.")],
    split: Annotated[str, typer.Option(help="Split to parse.")] = "dev",
    parents: Annotated[int, typer.Option(help="How many labels above a symbol remembers.")] = 1,
    siblings: Annotated[int, typer.Option(help="How many siblings a rule remembers.")] = 1,
    every: Annotated[int, typer.Option(help="Parse one sentence of so many.")] = 1,
) -> None:
    """Trains the grammar, parses a split and prints the scores."""
    corpus = load_treebank(treebank)

    def trees(split: str) -> list[Tree]:
        return [gold_tree(pair) for pair in corpus.pairs(split)]

    began = time.process_time()
    grammar = Grammar(count(trees("train"), parents, siblings))
    trained = time.process_time()
    gold = trees(split)[::every]
    predicted = [grammar.parse(tree.words) for tree in gold]
    seconds = time.process_time() - trained
    scores = score_brackets(predicted, gold)
    print(f"symbols            {len(grammar.symbols):8,}")
    print(f"rules              {len(grammar.scores):8,}")
    print(f"training           {trained - began:8.1f} s")
    print(f"parsing            {seconds:8.1f} s")
    print(f"{'':18}     all  up to 40 words")
    short = scores.up_to(40).figures()
    for name, value in scores.figures().items():
        form = "8d" if name.startswith("num") else "8.2f"
        print(f"{name:18} {value:{form}} {short[name]:{form}}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
