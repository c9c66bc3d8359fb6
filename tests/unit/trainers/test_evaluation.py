import importlib.metadata
import json
import math
import re

import pytest
import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.evaluation import (
    Score,
    compare,
    evaluate,
    load_test_set,
    multimodal_form,
    one_line,
    paper_form,
    read_sentences,
    score,
)
from keras_transformer.trainers.grammar import Pair
from keras_transformer.translator import DecodingOptions, Translation

HYPOTHESES = ["The dog, it barks!", "a b c d", "Ein Hund bellt."]
REFERENCES = ["The dog barks.", "a b c d e f", "ein Hund bellt."]
PROTOCOLS = ("bleu", "bleu_lowercased", "bleu_multimodal", "bleu_paper", "chrf")


class Answers:
    """A translator that has its answers."""

    def __init__(self, answers):
        self.answers = answers

    def translate(self, texts, progress, **options):
        self.options = options
        progress(1)
        progress(len(texts) - 1)
        return [Translation(self.answers[text], -1.0, False, ()) for text in texts]

    def decoding_options(self, beam_size, alpha):
        return DecodingOptions(beam_size=beam_size or 5, alpha=alpha or 0.9)


def values(scores):
    return {name: getattr(scores, name).value for name in PROTOCOLS}


def geometric_mean(*precisions):
    return 100 * math.prod(precisions) ** (1 / len(precisions))


# Scores.


def test_score_is_sacrebleus():
    scores = score(HYPOTHESES, REFERENCES, "de")
    assert scores.bleu.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.bleu_lowercased.value == (
        sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=True).score
    )
    assert scores.chrf.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < scores.bleu.value < scores.bleu_lowercased.value < 100
    assert 0 < scores.chrf.value < 100
    assert scores.num_pairs == 3


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs"])
def test_perfect_scores(language):
    references = [*REFERENCES, "\u201eJa-Wort\u201c & <s> | l'eau"]
    assert values(score(references, references, language)) == pytest.approx(
        dict.fromkeys(PROTOCOLS, 100)
    )


def test_score_by_hand():
    # All n-grams of the hypothesis match; it has 4 words of 6: the brevity penalty is e^(1 - 6/4).
    scores = values(score(["a b c d"], ["a b c d e f"], "en"))
    for name in PROTOCOLS[:4]:
        assert scores[name] == pytest.approx(100 * math.exp(-0.5)), name


def test_case():
    scores = values(score(["the dog is here now"], ["THE DOG IS HERE NOW"], "de"))
    assert scores["bleu_lowercased"] == scores["bleu_multimodal"] == pytest.approx(100)
    assert max(scores["bleu"], scores["bleu_paper"], scores["chrf"]) < 10


def test_only_the_paper_splits_compounds_and_only_german_ones():
    hypotheses = ["wir sehen den alten Fußball-Platz von hier"]
    references = ["wir sehen den alten Fußball-Verein von hier"]
    # The fifth of 7 words is wrong, and so are 1, 2, 3 and 3 of the n-grams.
    whole = pytest.approx(geometric_mean(6 / 7, 4 / 6, 2 / 5, 1 / 4))
    # The seventh of 9 is.
    split = pytest.approx(geometric_mean(8 / 9, 6 / 8, 4 / 7, 3 / 6))
    for language, expected in {"de": split, "fr": whole, "en": whole}.items():
        scores = values(score(hypotheses, references, language))
        assert scores["bleu_paper"] == expected
        assert scores["bleu"] == scores["bleu_lowercased"] == whole
        assert scores["bleu_multimodal"] == whole


def test_typographic_quotes():
    scores = values(score(["er rief \u201dja\u201c und ging"], ['er rief "ja" und ging'], "de"))
    assert scores["bleu_multimodal"] == scores["bleu_paper"] == pytest.approx(100)
    assert max(scores["bleu"], scores["bleu_lowercased"], scores["chrf"]) < 90


def test_full_width_punctuation_is_the_papers_alone():
    scores = values(score(["eins\uff0czwei und drei"], ["eins,zwei und drei"], "de"))
    assert scores["bleu_paper"] == pytest.approx(100)
    assert max(scores["bleu_multimodal"], scores["bleu"], scores["chrf"]) < 95


def test_guillemets_are_the_multimodal_papers_alone():
    scores = values(score(["er rief «ja» und ging"], ['er rief "ja" und ging'], "de"))
    assert scores["bleu_multimodal"] == pytest.approx(100)
    assert max(scores["bleu_paper"], scores["bleu"]) < 90


def test_tokenized_references():
    options = {"language": "de", "tokenized_references": ["a dog , it is here"]}
    scores = values(score(["A dog, it is here"], ["other words than in these tokens"], **options))
    assert scores.pop("bleu_multimodal") == pytest.approx(100)
    assert max(scores.values()) < 20


# Moses's forms, as its Perl scripts print them.


@pytest.mark.parametrize(
    ("text", "multimodal", "paper"),
    [
        ("A-b, cd!", "a-b , cd !", "A-b , cd !"),
        (
            'Tom\'s & "co" <b> [c] |',
            "tom &apos;s &amp; &quot; co &quot; &lt; b &gt; &#91; c &#93; &#124;",
            "Tom &apos;s &amp; &quot; co &quot; &lt; b &gt; &#91; c &#93; &#124;",
        ),
        ("l\u2019 eau \u2026 \u2013 2", "l &apos; eau ... - 2", "l &apos; eau ... \u2013 2"),
    ],
)
def test_moses(text, multimodal, paper):
    assert multimodal_form([text], "en") == [multimodal]
    assert paper_form([text], "en") == [paper]


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("Fußball-Platz", "Fußball ##AT##-##AT## Platz"),
        ("1990-95", "1990 ##AT##-##AT## 95"),
        ("Ost-West-Achse", "Ost ##AT##-##AT## West ##AT##-##AT## Achse"),
        ("Haupt- und x - y -z", "Haupt- und x - y -z"),
    ],
)
def test_compounds(text, split):
    assert paper_form([text], "de") == [split]
    assert paper_form([text], "en") == [text]


# Signatures.


def test_signatures_tell_the_settings():
    scores = score(HYPOTHESES, REFERENCES, "de")
    common = {"nrefs:1", f"version:{sacrebleu.__version__}"}
    moses = {f"sacremoses:{importlib.metadata.version('sacremoses')}", "lang:de", "tok:none"}
    for name, expected in {
        "bleu": {"case:mixed", "tok:13a", "smooth:exp"},
        "bleu_lowercased": {"case:lc", "tok:13a", "smooth:exp"},
        "bleu_multimodal": moses | {"punct:normalised", "text:lc", "refs:prepared", "smooth:exp"},
        "bleu_paper": moses | {"case:mixed", "punct:ascii", "compounds:split", "smooth:exp"},
        "chrf": {"case:mixed", "nc:6", "nw:0"},
    }.items():
        signature = getattr(scores, name).signature.split("|")
        assert common | expected <= set(signature), name
        assert len(signature) == len(set(signature))
    given = score(HYPOTHESES, REFERENCES, "de", tokenized_references=REFERENCES)
    assert given.bleu_multimodal.signature.endswith("|refs:given")


def test_signatures_differ():
    scores = score(HYPOTHESES, REFERENCES, "de")
    assert len({getattr(scores, name).signature for name in PROTOCOLS}) == 5
    french = score(HYPOTHESES, REFERENCES, "fr").bleu_paper.signature
    assert "lang:fr" in french
    assert "compounds" not in french


# Two systems.

SENTENCES = [f"the dog number {number} sees a red cat" for number in range(31)]
HALF_WRONG = [text if number % 2 else "a b" for number, text in enumerate(SENTENCES)]


def test_identical_systems_do_not_differ():
    comparison = compare(HALF_WRONG, list(HALF_WRONG), SENTENCES)
    assert comparison.baseline.value == sacrebleu.corpus_bleu(HALF_WRONG, [SENTENCES]).score
    assert comparison.p_value > 0.5


def test_as_good_on_other_sentences():
    other = [text if number % 2 else "a b" for number, text in enumerate(SENTENCES[:30])]
    mirrored = [text if number % 2 == 0 else "a b" for number, text in enumerate(SENTENCES[:30])]
    assert compare(other, mirrored, SENTENCES[:30]).p_value > 0.2


@pytest.mark.parametrize("is_better", [True, False])
def test_clearly_different(is_better):
    this, other = (SENTENCES, HALF_WRONG) if is_better else (HALF_WRONG, SENTENCES)
    comparison = compare(this, other, SENTENCES)
    assert comparison.p_value < 0.01
    assert comparison.baseline.value == sacrebleu.corpus_bleu(other, [SENTENCES]).score
    assert comparison.baseline.signature.startswith("nrefs:1|bs:1000|seed:12345|case:mixed|")


def test_systems_without_case():
    capitals = [text.upper() for text in SENTENCES]
    assert compare(SENTENCES, capitals, SENTENCES).p_value < 0.01
    comparison = compare(SENTENCES, capitals, SENTENCES, lowercase=True)
    assert comparison.baseline.value == pytest.approx(100)
    assert "|case:lc|" in comparison.baseline.signature
    assert comparison.p_value == 1


def test_baseline_of_another_length():
    message = "^The baseline must have a line for each of the 31 references. Received: 29 lines$"
    with pytest.raises(InputError, match=message):
        compare(SENTENCES, SENTENCES[:29], SENTENCES)


# Test sets.


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """A test set of two pairs in place of sacreBLEU's; returns what was asked for."""
    asked = []

    def file(name, content):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return lambda *args: asked.append(args) or str(path)

    source, target = file("source", "a dog\nö\u2028l\n"), file("target", "ein Hund\n\n")
    monkeypatch.setattr(sacrebleu, "get_source_file", source)
    monkeypatch.setattr(sacrebleu, "get_reference_files", lambda *args: [target(*args), "other"])
    return asked


def test_test_set(downloads):
    assert load_test_set("wmt14/full", "en", "de") == [
        Pair("a dog", "ein Hund"),
        Pair("ö\u2028l", ""),
    ]
    assert downloads == [("wmt14/full", "en-de")] * 2


def test_unknown_test_set():
    message = (
        "^sacreBLEU has no test set 'wmt99'. There are, for example: wmt14/full, wmt16, wmt20, "
        "iwslt17, multi30k/2016$"
    )
    with pytest.raises(InputError, match=message):
        load_test_set("wmt99", "en", "de")


@pytest.mark.parametrize("name", ["wmt14/full", "wmt16", "wmt20", "iwslt17", "multi30k/2016"])
def test_test_sets_of_the_message_exist(name, downloads):
    assert load_test_set(name, "en", "de")


def test_languages_of_a_test_set():
    with pytest.raises(InputError, match=r"^The test set wmt14/full holds .*en-de.*: en-tlh$"):
        load_test_set("wmt14/full", "en", "tlh")


@pytest.mark.parametrize(
    "error", [SystemExit(1), OSError("no route"), ConnectionError("no route"), KeyError("no route")]
)
def test_no_network(monkeypatch, error):
    def download(*args):
        raise error

    monkeypatch.setattr(sacrebleu, "get_source_file", download)
    why = (
        ", for the reason that it gives above" if isinstance(error, SystemExit) else ": .*no route"
    )
    message = f"^sacreBLEU cannot download the test set wmt14/full{why}"
    with pytest.raises(InputError, match=message):
        load_test_set("wmt14/full", "en", "de")


def test_half_a_test_set(downloads, tmp_path):
    """As a call leaves it that was killed while sacreBLEU wrote the text."""
    (tmp_path / "target").write_text("ein Hund\n")
    message = f"{tmp_path}/source and {tmp_path}/target must have as many lines .*: delete them"
    with pytest.raises(InputError, match=message):
        load_test_set("wmt14/full", "en", "de")


# Files of sentences.


def test_sentences(tmp_path):
    path = tmp_path / "refs"
    path.write_text("\ufeffa\u2028b\rc\n\n c\n", encoding="utf-8", newline="\n")
    assert read_sentences(path, 3) == ["a\u2028b\rc", "", " c"]
    message = f"^{re.escape(str(path))} must have 5 lines. Received: 3 lines$"
    with pytest.raises(InputError, match=message):
        read_sentences(path, 5)


def test_sentences_that_cannot_be_read(tmp_path):
    path = tmp_path / "refs"
    with pytest.raises(InputError, match=f"^Cannot read {path}: No such file or directory$"):
        read_sentences(path, 3)
    path.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=f"^{path}, line 1: not valid UTF-8$"):
        read_sentences(path, 1)


# Evaluation.


def test_files_lie_side_by_side(tmp_path):
    answers = {"ein Hund": "a\ndog\u2028here", "öl": "", "zwei Öle": " two oils"}
    references = ["a dog here", "oil", "two oils"]
    translator, progress = Answers(answers), []
    scores = evaluate(
        translator,
        map(Pair, answers, references),
        tmp_path / "new" / "test.de",
        "en",
        beam_size=3,
        alpha=0.7,
        batch_size=2,
        notes={"checkpoint": "averaged"},
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
    assert scores == score(expected["hypothesis"], references, "en")
    written = json.loads((tmp_path / "new" / "test.de.scores.json").read_text())
    assert {name: Score(**written.pop(name)) for name in PROTOCOLS} == {
        name: getattr(scores, name) for name in PROTOCOLS
    }
    assert written == {"num_pairs": 3, "checkpoint": "averaged", "beam_size": 3, "alpha": 0.7}


def test_default_options_are_written(tmp_path):
    evaluate(Answers({"eins": "one"}), [Pair("eins", "one")], tmp_path / "test", "en")
    written = json.loads((tmp_path / "test.scores.json").read_text())
    assert (written["beam_size"], written["alpha"]) == (5, 0.9)


def test_tokenized_references_are_a_file(tmp_path):
    (tmp_path / "refs").write_text("one dog , it is\n")
    scores = evaluate(
        Answers({"eins": "One dog, it is"}),
        [Pair("eins", "no words in common")],
        tmp_path / "test",
        "en",
        tokenized_references=tmp_path / "refs",
    )
    assert scores.bleu_multimodal.value == pytest.approx(100)
    assert scores.bleu.value < 20


def test_tokenized_references_of_another_length(tmp_path):
    path = tmp_path / "refs"
    path.write_text("one\ntwo\nthree\n")
    message = f"^{re.escape(str(path))} must have 2 lines. Received: 3 lines$"
    translator = Answers({})  # is not asked
    with pytest.raises(InputError, match=message):
        evaluate(
            translator,
            [Pair("eins", "one"), Pair("zwei", "two")],
            tmp_path / "new" / "test",
            "en",
            tokenized_references=path,
        )
    assert not (tmp_path / "new").exists()


def test_line_breaks_inside_a_corpus_keep_the_files_side_by_side(tmp_path):
    pairs = [Pair("zwei\nZeilen", "two\nlines"), Pair("eine", "one")]
    evaluate(Answers({"zwei\nZeilen": "two lines", "eine": "one"}), pairs, tmp_path / "test", "en")
    for name in ("source", "reference", "hypothesis"):
        assert (tmp_path / f"test.{name}").read_text().count("\n") == 2, name


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    """It is known before anything is translated."""
    (tmp_path / "test.trial.tmp").mkdir()
    for output in ("file/test", "test"):
        with pytest.raises(InputError, match=f"Cannot write .*/{output}.hypothesis: "):
            evaluate(Answers({}), [Pair("eins", "one")], tmp_path / output, "en")


def test_nothing_to_evaluate(tmp_path):
    with pytest.raises(InputError, match=r"`pairs` must hold a sentence pair\. Received: none"):
        evaluate(Answers({}), [], tmp_path / "test", "en")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\u2028", "\x85"])
def test_one_line(line_break):
    assert one_line(f"a{line_break}b") == "a b"
