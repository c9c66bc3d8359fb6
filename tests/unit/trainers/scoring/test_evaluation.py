"""Evaluation: test sets, and the files that it writes."""

import json
import re
import sys

import pytest
import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.scoring.evaluation import (
    evaluate,
    load_test_set,
    read_evaluations,
    read_scores,
    read_sentences,
)
from keras_transformer.trainers.scoring.scores import Score, score
from keras_transformer.translator import DecodingOptions, Translation

PROTOCOLS = ("bleu", "bleu_lowercased", "bleu_multimodal", "bleu_paper", "chrf")


class Answers:
    """A translator that has its answers."""

    def __init__(self, answers):
        self.answers = answers
        self.defaults = DecodingOptions(beam_size=3, length_penalty=0.7, no_repeat_ngram=4)

    def translate(self, texts, progress, **options):
        self.options = options
        progress(1)
        progress(len(texts) - 1)
        return [Translation(self.answers[text], -1.0, "öl" in text, ()) for text in texts]


def test_test_set(tmp_path, monkeypatch):
    """Two pairs instead of sacreBLEU's."""
    for name, content in {"source": "a dog\nö\u2028l\n", "en-de": "ein Hund\n\n"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    source, references = tmp_path / "source", lambda name, languages: [tmp_path / languages, "x"]
    monkeypatch.setattr(sacrebleu, "get_source_file", lambda *_: source)
    monkeypatch.setattr(sacrebleu, "get_reference_files", references)
    expected = [Pair("a dog", "ein Hund"), Pair("ö\u2028l", "")]
    assert load_test_set("wmt14/full", "en", "de") == expected


def test_no_test_set(monkeypatch):
    for name, target in (("wmt99", "de"), ("wmt14/full", "xx")):
        with pytest.raises(InputError, match=f"no test set '{name}' of en-{target}.*wmt14/full"):
            load_test_set(name, "en", target)
    monkeypatch.setattr(sacrebleu, "get_source_file", lambda *_: sys.exit(1))
    with pytest.raises(InputError, match=r"cannot download wmt14/full: SystemExit"):
        load_test_set("wmt14/full", "en", "de")


def test_sentences(tmp_path):
    path = tmp_path / "refs"
    path.write_text("\ufeffa\u2028b\rc\n\n c\n", encoding="utf-8", newline="\n")
    assert read_sentences(path, 3) == ["a\u2028b\rc", "", " c"]
    message = f"^{re.escape(str(path))} must have 5 lines. Received: 3 lines$"
    with pytest.raises(InputError, match=message):
        read_sentences(path, 5)


def test_files_lie_side_by_side(tmp_path, caplog):
    answers = {"ein Hund": "a\ndog\u2028here", "öl": "", "zwei Öle": " two oils"}
    references = ["a dog here", "oil", "two oils"]
    translator, progress = Answers(answers), []
    scores = evaluate(
        translator,
        map(Pair, answers, references),
        tmp_path / "new" / "test.de",
        "en",
        notes={"checkpoint": "averaged"},
        progress=lambda *counts: progress.append(counts),
    )
    assert progress == [(1, 3), (2, 3)]
    assert "test.de: the end of 1 sources was too long" in caplog.text
    expected = {
        "source": ["ein Hund", "öl", "zwei Öle"],
        "reference": references,
        "hypothesis": ["a dog here", "", " two oils"],
    }
    for name, lines in expected.items():
        file = tmp_path / "new" / f"test.de.{name}"
        assert file.read_bytes().decode() == "".join(f"{line}\n" for line in lines)
    assert scores == score(expected["hypothesis"], references, "en")
    written = json.loads((tmp_path / "new" / "test.de.scores.json").read_text())
    for name in PROTOCOLS:
        value = written.pop(name)
        assert getattr(scores, name) == (value and Score(**value))
    assert written == {
        "num_pairs": 3,
        "tokenize": "13a",
        "checkpoint": "averaged",
        "beam_size": 3,
        "length_penalty": 0.7,
        "length_penalty_kind": "gnmt",
        "early_stopping": "exact",
        "extra_length": 50,
        "max_source_length": 512,
        "no_repeat_ngram": 4,
        "sample_from": None,
        "temperature": 1.0,
        "sample_seed": 0,
    }


def test_a_pair_that_names_its_languages_asks_for_them(tmp_path):
    pair = Pair("ein Hund", "un chien", ("de", "fr"))
    translator = Answers({">>de:fr<< ein Hund": "un chien"})
    scores = evaluate(translator, [pair], tmp_path / "test", "fr")
    assert scores.chrf.value == 100
    assert (tmp_path / "test.source").read_text() == "ein Hund\n"


def test_what_fails_does_so_before_the_work(tmp_path):
    pairs, translator = [Pair("eins", "one")], Answers({})  # is not asked
    with pytest.raises(InputError, match="`tokenize` must be one of"):
        evaluate(translator, pairs, tmp_path / "new" / "test", "en", tokenize="words")
    with pytest.raises(InputError, match=r"`pairs` must hold a sentence pair\. Received: none"):
        evaluate(translator, [], tmp_path / "new" / "test", "en")
    assert not list(tmp_path.iterdir())


def test_what_is_read_is_what_was_written(tmp_path):
    for name in ("val", "test"):
        evaluate(Answers({"a": "b"}), [Pair("a", name)], tmp_path / name, "zh")
    test, val = read_evaluations(tmp_path)
    assert (test.name, val.name) == ("test", "val")
    assert test.scores["tokenize"] == "zh"
    assert (test.sources, test.references, test.hypotheses) == (["a"], ["test"], ["b"])
    (tmp_path / "val.hypothesis").unlink()
    assert read_scores(tmp_path) == {"test": test.scores, "val": val.scores}
    (tmp_path / "val.scores.json").write_text("{")
    with pytest.raises(InputError, match=r"val\.scores\.json is damaged"):
        read_scores(tmp_path)
