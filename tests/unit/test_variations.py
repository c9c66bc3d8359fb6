"""The trainings of `benchmarks/variations.py`, and what it measures."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sacrebleu

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import variations
from variations import VARIATIONS

from keras_transformer import InputError, Translator
from keras_transformer.trainers.data.corpora import load_corpus


def test_variations_differ_in_what_they_name(tmp_path):
    settings = {name: variations.settings_of(name, 3, None, tmp_path) for name in VARIATIONS}
    assert len({str(each.to_dict()) for each in settings.values()}) == len(VARIATIONS)
    sizes = {name: each.config(vocab_size=100) for name, each in settings.items()}
    assert sizes["d_k-16"].d_k == sizes["base"].d_model / sizes["base"].num_heads / 2
    other_pairs = {name for name, each in settings.items() if each.data != settings["base"].data}
    assert other_pairs == {"short", "short-learned"}


@pytest.mark.programs
def test_a_run_is_measured(tiny_run, corpus_dir, monkeypatch):
    pairs = list(load_corpus(str(corpus_dir), "en", "de").pairs("val"))
    translator = Translator.of(tiny_run, "last")
    longer = np.max(
        [
            translator.tokenizer.tokenize(list(texts)).row_lengths() + 1
            for texts in zip(*pairs, strict=True)
        ],
        axis=0,
    )
    short = int(np.median(longer))
    groups = {"all": (0, 99), "short": (0, short), "long": (short, 99)}
    monkeypatch.setattr(variations, "GROUPS", groups)
    rows = variations.measure(translator, pairs).set_index("lengths")
    last = tiny_run.metrics()[-1]
    assert rows.perplexity["all"] == pytest.approx(last["val_perplexity"], rel=1e-4)
    kept = [pair for pair, length in zip(pairs, longer, strict=True) if length <= short]
    assert 0 < len(kept) == rows.pairs["short"] == 12 - rows.pairs["long"] < 12
    found = translator.translate([pair.source for pair in kept], beam_size=1)
    references = [pair.target for pair in kept]
    bleu = sacrebleu.corpus_bleu([each.text for each in found], [references], lowercase=True)
    assert rows.greedy["short"] == pytest.approx(bleu.score)


def test_a_call_does_what_is_left(corpus_dir, tmp_path, monkeypatch):
    called = []

    def train(settings, path, **options):
        called.append(path.name)
        if path.name == "heads-1-1":
            raise InputError("`loss` is nan")

    row = {"lengths": "all", "parameters": 1_234, "perplexity": 7.0, "greedy": 29.0}
    beam = iter([30.0, 31.0, 20.5])
    monkeypatch.setattr(variations, "train", train)
    monkeypatch.setattr(variations, "prepare_corpora", lambda *arguments: None)
    monkeypatch.setattr(variations.Translator, "of", lambda *arguments: None)
    monkeypatch.setattr(
        variations, "measure", lambda *arguments: pd.DataFrame([{**row, "beam": next(beam)}])
    )
    for _ in range(2):
        variations.run_all(["base", "heads-1"], [1, 2], 7, str(corpus_dir), tmp_path)
    assert called == ["base-1", "heads-1-1", "base-2", "heads-1-2", "heads-1-1"]
    tables = map(pd.read_csv, tmp_path.glob("*.csv"))
    lines = variations.table_3(pd.concat(tables)).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines]
    end = ["1,234", "7.00 ± 0.00", "29.00 ± 0.00"]
    assert cells == [
        [VARIATIONS["base"][1], "all", *end, "30.50 ± 0.50"],
        [VARIATIONS["heads-1"][1], "all", *end, "20.50 ± 0.00"],
    ]
