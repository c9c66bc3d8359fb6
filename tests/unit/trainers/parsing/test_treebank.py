import gzip

import pytest

from keras_transformer.errors import InputError
from keras_transformer.parsing.trees import parse_trees
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.parsing.treebank import clean, load_treebank

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
        path.write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
        return path

    return write_file


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
        ("( (S (NP (-NONE- *))) )", "None"),
    ],
)
def test_clean(text, expected):
    assert str(clean(tree_of(text))) == expected


def test_splits_are_files(write):
    write("train.trees.GZ", f"( {SLEEPS} )\n( (S (-NONE- *)) )\n(UH Oh)\n")
    corpus = load_treebank(write("dev.trees", "(UH No)").parent)
    assert corpus.splits == ("train", "dev")
    assert corpus.validation_split == "dev"
    assert list(corpus.pairs("train")) == [Pair("John sleeps", SYMBOLS), Pair("Oh", "UH")]
    assert list(corpus.pairs("dev")) == [Pair("No", "UH")]


def test_other_files_are_held_out(write):
    for name, start in {"b.mrg": 0, "wsj/a.parse": 200, "wsj/c.mrg.GZ": 300}.items():
        path = write(name, "".join(f"( (NP (CD {i})) )\n" for i in range(start, start + 100)))
    write("wsj/README.txt", "not a tree")
    write("wsj/b.prd", "(not a tree")
    folder = path.parents[1]
    splits = {split: list(load_treebank(folder).pairs(split)) for split in ("train", "val", "test")}
    assert [pair.source for pair in splits["train"]][:2] == ["0", "2"]  # files by name
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


def test_no_treebank(write, tmp_path):
    path = write("bad.trees.gz", "(UH Oh)\n" * 50)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=f"^Cannot read {path}: "):
        load_treebank(path)
    path.write_bytes(gzip.compress(b"(UH Oh)\n)"))
    with pytest.raises(InputError, match=f"^{path}, line 2: "):
        load_treebank(path)
    path.unlink()
    with pytest.raises(InputError, match="nowhere does not exist"):
        load_treebank(tmp_path / "nowhere")
    write("x.txt", SLEEPS)
    with pytest.raises(InputError, match=f"^{tmp_path} must be a file of trees in Penn format"):
        load_treebank(tmp_path)
    write("train.trees", SLEEPS)
    write("train.trees.gz", SLEEPS)
    with pytest.raises(InputError, match=r"must hold one of train\.trees and train\.trees\.gz"):
        load_treebank(tmp_path)
