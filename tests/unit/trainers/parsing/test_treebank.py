import gzip

import pytest

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import Tree, delinearize, linearize, parse_trees
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.parsing.treebank import clean, load_treebank, read_trees

SLEEPS = "(S (NP (NNP John)) (VP (VBZ sleeps)))"
SYMBOLS = "S NP NNP /NP VP VBZ /VP /S"


def tree_of(text):
    (tree,) = parse_trees([text], "text")
    return tree


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


# Files.


def test_reads_one_line_or_several(write):
    path = write(
        "a.mrg", f"\n( (S\n    (NP (NNP John))\n (VP (VBZ\n sleeps))) )\n{SLEEPS}(UH Oh)\n"
    )
    sleeps = Tree(
        "S",
        (
            Tree("NP", (Tree("NNP", word="John"),)),
            Tree("VP", (Tree("VBZ", word="sleeps"),)),
        ),
    )
    assert list(read_trees(path)) == [Tree("", (sleeps,)), sleeps, Tree("UH", word="Oh")]
    assert str(sleeps) == SLEEPS
    assert sleeps.words == ["John", "sleeps"]


def test_a_bracket_as_a_word_is_written_in_letters():
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
def test_damaged_tree(write, text, message):
    path = write("bad.trees", text)
    with pytest.raises(InputError, match=rf"^{path}, {message}$"):
        list(read_trees(path))


def test_unreadable_file(write):
    path = write("bad.trees.gz", "(UH Oh)\n" * 50)
    path.write_bytes(path.read_bytes()[:-9])
    for name in (path, path.parent / "none.mrg"):
        with pytest.raises(InputError, match=f"^Cannot read {name}: "):
            list(read_trees(name))


# Cleaning.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"( {SLEEPS} )", SLEEPS),
        (f"(ROOT (S1 {SLEEPS}))", SLEEPS),
        ("(TOP (S (UH Oh)) (FRAG (UH no)))", "(TOP (S (UH Oh)) (FRAG (UH no)))"),
        ("((S (UH Oh)) (FRAG (UH no)))", "(TOP (S (UH Oh)) (FRAG (UH no)))"),
        ("((S (UH Oh)) (S (-NONE- *)))", "(S (UH Oh))"),
        ("(S-TPC-1=2 (NP=3 (NN a)) (NP-SBJ (NN b)))", "(S (NP (NN a)) (NP (NN b)))"),
        ("(S (ADVP|PRT-1 (RB up)) (-LRB- -LRB-))", "(S (ADVP|PRT (RB up)) (-LRB- -LRB-))"),
        ("(S (-LRB- (NN-X a)))", "(S (-LRB- (NN-X a)))"),  # labels with a hyphen, tags as they are
        ("(VP (VB go) (SBAR (-NONE- 0) (S (NP (-NONE- *T*-1)))))", "(VP (VB go))"),
        ("( (NN a\u200ab\x01\u2581c) )", "(NN a_b__c)"),
    ],
)
def test_clean(text, expected):
    assert str(clean(tree_of(text))) == expected


def test_nothing_but_traces():
    assert clean(tree_of("( (S (NP (-NONE- *))) )")) is None


# Symbols.


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        (SLEEPS, SYMBOLS),
        ("(UH Oh)", "UH"),
        ("(NP (NP (NN /)) (NP (NP (NN b))))", "NP NP NN /NP NP NP NN /NP /NP /NP"),
    ],
)
def test_there_and_back(text, symbols):
    tree = tree_of(text)
    assert " ".join(linearize(tree)) == symbols
    assert delinearize(symbols.split(), tree.words) == tree


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("S NP NNP /NP VP VBZ /S /VP", "'/S' must close the last open label. It is: 'VP'"),
        ("NNP VBZ /NP", "'/NP' must close the last open label. It is: ''"),
        ("NNP VBZ /", "'/' must close the last open label. It is: ''"),
        ("S NP /NP NNP VBZ /S", "'NP' must hold a tag. It is closed at once"),
        ("S NNP VBZ RB /S", "There must be 2 tags, one per word. Received: more"),
        ("S NNP /S", "There must be 2 tags, one per word. Received: fewer"),
        ("S NP NNP /NP NP VBZ /S", "'/S' must close the last open label. It is: 'NP'"),
        ("NP NNP VBZ /NP NP", "All labels must be closed. Open: 'NP'"),
        ("S NNP /S S VBZ /S", "The symbols must be those of one tree. Received: 2 trees"),
    ],
)
def test_ill_formed_symbols(symbols, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        delinearize(symbols.split(), ["John", "sleeps"])


def test_no_symbols():
    with pytest.raises(ValueError, match="Received: 0 trees"):
        delinearize([], [])


# Corpora.


def test_splits_are_files(write):
    write("train.trees.gz", f"( {SLEEPS} )\n( (S (-NONE- *)) )\n(UH Oh)\n")
    corpus = load_treebank(write("dev.trees", "(UH No)").parent)
    assert corpus.splits == ("train", "dev")
    assert corpus.validation_split == "dev"
    assert list(corpus.pairs("train")) == [Pair("John sleeps", SYMBOLS), Pair("Oh", "UH")]
    assert list(corpus.pairs("dev")) == [Pair("No", "UH")]


def test_other_files_are_held_out(write):
    for name, start in {"b.mrg": 0, "wsj/a.parse": 200, "wsj/c.trees.gz": 300}.items():
        path = write(name, "".join(f"( (NP (CD {i})) )\n" for i in range(start, start + 100)))
    write("wsj/README.txt", "not a tree")
    write("wsj/b.prd", "(not a tree")
    folder = path.parents[1]
    splits = {split: list(load_treebank(folder).pairs(split)) for split in ("train", "val", "test")}
    assert [pair.source for pair in splits["train"]][:2] == ["0", "1"]  # files by name
    numbers = sorted(int(pair.source) for pairs in splits.values() for pair in pairs)
    assert numbers == [*range(100), *range(200, 400)]
    assert all(8 <= len(splits[split]) <= 24 for split in ("val", "test"))  # about 15
    assert splits["val"] == list(load_treebank(folder).pairs("val"))
    assert len(list(load_treebank(path).pairs("train"))) > 80


@pytest.mark.parametrize(
    "text",
    [
        "(NP (NN a) (NP b))",
        "(NP (NN a) (/NP b))",
        "(NP (NN a) (/ b))",
        "(NP (/NP (NN a)))",
        "(NP ( (NN a)))",
    ],
)
def test_symbols_that_are_taken_for_others(write, text):
    corpus = load_treebank(write("train.trees", f"{SLEEPS}\n{text}\n").parent)
    message = r"train.trees: no label or tag may be empty or begin with a slash.* Received: \(NP"
    with pytest.raises(InputError, match=message):
        list(corpus.pairs("train"))


def test_two_files_of_a_split(write):
    write("train.trees", SLEEPS)
    folder = write("train.trees.gz", SLEEPS).parent
    with pytest.raises(InputError, match=r"must hold one of train\.trees and train\.trees\.gz"):
        load_treebank(folder)


def test_no_treebank(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        load_treebank(tmp_path / "nowhere")
    (tmp_path / "x.txt").write_text(SLEEPS)
    with pytest.raises(InputError, match=f"^{tmp_path} must be a file of trees in Penn format"):
        load_treebank(tmp_path)
