"""Settings of a run with the recurrent model."""

import pytest

from keras_transformer.recurrent.config import RecurrentConfig
from keras_transformer.registry import build_model
from keras_transformer.trainers.recipes import load_recipe
from keras_transformer.trainers.settings import TrainSettings


def test_the_recipe_has_the_budget_of_the_transformer():
    settings = TrainSettings.from_dict(load_recipe("multi30k-ende-recurrent"))
    # It takes more updates of smaller batches.
    assert settings.steps * settings.tokens_per_batch <= 8_000 * 3_072
    config = settings.config({"vocab_size": settings.vocab_size})
    assert isinstance(config, RecurrentConfig)
    assert 2_500_000 < build_model(config).count_params() <= 2_605_056


def test_a_parser_may_be_recurrent():
    pytest.importorskip("keras_transformer.parsing", reason="there is no parsing")
    values = {"data": "x", "task": "parsing", "architecture": "recurrent"}
    assert TrainSettings.from_dict(values).architecture == "recurrent"
