"""Validation: what it measures, and which checkpoint it makes the best."""

import dataclasses
import logging
from types import SimpleNamespace

import pytest
import sacrebleu

from keras_transformer.checkpoints import quality
from keras_transformer.errors import InputError, NotFiniteError
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.fitting.validation import validation_scores
from keras_transformer.trainers.scoring.scores import bleu_tokenizer
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator

pytestmark = pytest.mark.usefixtures("eager")

JAPANESE = {"one": "私は一匹の犬が好き", "two": "私は二匹の猫が好き", "red": "あなたは赤い犬が好き"}
RIGHT, CLOSE, WRONG = (lambda text: text), (lambda text: text[:5] + "魚"), (lambda text: "x")


@pytest.fixture(scope="module")
def settings(tiny_settings, tmp_path_factory):
    """Settings of a corpus whose target language has no spaces; a validation after each update."""
    folder = tmp_path_factory.mktemp("japanese")
    for split, copies in {"train": 20, "val": 2}.items():
        for language, texts in {"en": JAPANESE, "ja": JAPANESE.values()}.items():
            (folder / f"{language}.{split}.txt").write_text("\n".join([*texts] * copies) + "\n")
    return dataclasses.replace(
        tiny_settings,
        data=str(folder),
        target="ja",
        vocab_size=None,
        steps=3,
        steps_per_validation=1,
        bleu_sentences=3,
    )


@pytest.fixture
def answers(monkeypatch):
    """Makes each validation's translations the references, changed by the next function.

    Returns the options of each search.
    """

    def use(*changes):
        changes, options = iter(changes), []

        def translate(self, sources, beam_size):
            change = next(changes)
            options.append((self.defaults.extra_length, self.defaults.length_penalty, beam_size))
            return [SimpleNamespace(text=change(JAPANESE[source])) for source in sources]

        monkeypatch.setattr(Translator, "translate", translate)
        return options

    return use


def test_the_best_checkpoint_and_patience(settings, tmp_path, answers):
    """By chrF, which `metric` chooses, of a search with the run's options, greedily."""
    options = answers(WRONG, RIGHT, CLOSE, CLOSE, CLOSE)  # the last one is of the average
    changes = {"metric": "chrf", "patience": 2, "steps": 9, "extra_length": 7}
    changes |= {"length_penalty": 0.3, "keep_checkpoints": 2, "average_last": 2}
    patient = dataclasses.replace(settings, **changes)
    run = train(patient, tmp_path / "run", verbose=0)
    wrong, right, *_, close = [line["val_chrf"] for line in run.metrics()]
    assert wrong == 0
    assert 5 < close < 95
    assert [right, run.metrics()[1]["val_bleu"]] == pytest.approx([100, 100])
    assert (run.best.step, run.last.step, run.status) == (2, 4, "complete")
    assert options == [(7, 0.3, 1)] * 5
    assert run.averaged.metrics["val_chrf"] == close
    assert train(patient, run.path, verbose=0, resume=True).last.step == 4


def test_equal_scores_leave_it_to_the_loss(settings, tmp_path, answers, caplog):
    """As when no validation sentence has a right word; the loss falls with each update."""
    answers(WRONG, WRONG, WRONG)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        run = train(dataclasses.replace(settings, patience=1), tmp_path / "run", verbose=0)
    assert "val_chrf" not in run.metrics()[0]
    losses = [line["val_token_loss"] for line in run.metrics()]
    assert losses == sorted(losses, reverse=True)
    assert run.best.step == 3
    (warning,) = [text for text in caplog.messages if "BLEU" in text]
    assert "--metric chrf" in warning


def translator(translate, lowercase=False):
    tokenizer = SimpleNamespace(lowercase=lowercase)
    return SimpleNamespace(translate=translate, tokenizer=tokenizer)


def test_only_scores_that_are_not_finite_are_left_out():
    def scores(error):
        def translate(sources, beam_size):
            raise error

        return validation_scores(translator(translate), [Pair("a", "b")], TrainSettings(data=""))

    assert scores(NotFiniteError("the loss is not finite either, and is reported")) == {}
    with pytest.raises(InputError, match="another"):
        scores(InputError("another"))


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_ignore_case_where_the_tokenizer_does(lowercase):
    pairs = [Pair("ein hund sieht ihn", "Ein Hund Sieht Ihn")]
    settings = TrainSettings(data="", metric="chrf", bleu_sentences=1)
    echo = translator(
        lambda sources, beam_size: [SimpleNamespace(text=text) for text in sources], lowercase
    )
    scores = validation_scores(echo, pairs, settings)
    for name in ("val_bleu", "val_chrf"):
        assert (scores[name] == pytest.approx(100)) == lowercase


def test_quality():
    assert quality({"val_bleu": 3.0, "val_token_loss": 2.0}) > quality({"val_bleu": 2.9})
    better = {"val_bleu": 3.001, "val_token_loss": 2.0}
    assert quality(better) > quality({"val_bleu": 3.004, "val_token_loss": 2.1})
    assert quality({"val_token_loss": 2.0}) > quality({"val_token_loss": 2.1})
    assert quality({}) == quality({"loss": 2.0})  # no validation
    worse = {"val_bleu": 3.0, "val_token_loss": 2.1}
    assert quality({"val_bleu": 2.0, "val_token_loss": 2.0}, "loss") > quality(worse, "loss")


def test_several_languages_have_scores_of_their_own():
    """sacreBLEU's scores of each pair, by the tokenizer of its language, and their mean."""
    references = {
        "ja": [*JAPANESE.values()],
        "de": ["ein roter Hund ist da", "zwei Katzen sind da"],
    }
    results = {"ja": [CLOSE(text) for text in references["ja"]], "de": [*references["de"][:1], "x"]}
    pairs = [
        Pair(str(number), text, ("en", language))
        for language, texts in references.items()
        for number, text in enumerate(texts)
    ]
    texts = [SimpleNamespace(text=text) for each in results.values() for text in each]
    settings = TrainSettings(data="x", source="en", target="de,ja", metric="chrf", bleu_sentences=3)
    found = validation_scores(translator(lambda *_, **__: texts), pairs, settings)
    for language, tokenize in {"ja": bleu_tokenizer("ja"), "de": "13a"}.items():
        both = results[language], [references[language]]
        bleu = sacrebleu.corpus_bleu(*both, tokenize=tokenize, force=True).score
        assert found[f"val_bleu_en-{language}"] == pytest.approx(bleu)
        assert found[f"val_chrf_en-{language}"] == pytest.approx(sacrebleu.corpus_chrf(*both).score)
    for name in ("val_bleu", "val_chrf"):
        assert found[name] == pytest.approx((found[f"{name}_en-ja"] + found[f"{name}_en-de"]) / 2)
    assert min(found.values()) > 10
    assert next(iter(found)) == "val_bleu"  # decides, without `metric`
