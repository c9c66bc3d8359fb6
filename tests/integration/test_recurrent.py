"""A recurrent model from text to a served answer: the same rooms as a Transformer's."""

import dataclasses
import json

import numpy as np
import pytest
from eager import eagerly

from keras_transformer.errors import InputError
from keras_transformer.export.engines import export_ctranslate2, export_marian
from keras_transformer.recurrent.model import Recurrent
from keras_transformer.trainers.data.corpora import Pair
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.scoring.evaluation import evaluate
from keras_transformer.translator import Translator

TEXTS = ["red dog .", "", "öl two one", "one two " * 31]


@pytest.fixture(scope="module")
def run(tiny_settings, tmp_path_factory):
    """A run that was interrupted once, and averaged."""
    settings = dataclasses.replace(
        tiny_settings,
        architecture="recurrent",
        model={"d_model": 10, "units": 7, "cell": "lstm"},
        r_drop=1.0,
        steps_per_validation=1,
        keep_checkpoints=2,
        accumulate=2,
        clip_norm=1.0,
    )
    path = tmp_path_factory.mktemp("recurrent") / "run"
    with eagerly():
        train(dataclasses.replace(settings, steps=1), path, verbose=0)
        more = dataclasses.replace(settings, steps=2, average_last=2)
        return train(more, path, verbose=0, resume=True)


def test_trains_and_translates(run, tmp_path):
    assert json.loads((run.path / "run.json").read_text())["architecture"] == "recurrent"
    assert [line["step"] for line in run.metrics()] == [1, 2]
    assert run.averaged.metrics["of_steps"] == [1, 2]
    translator = Translator.load(run.path)
    assert isinstance(translator.model, Recurrent)
    scores = evaluate(translator, [Pair("red dog .", "rot Hund .")], tmp_path / "test", "de")
    assert scores.num_pairs == 1


def test_learns(run):
    losses = [line["val_token_loss"] for line in run.metrics()]
    assert losses[1] < losses[0] < np.log(run.config.vocab_size) + 0.1


def test_no_other_engine_has_a_form_for_it(run, tmp_path):
    translator = Translator.of(run)
    with pytest.raises(InputError, match=r"^Only a Transformer .* for Hugging Face"):
        export_marian(translator, tmp_path / "marian", "en", "de")
    with pytest.raises(InputError, match=r"^Only a Transformer .* for CTranslate2"):
        export_ctranslate2(translator, tmp_path / "ctranslate2")
