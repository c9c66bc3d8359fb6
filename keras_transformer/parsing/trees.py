"""Constituency trees in brackets, as Penn treebanks have them, and as symbols (section 6.3).

A tree is written depth first, as by tensor2tensor, after Vinyals et al. (2015, arXiv 1412.7449): a
label opens a constituent, a part-of-speech tag takes the place of its word, and `/LABEL` closes the
constituent:

    (S (NP (NNP John)) (VP (VBZ sleeps)))  ->  S NP NNP /NP VP VBZ /VP /S

A symbol `X` opens a constituent if and only if `/X` is a symbol, so no label may also be a tag.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from keras_transformer.errors import InputError, one_line

MAX_LEVELS = 200  # of brackets within brackets; Python's recursion ends soon after
# The other spaces of Unicode are parts of words.
_TOKENS = re.compile(r"[()]|[^()\s]+", re.ASCII)


class Tree(NamedTuple):
    """A constituent, or a tagged word. `str(tree)` is its Penn format, on one line."""

    label: str  # of the constituent, or part-of-speech tag
    children: tuple["Tree", ...] = ()  # parts of the constituent; none at a word
    word: str = ""  # the tagged word; empty at a constituent

    def leaves(self) -> Iterator["Tree"]:
        """Yields the tagged words, in order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    @property
    def words(self) -> list[str]:
        """The words of the sentence."""
        return [leaf.word for leaf in self.leaves()]

    def __str__(self) -> str:
        word = self.word.replace("(", "-LRB-").replace(")", "-RRB-")
        return f"({self.label} {word or ' '.join(map(str, self.children))})"


def parse_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """Yields the trees of `lines` of text in Penn format, each over one or several lines.

    Raises:
        InputError: if a tree is damaged; the message has `name` and the line.
    """
    stack: list[list[str | Tree]] = []  # the parts of each open bracket
    first = number = 1
    for number, line in enumerate(lines, start=1):
        for token in _TOKENS.findall(line):
            if token == "(":
                if not stack:
                    first = number
                stack.append([])
                if len(stack) > MAX_LEVELS:
                    raise InputError(
                        f"{name}, line {first}: a tree must have at most {MAX_LEVELS} levels"
                    )
            elif not stack:
                raise InputError(f"{name}, line {number}: {token[:40]!r} is outside of a tree")
            elif token != ")":
                stack[-1].append(token)
            else:
                parts = stack.pop()
                tree = _tree(parts)
                if tree is None:
                    text = one_line(" ".join(map(str, parts)), 40)
                    raise InputError(
                        f"{name}, line {number}: a bracket must hold a tag and a word, or a label "
                        f"and trees. Received: ({text})"
                    )
                if stack:
                    stack[-1].append(tree)
                else:
                    yield tree
    if stack:
        raise InputError(f"{name}, line {first}: the tree that begins here is not closed")


def _tree(parts: list[str | Tree]) -> Tree | None:
    """Builds a tree from what a bracket holds; None if that is no tree. A root may lack a label."""
    label = parts[0] if parts and isinstance(parts[0], str) else ""
    rest = parts[1:] if label else parts
    if label and len(rest) == 1 and isinstance(rest[0], str):
        return Tree(label, word=rest[0])
    children = tuple(part for part in rest if isinstance(part, Tree))
    return Tree(label, children) if children and len(children) == len(rest) else None


def linearize(tree: Tree) -> list[str]:
    """Returns the symbols of a tree: opening labels, tags instead of words, closing labels.

    The symbol of a single tagged word is its tag.
    """
    if not tree.children:
        return [tree.label]
    inner = [symbol for child in tree.children for symbol in linearize(child)]
    return [tree.label, *inner, f"/{tree.label}"]


def delinearize(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """Returns the tree of symbols and words: the inverse of `linearize`.

    Raises:
        ValueError: if the `symbols` are not those of one tree, or the `words` are not as many as
            the tags.
    """
    labels = {symbol[1:] for symbol in symbols if symbol.startswith("/")}
    remaining = iter(words)
    stack: list[tuple[str, list[Tree]]] = [("", [])]  # open constituents and their parts
    for symbol in symbols:
        if symbol in labels:
            stack.append((symbol, []))
        elif symbol.startswith("/"):
            label, children = stack.pop()
            if not stack or symbol != f"/{label}":
                raise ValueError(f"{symbol!r} must close the last open label. It is: {label!r}")
            if not children:
                raise ValueError(f"{label!r} must hold a tag. It is closed at once")
            stack[-1][1].append(Tree(label, tuple(children)))
        else:
            word = next(remaining, None)
            if word is None:
                raise ValueError(f"There must be {len(words)} tags, one per word. Received: more")
            stack[-1][1].append(Tree(symbol, word=word))
    if len(stack) > 1:
        raise ValueError(f"All labels must be closed. Open: {stack[-1][0]!r}")
    if next(remaining, None) is not None:
        raise ValueError(f"There must be {len(words)} tags, one per word. Received: fewer")
    trees = stack[0][1]
    if len(trees) != 1:
        raise ValueError(f"The symbols must be those of one tree. Received: {len(trees)} trees")
    return trees[0]
