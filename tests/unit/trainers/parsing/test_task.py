"""The task of a parser, by what the trainers ask of any task."""

import json
from types import SimpleNamespace

import pytest

from keras_transformer.config import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.scoring.evaluation import evaluate
from keras_transformer.trainers.tasks import find_task

PAIRS = [Pair("John sleeps", "S NP NNP /NP VP VBZ /VP /S"), Pair("Oh", "UH"), Pair("No", "UH")]
TREES = ["(S (NP (NNP John)) (VBZ sleeps))", "(UH Oh)", "(UH oh)"]


class Answers:
    """A parser that has its answers."""

    def translate(self, texts, **options):
        return [SimpleNamespace(text=tree) for tree in TREES]

    def decoding_options(self, *_, **options):
        return DecodingOptions()


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
        == {
            "value": pytest.approx(80),
            "signature": "EVALB|prm:COLLINS",
        }
    )
    assert (written["num_pairs"], written["num_errors"], written["beam_size"]) == (3, 1, 4)
    task = find_task("parsing")
    assert task.labels.keys() <= written.keys()
    assert "1 trees whose words differ" in task.remark(written)
    (score,) = task.validation_scorers(None, lowercase=False).values()
    assert score(TREES, PAIRS) == scores.f1_all


def test_what_is_for_translations_is_refused(tmp_path):
    with pytest.raises(InputError, match="task parsing has no tokenize"):
        evaluate(Answers(), PAIRS, tmp_path / "x", "trees", task="parsing", tokenize="13a")
    assert not list(tmp_path.iterdir())
