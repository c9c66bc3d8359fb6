"""Trees in Penn format, and as symbols."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import Tree, delinearize, linearize, parse_trees

SLEEPS = "(S (NP (NNP John)) (VP (VBZ sleeps)))"


def test_one_line_or_several():
    lines = f"\n( (S\n    (NP (NNP John))\n (VP (VBZ\n sleeps))) )\n{SLEEPS}(UH Oh)\n".splitlines()
    parts = Tree("NP", (Tree("NNP", word="John"),)), Tree("VP", (Tree("VBZ", word="sleeps"),))
    sleeps = Tree("S", parts)
    assert list(parse_trees(lines, "x")) == [Tree("", (sleeps,)), sleeps, Tree("UH", word="Oh")]
    assert str(sleeps) == SLEEPS
    assert sleeps.words == ["John", "sleeps"]
    assert str(Tree("-LRB-", word="(")) == "(-LRB- -LRB-)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(UH Oh)\n\n(S (NP\n(NN a)\n", "line 3: the tree that begins here is not closed"),
        ("(UH Oh)\n)", r"line 2: '\)' is outside of a tree"),
        ("(A " * 201, "line 1: a tree must have at most 200 levels"),
        ("(UH Oh) dear", "line 1: 'dear' is outside of a tree"),
        ("(UH Oh)\n(S (NN a b))", r"line 2: a bracket must hold .* Received: \(NN a b\)"),
        ("(S (NN a) b)", r"line 1: .* Received: \(S \(NN a\) b\)"),
        ("(S ())", r"line 1: .* Received: \(\)"),
        ("(S)", r"line 1: .* Received: \(S\)"),
    ],
)
def test_damaged_tree(text, message):
    with pytest.raises(InputError, match=rf"^bad, {message}$"):
        list(parse_trees(text.splitlines(), "bad"))


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        (SLEEPS, "S NP NNP /NP VP VBZ /VP /S"),
        ("(UH Oh)", "UH"),
        ("(NP (NP (NN /)) (NP (NP (NN b))))", "NP NP NN /NP NP NP NN /NP /NP /NP"),
    ],
)
def test_there_and_back(text, symbols):
    (tree,) = parse_trees([text], "text")
    assert " ".join(linearize(tree)) == symbols
    assert delinearize(symbols.split(), tree.words) == tree


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("S NP NNP /NP VP VBZ /S /VP", "'/S' must close .* It is: 'VP'"),
        ("NNP VBZ /NP", "'/NP' must close .* It is: ''"),
        ("S NP /NP NNP VBZ /S", "'NP' must hold a tag"),
        ("S NNP VBZ RB /S", "2 tags, .* Received: more"),
        ("S NNP /S", "2 tags, .* Received: fewer"),
        ("NP NNP VBZ /NP NP", "Open: 'NP'"),
        ("S NNP /S S VBZ /S", "Received: 2 trees"),
    ],
)
def test_ill_formed_symbols(symbols, message):
    with pytest.raises(ValueError, match=message):
        delinearize(symbols.split(), ["John", "sleeps"])
    with pytest.raises(ValueError, match="Received: 0 trees"):
        delinearize([], [])
