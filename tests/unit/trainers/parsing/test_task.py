"""The task of a parser, by what the trainers ask of any task."""

import json
from types import SimpleNamespace

import pytest

from keras_transformer.config import DecodingOptions, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.prepared import CorpusManifest
from keras_transformer.trainers.recipes import load_recipe
from keras_transformer.trainers.scoring.evaluation import evaluate
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.trainers.tasks import find_task

PAIRS = [Pair("John sleeps", "S NP NNP /NP VP VBZ /VP /S"), Pair("Oh", "UH"), Pair("No", "UH")]
TREES = ["(S (NP (NNP John)) (VBZ sleeps))", "(UH Oh)", "(UH oh)"]


class Answers:
    """A parser that has its answers."""

    defaults = DecodingOptions()

    def translate(self, texts, **options):
        return [SimpleNamespace(text=tree, truncated=False) for tree in TREES]


def test_evaluation_writes_trees_and_their_scores(tmp_path):
    scores = evaluate(Answers(), PAIRS, tmp_path / "dev", "trees", task="parsing")
    # S and NP, but not VP; the last tree has another word, and no bracket either way.
    assert (scores.precision, scores.recall) == (100, pytest.approx(200 / 3))
    lines = (tmp_path / "dev.reference").read_text().splitlines()
    assert lines == ["(S (NP (NNP John)) (VP (VBZ sleeps)))", "(UH Oh)", "(UH No)"]
    assert (tmp_path / "dev.hypothesis").read_text().splitlines() == TREES
    written = json.loads((tmp_path / "dev.scores.json").read_text())
    assert (
        written["f1"]
        == written["f1_short"]
        == {"value": pytest.approx(80), "signature": "EVALB|prm:COLLINS"}
    )
    assert (written["num_pairs"], written["num_errors"], written["beam_size"]) == (3, 1, 4)
    task = find_task("parsing")
    assert task.labels.keys() <= written.keys()
    assert "1 trees whose words differ" in task.remark(written)
    (score,) = task.validation_metrics(None, False).values()
    assert score(TREES, PAIRS) == scores.f1_all


def test_next_words_need_a_parser():
    with pytest.raises(InputError, match="`architecture` next_word needs `task` parsing"):
        TrainSettings.from_dict({"data": "bundled", "architecture": "next_word"})


def test_trees_with_symbols_that_the_tokenizer_lacks(tmp_path):
    trees = ["(S (NN a) (VB b))", "(S (NN a) (RB b))", "(X (NN a))", "(S (VB a))"]
    (tmp_path / "train.trees").write_text("\n".join(trees))
    tokenizer = TreeTokenizer.train([("a b", "S NN VB /S")], vocab_size=270)
    settings = TrainSettings(data=str(tmp_path), task="parsing", target="trees", augment={})
    prepare(settings, tmp_path / "corpus", tokenizer=tokenizer)
    split = CorpusManifest.read(tmp_path / "corpus").train.total
    assert (split.kept, split.dropped) == (2, {"unknown": 2})
    assert split.examples == {"unknown": [("a b", "S NN RB /S"), ("a", "X NN /X")]}


def test_parsers():
    """Section 6.3: 4 layers, d_model 1024, beam 21, length penalty 0.3, input + 300 symbols."""
    paper, craft = (
        TrainSettings.from_dict(load_recipe(f"parsing-{name}")) for name in ("wsj", "craft")
    )
    assert craft.config({"vocab_size": 31, "word_id_ends": (19, 11)}).word_id_ends == (19, 11)
    assert type(paper.config()) is TransformerConfig
    for settings in (paper, craft):
        search = settings.beam_size, settings.length_penalty, settings.extra_length
        assert search == (21, 0.3, 300)
        assert (settings.task, settings.target) == ("parsing", "trees")
    config = paper.config({"vocab_size": 16_000})
    assert (paper.vocab_size, config.d_model) == (16_000, 1_024)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (4, 4)
    assert (config.d_ff, config.num_heads) == (2_048, 8)  # unchanged, as the batches
    assert (config.dropout_rate, config.attention_dropout_rate) == (0.2, 0.2)  # tensor2tensor's
    assert (paper.tokens_per_batch, paper.steps, paper.label_smoothing) == (30_000, 100_000, 0.1)
