"""The trainings of `benchmarks/variations.py`, what they measure, and the page of their figures."""

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sacrebleu
from layer_weights import make_model

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import claims
import saturation
import variations
from claims import CLAIMS, GROUPS, VARIATIONS

from keras_transformer import InputError, Translator
from keras_transformer.trainers.corpora import load_corpus
from keras_transformer.trainers.prepared import open_prepared


def results_of(figures):
    """Rows by the BLEU of two seeds of each variation; perplexity is 20 less, greedy BLEU 1."""
    return pd.DataFrame(
        {"variation": name, "seed": seed, "parameters": 1_234, "lengths": lengths}
        | {"steps": 7, "pairs": 9}
        | {"perplexity": bleu - 20, "greedy": bleu - 1, "beam": bleu, "d_k": 32, "is_scaled": True}
        | {"variance": 31.25, "max_weight": 0.5, "entropy": 1.5, "gradient": 0.25}
        for name, each in figures.items()
        for seed, bleu in enumerate(each)
        for lengths in GROUPS
    )


# The measurements.


def test_softmax_by_hand():
    """Weights of 1/4 and 3/4, whose derivatives are 3/16, -3/16, -3/16 and 3/16."""
    found = saturation.measure_softmax(np.array([[0.0, 2 * math.log(3)]]), scale=0.5)
    assert found.variance == pytest.approx(math.log(3) ** 2)
    assert found.max_weight == pytest.approx(0.75)
    assert found.entropy == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert found.gradient == pytest.approx(2 * 3 / 16)


def test_gradient_is_that_of_finite_differences():
    scores = np.random.default_rng(5).normal(size=7)

    def weights(scores):
        return np.exp(scores) / np.exp(scores).sum()

    steps = 1e-6 * np.eye(7)
    derivatives = [(weights(scores + step) - weights(scores - step)) / 2e-6 for step in steps]
    found = saturation.measure_softmax(scores[None], scale=1.0).gradient
    assert found == pytest.approx(np.linalg.norm(derivatives), rel=1e-6)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_products_are_those_of_the_attention(is_scaled, monkeypatch):
    monkeypatch.setattr(saturation, "NUM_KEYS", 4)
    source_ids = np.array([[5, 18, 7, 3, 0], [9, 2, 0, 0, 0], [6, 13, 4, 3, 0], [9, 2, 6, 1, 3]])
    model = make_model(scale_attention=is_scaled)
    products = saturation.encoder_products(model, source_ids)
    assert products.shape == (2, 2, 2, 4, 4)
    exponentials = np.exp(products * (5**-0.5 if is_scaled else 1.0))
    rows = source_ids[[0, 2], :4]  # the others have fewer tokens, or more
    expected = model.attention_scores(rows, rows).encoder
    np.testing.assert_allclose(
        exponentials / exponentials.sum(axis=-1, keepdims=True), np.stack(expected), atol=1e-5
    )


@pytest.mark.programs
def test_a_run_is_measured(tiny_run, tiny_settings, corpus_dir, tmp_path, monkeypatch):
    pairs = list(load_corpus(str(corpus_dir), "en", "de").pairs("val"))
    translator = Translator.of(tiny_run, "last")
    sides = [
        translator.tokenizer.tokenize(list(texts)).row_lengths().numpy() + 1
        for texts in zip(*pairs, strict=True)
    ]
    longer = np.maximum(*sides)
    short = int(np.median(longer))
    groups = {"all": (0, 99), "short": (0, short), "long": (short, 99)}
    monkeypatch.setattr(variations, "GROUPS", groups)
    monkeypatch.setattr(saturation, "NUM_KEYS", int(sides[0][0]))
    path = shutil.copytree(tiny_run.path, tmp_path / "run")  # complete: nothing is trained
    monkeypatch.setattr(variations.keras.utils, "clear_session", lambda: None)  # takes seconds
    rows = variations.train_and_measure(tiny_settings, path, pairs).set_index("lengths")
    assert rows.pairs["all"] == rows.pairs["short"] + rows.pairs["long"] == 12
    last = tiny_run.metrics()[-1]
    assert rows.perplexity["all"] == pytest.approx(last["val_perplexity"], rel=1e-4)
    assert rows[["steps", "d_k"]].loc["all"].tolist() == [5, 8]
    assert 0 < rows.max_weight["all"] < 1
    kept = [pair for pair, length in zip(pairs, longer, strict=True) if length <= short]
    assert 0 < len(kept) < 12
    found = translator.translate([pair.source for pair in kept], beam_size=1)
    references = [pair.target for pair in kept]
    bleu = sacrebleu.corpus_bleu([each.text for each in found], [references], lowercase=True)
    assert rows.greedy["short"] == pytest.approx(bleu.score)


# The trainings.


def test_settings_of_variations(tmp_path):
    settings = {name: variations.settings_of(name, 3, None, tmp_path) for name in VARIATIONS}
    assert {each.seed for each in settings.values()} == {3}
    sizes = {name: each.config(vocab_size=100) for name, each in settings.items()}
    assert (sizes["base"].num_heads, sizes["base"].d_model) == (4, 128)
    assert sizes["d_k-16"].d_k == sizes["base"].d_model / sizes["base"].num_heads / 2
    assert settings["smoothing-0.2"].label_smoothing == 0.2
    assert {name for name, each in settings.items() if each.data != settings["base"].data} == {
        "short",
        "short-learned",
    }
    assert len({str(each.to_dict()) for each in settings.values()}) == len(VARIATIONS)
    named = {name for claim in CLAIMS for name in (claim.better, claim.worse)}
    assert named | {*claims.POSITIONS, *claims.TRAINED} <= {*VARIATIONS}


def test_short_pairs_have_the_same_subwords(corpus_dir, tmp_path, monkeypatch):
    short = VARIATIONS["short"]._replace(changes=("max_length=5",))
    monkeypatch.setitem(VARIATIONS, "short", short)
    variations.prepare_corpora(str(corpus_dir), tmp_path)
    every, short = (open_prepared(tmp_path / f"corpus-{length}") for length in (100, 5))
    assert every.tokenizer.fingerprint == short.tokenizer.fingerprint
    assert short.training.lengths.max() == 5 < every.training.lengths.max()


def test_a_call_does_what_is_left(corpus_dir, tmp_path, monkeypatch, capsys):
    called = []

    def train_and_measure(settings, path, pairs):
        called.append((path.name, settings.steps, len(pairs)))
        if path.name == "heads-1-1":
            raise InputError("`loss` is nan")
        return results_of({"": [30.0]}).drop(columns=["variation", "seed"])

    monkeypatch.setattr(variations, "train_and_measure", train_and_measure)
    monkeypatch.setattr(variations, "prepare_corpora", lambda *arguments: None)
    untrained = tmp_path / "untrained.csv"
    variations.save(results_of({"normal": [1.0]}).head(1), untrained)
    for _ in range(2):
        variations.run_all(["base", "heads-1"], [1, 2], 7, str(corpus_dir), tmp_path)
    order = ["base-1", "heads-1-1", "base-2", "heads-1-2", "heads-1-1"]
    assert called == [(name, 7, 12) for name in order]
    assert "base-1: perplexity 10.00, greedy 29.00, beam 30.00" in capsys.readouterr().out
    found = variations.collect(tmp_path)
    assert len(found) == 3 * len(GROUPS) + 1
    seeds = found.groupby("variation").seed.unique().map(list).to_dict()
    assert seeds == {"base": [1, 2], "heads-1": [2], "normal": [0]}
    variations.restore(found[found.seed == 2], tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "base-2.csv",
        "heads-1-2.csv",
    ]


# The page.


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [
        ([27, 28], [25, 26.9], "yes"),
        ([27, 28], [25, 27.1], "the seeds overlap"),
        ([27, 28], [28.1, 29], "no"),
        ([27], [], "not run"),
    ],
)
def test_verdicts(better, worse, expected):
    better, worse = pd.Series(better, dtype=float), pd.Series(worse, dtype=float)
    claim = CLAIMS[0]
    assert claims.verdict(claim, better, worse) == expected
    of_perplexity = claim._replace(column="perplexity")  # which is better if it is lower
    assert claims.verdict(of_perplexity, -better, -worse) == expected


def test_verdict_of_nearly_equal_figures():
    claim = CLAIMS[0]._replace(margin=0.5)
    base = pd.Series([27.0, 28.0])
    for other, expected in ([27.1, 27.1], "yes"), ([28.5, 27.3], "yes"), ([28.1, 28.1], "no"):
        assert claims.verdict(claim, base, pd.Series(other)) == expected


def test_page(tmp_path):
    page = Path(shutil.copy(variations.PAGE, tmp_path))
    claims.write_page(results_of({"base": [27.0, 28.0], "heads-1": [25.0, 26.0]}), page)
    lines = page.read_text("utf-8").splitlines()
    assert "| One head is worse | 3.2.2, (A) | 25.8, 24.9 | 27.5 ± 0.5, 25.5 ± 0.5 | yes |" in lines
    assert "| (A) | 1 head of 128 | 1,234 | 5.50 ± 0.50 | 24.5 ± 0.5 | 25.5 ± 0.5 |" in lines
    assert "| sinusoids, all pairs | 7.50 ± 0.50 | 7.50 ± 0.50 | 27.5 ± 0.5 | 27.5 ± 0.5 |" in lines
    assert "| trained | 32 | yes | 31.2 | 0.50 | 1.50 | 0.250 |" in lines
    for name in claims.PICTURES:
        assert (tmp_path / f"claims-{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"(claims-{name}.png)" in page.read_text("utf-8")
    claims.write_page(pd.DataFrame(), page)
    assert page.read_text("utf-8").count(claims.NOT_RUN) == len(claims.TABLES)


def test_page_has_the_figures_of_the_table(tmp_path):
    page = Path(shutil.copy(variations.PAGE, tmp_path))
    is_run = variations.RESULTS.exists()
    claims.write_page(pd.read_csv(variations.RESULTS) if is_run else pd.DataFrame(), page)
    assert page.read_text("utf-8") == variations.PAGE.read_text("utf-8")
