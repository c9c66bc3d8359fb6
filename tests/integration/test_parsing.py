"""Constituency parsing from a treebank to an export: the words of a sentence in, a tree out."""

import dataclasses
import json
import random
from pathlib import Path

import pytest
from command_line import assert_refused, cli

from keras_transformer.parsing.trees import parse_trees
from keras_transformer.run import Run
from keras_transformer.trainers.parsing.bracketing import score_brackets
from keras_transformer.trainers.parsing.treebank import load_treebank
from keras_transformer.translator import Translator

SIZES = ["d_model=16", "d_ff=24", "num_heads=2", "num_encoder_layers=1", "num_decoder_layers=1"]
SENTENCES = ["a dog sees ( two ) cats .", "dogs", "", "  the\u00a0cat (  ", "naïve 😀 /NP"]


def noun_phrase(choose):
    head = f"(NN {choose(['dog', 'cat', 'tree'])})"
    if choose([True, False]):
        return f"(NP-SBJ (DT {choose(['the', 'a'])}) {head})"
    return f"(NP (NP (DT the) {head}) (PP (IN of) (NP (NNP {choose(['Ann', 'Bo'])}))))"


def sentence(choose):
    verb = choose(["(VBZ sleeps)", f"(VBZ sees) {noun_phrase(choose)}"])
    return f"( (S {noun_phrase(choose)} (VP {verb} (NP (-NONE- *T*))) (. .)) )\n"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    """160 training and 7 development trees of a small grammar."""
    folder, choose = tmp_path_factory.mktemp("treebank"), random.Random(1).choice
    for split, count in {"train": 160, "dev": 7}.items():
        (folder / f"{split}.trees").write_text("".join(sentence(choose) for _ in range(count)))
    return folder


@pytest.fixture(scope="module")
def run(treebank, tmp_path_factory):
    path = tmp_path_factory.mktemp("parser") / "run"
    settings = [*(f"model.{size}" for size in SIZES), "warmup_steps=20", "peak_rate=0.02"]
    settings += ["steps_per_validation=45", "bleu_sentences=7", "tokens_per_batch=256"]
    changes = [word for setting in settings for word in ("--set", setting)]
    options = ["--task", "parsing", "--vocab-size", 290, "--steps", 90, "--run-dir", path]
    code, out, err = cli("train", "--data", treebank, *options, *changes)
    assert (code, out) == (0, ""), err
    assert err.count(", F1 ") == 4  # of two validations, the best and the last
    return path


def test_settings_of_a_parser(run):
    manifest = json.loads((run / "run.json").read_text())
    settings, config = manifest["settings"], manifest["config"]
    assert (manifest["source"], manifest["target"]) == ("en", "trees")
    names = ("beam_size", "length_penalty", "extra_length")
    assert [settings[name] for name in names] == [21, 0.3, 300]
    assert config["target_vocab_size"] == 4 + 6 + 2 * 4  # special symbols, tags, labels twice
    assert not config["share_embeddings"]
    assert settings["architecture"] == manifest["architecture"] == "next_word"
    assert config["word_id_ends"][1] == 4 + 6  # special symbols and tags


@pytest.fixture(scope="module")
def evaluated(run):
    """What `evaluate` prints, on standard output and error."""
    code, out, err = cli("evaluate", run, "--beam-size", 2)  # of dev: there is no test split
    assert code == 0, err
    return out, err


def test_evaluate_scores_the_trees(run, treebank, evaluated):
    out, err = evaluated
    assert "EVALB leaves out 0 trees whose words differ from the gold tree's" in err
    path = run / "evaluation" / "dev-beam_size=2"
    files = {kind: Path(f"{path}.{kind}") for kind in ("hypothesis", "reference")}
    gold = list(parse_trees(files["reference"].read_text().splitlines(), "gold"))
    words = [pair.source for pair in load_treebank(treebank).pairs("dev")]
    assert [" ".join(tree.words) for tree in gold] == words
    scores = score_brackets(files["hypothesis"].read_text().splitlines(), gold)
    assert scores.f1 > 30  # it has begun to learn
    assert f"F1 of brackets             {scores.f1:5.2f}  EVALB|prm:COLLINS" in out
    assert f"{scores.tagging_accuracy:5.2f}" in out
    values = json.loads((run / "evaluation" / "dev-beam_size=2.scores.json").read_text())
    assert values["f1_short"]["value"] == scores.up_to(40).f1
    assert (values["num_pairs"], values["num_valid"]) == (7, 7)


def test_any_text_becomes_a_tree_with_its_words(run):
    found = Translator.load(run).translate(SENTENCES, beam_size=2, num_best=2)
    words = [["a", "dog", "sees", "-LRB-", "two", "-RRB-", "cats", "."], ["dogs"]]
    words += [[], ["the", "cat", "-LRB-"], ["naïve", "😀", "/NP"]]
    for each, expected in zip(found, words, strict=True):
        for hypothesis in each.hypotheses:
            trees = list(parse_trees([hypothesis.text], "found"))
            assert [tree.words for tree in trees] == ([expected] if expected else [])


@pytest.mark.usefixtures("eager")
def test_a_tree_has_a_symbol_for_each_word_whatever_the_limit(run):
    translator = Translator.of(Run.load(run))
    options = dataclasses.replace(translator.defaults, extra_length=0)
    found = Translator(translator.model, translator.tokenizer, options).translate(["dogs", "a b c"])
    trees = [list(parse_trees([each.text], "found")) for each in found]
    assert [[tree.words for tree in each] for each in trees] == [[["dogs"]], [["a", "b", "c"]]]


def test_plot_draws_predicted_beside_gold_trees(run, evaluated, tmp_path):
    code, _, err = cli("plot", run, "--output", tmp_path / "report")
    assert code == 0, err
    assert (tmp_path / "report" / "trees-dev-beam_size-2-1.png").stat().st_size > 5_000
    assert "F1 of brackets" in (tmp_path / "report" / "report.html").read_text()


def test_what_is_for_translations_is_refused(run, tmp_path):
    result = cli("evaluate", run, "--tokenize", "13a")
    assert_refused(result, "An evaluation of the task parsing has no tokenize")
    result = cli("convert", run, tmp_path / "other", "--to", "marian")
    assert_refused(result, "Other engines need.* SentencePiece.*Received: one of a parser")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tokenizer=wordpiece", "`task` parsing needs the `tokenizer` bpe or unigram.*wordpiece.*"),
        ("lowercase=true", "`task` parsing needs words as they are.*"),
        ("teacher=run", "`task` parsing needs .*teacher='run'.*"),
        ("model.position_encoding=learned", "`task` parsing needs positions for any length.*"),
        ("extra_length=2", "`task` parsing needs an `extra_length` of at least 3.*"),
        ("metric=bleu", "`metric` must be f1 or loss for the `task` parsing.*"),
    ],
)
def test_settings_that_do_not_fit(treebank, tmp_path, change, message):
    options = ["--task", "parsing", "--data", treebank, "--run-dir", tmp_path / "run"]
    assert_refused(cli("train", *options, "--set", change), message)
