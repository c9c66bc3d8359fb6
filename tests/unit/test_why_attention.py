"""The figures of `benchmarks/why_attention.py`, and the page that it writes."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sacrebleu

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import why_attention

from keras_transformer import Recurrent, RecurrentConfig, Transformer, TransformerConfig
from keras_transformer.trainers.recipes import TrainSettings, load_recipe

FRAMES = (
    pd.DataFrame({"model": "recurrent", "updates": [200, 400], "bleu": [7.125, 11.0]}),
    pd.DataFrame(
        {"model": ["recurrent"], "parameters": 1_234, "updates": 400, "published protocol": 12.5}
        | dict.fromkeys(why_attention.bleu_by_words([], []), 10.0)
    ),
    pd.DataFrame(
        {"model": ["transformer", "recurrent"] * 2, "tokens": [8, 8, 16, 16]}
        | {"seconds": [0.125, 0.25, 0.25, 0.75]}
    ),
    pd.DataFrame({"model": [*why_attention.MODELS], "seconds": [0.5, 0.75, 1.0, 1.5]}),
    pd.DataFrame({"model": [*why_attention.RECIPES], "tokens": 8, "products": [61, 29]}),
)


def test_bleu_by_words():
    references = ["a b c d e", "f g h i j k l m", "n " * 9, "o p q r " * 6]
    hypotheses = ["a b c d e", "F g h i j k l x", "n " * 7, "o p q r " * 5]
    found = why_attention.bleu_by_words(hypotheses, references)
    assert [*found] == ["1-8", "9-12", "13-16", "17-20", "from 21"]
    expected = sacrebleu.corpus_bleu(hypotheses[:2], [references[:2]], lowercase=True).score
    assert found["1-8"] == pytest.approx(expected)
    assert 0 < found["9-12"] < 100
    assert np.isnan([found["13-16"], found["17-20"]]).all()


def test_longest_chain():
    sizes = {"vocab_size": 11, "d_model": 4, "num_encoder_layers": 2, "num_decoder_layers": 3}
    transformer = Transformer(TransformerConfig(**sizes, d_ff=6, num_heads=2))
    # 6 products of each encoder layer, then cross-attention's keys, and the 5 after them, of the
    # first decoder layer, 10 of each other one, and the logits
    assert why_attention.longest_chain(transformer, 5) == 2 * 6 + 1 + 5 + 2 * 10 + 1
    recurrent = Recurrent(RecurrentConfig(**sizes | {"num_encoder_layers": 1}, units=3))
    shorter, longer = (why_attention.longest_chain(recurrent, length) for length in (4, 7))
    assert longer - shorter == 3 * (1 + 3)  # 3 more steps of an encoder layer and 3 decoder layers


@pytest.mark.programs
def test_updates_are_timed(monkeypatch):
    monkeypatch.setattr(why_attention, "LENGTHS", (4,))
    monkeypatch.setattr(why_attention, "TOKENS", 16)
    monkeypatch.setattr(why_attention, "ROUNDS", 1)
    layers = {"d_model": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    sizes = {"transformer": {**layers, "d_ff": 8}, "recurrent": {**layers, "units": 8}}

    def recipe_of(name):
        architecture = "recurrent" if name.endswith("recurrent") else "transformer"
        return {**load_recipe(name), "model": sizes[architecture]}

    monkeypatch.setattr(why_attention, "load_recipe", recipe_of)
    times = why_attention.time_lengths()
    assert times.model.tolist() == ["transformer", "recurrent"]
    assert times.tokens.tolist() == [4, 4]
    assert (times.seconds > 0).all()


def test_page(tmp_path, monkeypatch):
    monkeypatch.setattr(why_attention, "MINUTES", 3)  # 240 updates of 0.75 s
    page = Path(shutil.copy(why_attention.PAGE, tmp_path))
    why_attention.write_page(*FRAMES, page)
    lines = page.read_text("utf-8").splitlines()
    # 400 updates of 0.75 s
    assert "| recurrent | 1,234 | 400 | 1.33 | 5 | 7.9 | 11.0 | 12.50 |" in lines
    assert "| 16 | 250 | 750 | 3.00 |" in lines
    assert "| 8 | 61 | 29 |" in lines
    for name in ("curves", "bleu", "chains", "times"):
        assert (tmp_path / f"why-attention-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_models_differ_in_their_architecture():
    names = why_attention.RECIPES.items()
    found = {
        TrainSettings.from_dict(load_recipe(recipe)).architecture: name for name, recipe in names
    }
    assert found == {"transformer": "transformer", "recurrent": "recurrent"}
