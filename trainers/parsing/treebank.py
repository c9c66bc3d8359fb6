"""Penn treebanks: files of constituency trees, as pairs of a sentence and symbols (section 6.3)."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_transformer.errors import InputError, one_line
from keras_transformer.files import kind_of
from keras_transformer.parsing.trees import Tree, delinearize, linearize, parse_trees
from keras_transformer.trainers.data import corpora

TRACE = "-NONE-"
ROOTS = ("", "TOP", "ROOT", "S1")  # labels above the sentence, which say nothing
JOINED_ROOT = "TOP"
SUFFIXES = (".mrg", ".parse", ".tree", ".trees")  # .parse: OntoNotes
SPLITS = ("train", *corpora.VALIDATION_SPLITS, "test")
_NOT_IN_WORDS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2581]")


def clean(tree: Tree) -> Tree | None:
    """Reduces a tree to what parsers learn and are scored on; None if it holds traces only.

    Traces (`-NONE-`) go, with constituents that hold nothing else; so do function tags and indices
    (`NP-SBJ-2` and `NP=2` become `NP`), and the root `TOP`, `ROOT`, `S1` or `( ... )`. A root with
    several parts stays, as `TOP`, which the usual scores ignore. Tags and labels such as `-LRB-`
    and `ADVP|PRT` stay as they are. A space or control character inside a word, and U+2581, become
    underscores, so that the tokenizer splits a sentence into these words.
    """
    cleaned = _strip(tree)
    while cleaned and cleaned.children and cleaned.label in ROOTS:
        if len(cleaned.children) > 1:
            return cleaned._replace(label=JOINED_ROOT)
        cleaned = cleaned.children[0]
    return cleaned


def _strip(tree: Tree) -> Tree | None:
    if not tree.children:
        if tree.label == TRACE:
            return None
        return tree._replace(word=_NOT_IN_WORDS.sub("_", tree.word))
    children = tuple(filter(None, map(_strip, tree.children)))
    label = tree.label
    if not label.startswith("-"):  # as -LRB- does
        label = re.split("[-=]", label)[0]
    return Tree(label, children) if children else None


def load_treebank(data: str | Path) -> corpora.Corpus:
    """Finds a treebank: pairs of a sentence and the symbols of its tree, joined by spaces.

    `data` is a folder with some of the files `train.trees`, `dev.trees` (or `val.trees`) and
    `test.trees`, also `.gz`; or any other folder of files `.mrg`, `.parse`, `.tree` and `.trees`,
    or one file. Of these, about a twentieth, and about 1,000 sentences at most, is held out for
    each of val and test.

    Raises:
        InputError: if there is no such file or folder, or it holds no files of trees.
    """
    data = Path(data)
    if not data.exists():
        raise InputError(f"{data} does not exist")
    of_split = corpora.split_files(data, "", ".trees") if data.is_dir() else {}
    if splits := tuple(split for split in SPLITS if split in of_split):
        return corpora.Corpus(str(data), splits, lambda split: _pairs([of_split[split]]))
    paths = [data] if data.is_file() else sorted(data.rglob("*"))
    files = [path for path in paths if path == data or kind_of(path) in SUFFIXES]
    if not files:
        raise InputError(
            f"{data} must be a file of trees in Penn format, a folder with train.trees and "
            f"dev.trees, or a folder of files {', '.join(SUFFIXES)}"
        )
    return corpora.hold_out(str(data), [(str(data), lambda: _pairs(files))])


def _pairs(paths: Iterable[Path]) -> Iterator[corpora.Pair]:
    for path in paths:
        for tree in filter(None, map(clean, parse_trees(corpora.read_lines(path), str(path)))):
            symbols = linearize(tree)
            if not _stand_for(symbols, tree):
                raise InputError(
                    f"{path}: no label or tag may be empty or begin with a slash, and no tag may "
                    f"be a label. Received: {one_line(str(tree))}"
                )
            yield corpora.Pair(" ".join(tree.words), " ".join(symbols))


def _stand_for(symbols: list[str], tree: Tree) -> bool:
    try:
        return "" not in symbols and delinearize(symbols, tree.words) == tree
    except ValueError:
        return False
