"""Validation: what it measures, and which checkpoint it makes the best."""

import dataclasses
import logging
from types import SimpleNamespace

import pytest

from keras_transformer.checkpoints import quality
from keras_transformer.errors import InputError, NotFiniteError
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.fitting.callbacks import ValidationScores
from keras_transformer.trainers.fitting.training import train
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


def answers(monkeypatch, *changes):
    """Makes each validation's translations the references, changed by the next function."""
    changes = iter(changes)

    def translate(self, sources, beam_size):
        change = next(changes)
        return [SimpleNamespace(text=change(JAPANESE[source])) for source in sources]

    monkeypatch.setattr(Translator, "translate", translate)


def test_the_best_checkpoint_without_spaces(settings, tmp_path, monkeypatch):
    answers(monkeypatch, WRONG, RIGHT, CLOSE)
    run = train(settings, tmp_path / "run", verbose=0)
    wrong, right, close = [line["val_bleu"] for line in run.metrics()]
    assert wrong == 0
    assert 5 < close < 95
    assert right == pytest.approx(100)
    assert run.best.step == 2
    assert "val_chrf" not in run.metrics()[0]


def test_equal_scores_leave_it_to_the_loss(settings, tmp_path, monkeypatch, caplog):
    """As when no validation sentence has a right word; the loss falls with each update."""
    answers(monkeypatch, WRONG, WRONG, WRONG)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        run = train(dataclasses.replace(settings, patience=1), tmp_path / "run", verbose=0)
    losses = [line["val_token_loss"] for line in run.metrics()]
    assert losses == sorted(losses, reverse=True)
    assert run.best.step == 3
    (warning,) = [text for text in caplog.messages if "BLEU" in text]
    assert "--metric chrf" in warning


def test_what_chooses_is_a_setting(settings, tmp_path, monkeypatch):
    answers(monkeypatch, RIGHT, CLOSE, WRONG)
    run = train(dataclasses.replace(settings, metric="chrf"), tmp_path / "run", verbose=0)
    assert run.best.step == 1
    assert ["val_chrf" in line for line in run.metrics()] == [True] * 3


def test_searches_as_the_run_does(settings, tmp_path, monkeypatch):
    """The options of the search are the settings', for the checkpoints and the average."""
    found = []

    def translate(self, sources, beam_size):
        found.append((self.defaults.extra_length, self.defaults.length_penalty, beam_size))
        return [SimpleNamespace(text="x") for _ in sources]

    monkeypatch.setattr(Translator, "translate", translate)
    changes = {"extra_length": 7, "length_penalty": 0.3, "steps": 2}
    averages = {"keep_checkpoints": 2, "average_last": 2}
    train(dataclasses.replace(settings, **changes, **averages), tmp_path / "run", verbose=0)
    assert found == [(7, 0.3, 1)] * 3


def test_only_scores_that_are_not_finite_are_left_out():
    def fail(error):
        def translate(sources, beam_size):
            raise error

        translator = SimpleNamespace(translate=translate)
        ValidationScores(translator, [Pair("a", "b")], settings=None).on_epoch_end(0, {})

    fail(NotFiniteError("the loss is not finite either, and is reported"))
    with pytest.raises(InputError, match="another"):
        fail(InputError("another"))


def test_quality():
    assert quality({"val_bleu": 3.0, "val_token_loss": 2.0}) > quality({"val_bleu": 2.9})
    better = {"val_bleu": 3.001, "val_token_loss": 2.0}
    assert quality(better) > quality({"val_bleu": 3.004, "val_token_loss": 2.1})
    assert quality({"val_token_loss": 2.0}) > quality({"val_token_loss": 2.1})
    assert quality({}) == quality({"loss": 2.0})  # no validation
    worse = {"val_bleu": 3.0, "val_token_loss": 2.1}
    assert quality({"val_bleu": 2.0, "val_token_loss": 2.0}, "loss") > quality(worse, "loss")


def test_scores_ignore_case_where_the_tokenizer_does():
    for lowercase in (False, True):
        translator = SimpleNamespace(
            translate=lambda sources, beam_size: [SimpleNamespace(text=text) for text in sources],
            tokenizer=SimpleNamespace(lowercase=lowercase),
        )
        pairs, logs = [Pair("ein hund sieht ihn", "Ein Hund Sieht Ihn")], {}
        settings = SimpleNamespace(task="translation", target="de", metric="chrf")
        ValidationScores(translator, pairs, settings).on_epoch_end(0, logs)
        assert (logs["val_bleu"] == pytest.approx(100)) == lowercase
        assert (logs["val_chrf"] == pytest.approx(100)) == lowercase
