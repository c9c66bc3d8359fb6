"""Scores: sacreBLEU's figures, by hand where that is possible."""

import importlib.metadata
import importlib.util
import math

import pytest
import sacrebleu

from keras_transformer.errors import InputError
from keras_transformer.trainers.scoring.scores import (
    bleu_tokenizer,
    compare,
    multimodal_form,
    paper_form,
    score,
)

HYPOTHESES = ["The dog, it barks!", "a b c d", "Ein Hund bellt."]
REFERENCES = ["The dog barks.", "a b c d e f", "ein Hund bellt."]
PROTOCOLS = ("bleu", "bleu_lowercased", "bleu_multimodal", "bleu_paper", "chrf")


def values(scores):
    measured = {name: getattr(scores, name) for name in PROTOCOLS}
    return {name: score.value for name, score in measured.items() if score is not None}


def geometric_mean(*precisions):
    return 100 * math.prod(precisions) ** (1 / len(precisions))


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


def test_score_by_hand():
    # All n-grams of the hypothesis match; it has 4 words of 6: the brevity penalty is e^(1 - 6/4).
    scores = values(score(["a b c d"], ["a b c d e f"], "fr"))
    for name in PROTOCOLS[:4]:
        assert scores[name] == pytest.approx(100 * math.exp(-0.5)), name


def test_only_the_paper_splits_compounds_and_only_german_ones():
    hypotheses = ["wir sehen den alten Fußball-Platz von hier"]
    references = ["wir sehen den alten Fußball-Verein von hier"]
    # The fifth of 7 words is wrong, and so are 1, 2, 3 and 3 of the n-grams.
    joined = pytest.approx(geometric_mean(6 / 7, 4 / 6, 2 / 5, 1 / 4))
    # The seventh of 9 is.
    split = pytest.approx(geometric_mean(8 / 9, 6 / 8, 4 / 7, 3 / 6))
    for language, expected in {"de": split, "fr": joined}.items():
        scores = values(score(hypotheses, references, language))
        assert scores["bleu_paper"] == expected
        assert scores["bleu"] == scores["bleu_lowercased"] == joined
        assert scores["bleu_multimodal"] == joined


@pytest.mark.parametrize(
    ("hypothesis", "reference", "same"),
    [
        ("er rief \u201dja\u201c und ging", 'er rief "ja" und ging', {"multimodal", "paper"}),
        ("eins\uff0czwei und drei", "eins,zwei und drei", {"paper"}),
        ("er rief «ja» und ging", 'er rief "ja" und ging', {"multimodal"}),
    ],
)
def test_punctuation_that_a_protocol_normalises(hypothesis, reference, same):
    scores = values(score([hypothesis], [reference], "de"))
    for name in ("bleu", "bleu_multimodal", "bleu_paper"):
        assert (scores[name] > 99.9) == (name.removeprefix("bleu_") in same), name


def test_tokenized_references():
    options = {"language": "de", "tokenized_references": ["a dog , it is here"]}
    scores = values(score(["A dog, it is here"], ["other words than in these tokens"], **options))
    assert scores.pop("bleu_multimodal") == pytest.approx(100)
    assert max(scores.values()) < 20


@pytest.mark.parametrize("installed", [False, True])
def test_the_tokenizer_is_the_languages(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: installed or None)
    expected = {
        "zh": ("zh", "zh-CN", "zh_Hant_TW", "zho", "cmn"),
        "ja-mecab" if installed else "char": ("ja", "ja_JP", "jpn"),
        "ko-mecab" if installed else "char": ("ko", "ko-KR", "kor"),
        "13a": ("en", "de", "fr", "cs", "vi", "ar", "hi"),
    }
    for tokenizer, languages in expected.items():
        assert {bleu_tokenizer(language) for language in languages} == {tokenizer}
    assert {bleu_tokenizer(language) for language in ("th", "lo", "khm", "my-MM")} == {"char"}


@pytest.mark.parametrize("language", ["ja", "zh-CN", "th"])
def test_languages_without_spaces(monkeypatch, language):
    """By hand: of 9 characters the 8th is wrong, and so are 1, 2, 3 and 4 n-grams."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    hypothesis, references = "我喜欢大的黑色猫。", ["我喜欢大的黑色狗。"]
    found = score([hypothesis], references, language)
    assert found.bleu.value == pytest.approx(geometric_mean(8 / 9, 6 / 8, 5 / 7, 4 / 6))
    assert f"|tok:{found.tokenize}|" in found.bleu.signature
    assert score([hypothesis], references, language, tokenize="13a").bleu.value == 0
    assert compare(["我"], [hypothesis], references, tokenize=found.tokenize).baseline == (
        pytest.approx(found.bleu.value),
        found.bleu.signature.replace("nrefs:1|", "nrefs:1|bs:1000|seed:12345|"),
    )


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
    """As its Perl scripts print them."""
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
    given = score(HYPOTHESES, REFERENCES, "de", REFERENCES, source_language="fr")
    assert given.bleu_multimodal.signature.endswith("|refs:given")
    assert given.bleu_paper is None  # it has no figure for French to German


SENTENCES = [f"the dog number {number} sees a red cat" for number in range(31)]
HALF_WRONG = [text if number % 2 else "a b" for number, text in enumerate(SENTENCES)]


@pytest.mark.parametrize("is_better", [True, False])
def test_comparison(is_better):
    this, other = (SENTENCES, HALF_WRONG) if is_better else (HALF_WRONG, SENTENCES)
    comparison = compare(this, other, SENTENCES)
    assert comparison.p_value < 0.01
    assert comparison.baseline.value == sacrebleu.corpus_bleu(other, [SENTENCES]).score
    assert comparison.baseline.signature.startswith("nrefs:1|bs:1000|seed:12345|case:mixed|")
    assert compare(this, list(this), SENTENCES).p_value == 1
    capitals = [text.upper() for text in this]
    assert compare(this, capitals, SENTENCES, lowercase=True).p_value == 1
    with pytest.raises(InputError, match="`baseline` must have 31"):
        compare(this, other[:-1], SENTENCES)
