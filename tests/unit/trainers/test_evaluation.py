import json
import math

import pytest
import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.evaluation import evaluate, one_line, score
from keras_transformer.trainers.grammar import Pair
from keras_transformer.translator import Translation

HYPOTHESES = ["The dog, it barks!", "a b c d", "Ein Hund bellt."]
REFERENCES = ["The dog barks.", "a b c d e f", "ein Hund bellt."]


class Answers:
    """A translator that has its answers."""

    def __init__(self, answers):
        self.answers = answers

    def translate(self, texts, progress, **options):
        self.options = options
        progress(1)
        progress(len(texts) - 1)
        return [Translation(self.answers[text], -1.0, False, ()) for text in texts]


def test_score_is_sacrebleus():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < scores.bleu < 100
    assert 0 < scores.chrf < 100
    assert scores.num_pairs == 3


def test_perfect_score():
    scores = score(REFERENCES, REFERENCES)
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)


def test_score_by_hand():
    # All n-grams of the hypothesis match; it has 4 words of 6: the brevity penalty is e^(1 - 6/4).
    scores = score(["a b c d"], ["a b c d e f"])
    assert scores.bleu == pytest.approx(100 * math.exp(-0.5))


def test_score_is_cased():
    assert score(["the dog is here now"], ["THE DOG IS HERE NOW"]).bleu < 10


def test_signatures_tell_the_settings():
    scores = score(HYPOTHESES, REFERENCES)
    bleu, chrf = scores.bleu_signature.split("|"), scores.chrf_signature.split("|")
    version = f"version:{sacrebleu.__version__}"
    assert {"nrefs:1", "case:mixed", "tok:13a", "smooth:exp", version} <= set(bleu)
    assert {"nrefs:1", "case:mixed", "nc:6", "nw:0", version} <= set(chrf)


def test_files_lie_side_by_side(tmp_path):
    answers = {"ein Hund": "a\ndog\u2028here", "öl": "", "zwei Öle": " two oils"}
    references = ["a dog here", "oil", "two oils"]
    translator, progress = Answers(answers), []
    scores = evaluate(
        translator,
        map(Pair, answers, references),
        tmp_path / "new" / "test.de",
        beam_size=3,
        alpha=0.7,
        batch_size=2,
        progress=lambda *counts: progress.append(counts),
    )
    assert translator.options == {"beam_size": 3, "alpha": 0.7, "batch_size": 2}
    assert progress == [(1, 3), (2, 3)]
    expected = {
        "source": ["ein Hund", "öl", "zwei Öle"],
        "reference": references,
        "hypothesis": ["a dog here", "", " two oils"],
    }
    for name, lines in expected.items():
        file = tmp_path / "new" / f"test.de.{name}"
        assert file.read_bytes().decode() == "".join(f"{line}\n" for line in lines)
    assert scores == score(expected["hypothesis"], references)
    assert json.loads((tmp_path / "new" / "test.de.scores.json").read_text()) == {
        "bleu": scores.bleu,
        "bleu_signature": scores.bleu_signature,
        "chrf": scores.chrf,
        "chrf_signature": scores.chrf_signature,
        "num_pairs": 3,
        "beam_size": 3,
        "alpha": 0.7,
    }


def test_line_breaks_inside_a_corpus_keep_the_files_side_by_side(tmp_path):
    pairs = [Pair("zwei\nZeilen", "two\nlines"), Pair("eine", "one")]
    evaluate(Answers({"zwei\nZeilen": "two lines", "eine": "one"}), pairs, tmp_path / "test")
    for name in ("source", "reference", "hypothesis"):
        assert (tmp_path / f"test.{name}").read_text().count("\n") == 2, name


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"Cannot write .*/file: "):
        evaluate(Answers({"eins": "one"}), [Pair("eins", "one")], tmp_path / "file" / "test")


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\u2028", "\x85"])
def test_one_line(line_break):
    assert one_line(f"a{line_break}b") == "a b"
