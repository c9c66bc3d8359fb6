"""Real text, where it is at hand: Multi30k may not be redistributed."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.tokenizer import SentencePieceTokenizer
from keras_transformer.trainers.batches import BatchPlan
from keras_transformer.trainers.corpora import load_corpus
from keras_transformer.trainers.evaluation import multimodal_form
from keras_transformer.trainers.recipes import TrainSettings
from keras_transformer.trainers.training import train

DEFAULT = Path(__file__).parents[2] / "../shared/data/multi30k-en-de"
FOLDER = Path(os.environ.get("MULTI30K", DEFAULT))
NUM_PAIRS = 2000

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no Multi30k in {FOLDER}; MULTI30K may name another folder"
)


@pytest.fixture(scope="module")
def lines():
    """The first training pairs."""
    pairs = load_corpus(str(FOLDER), "en", "de").pairs("train")
    return list(itertools.islice(pairs, NUM_PAIRS))


def test_splits():
    corpus = load_corpus(str(FOLDER), "en", "de")
    assert {"train", "val", "test2016"} <= set(corpus.splits)
    assert corpus.validation_split == "val"
    counts = {split: sum(1 for _ in corpus.pairs(split)) for split in ("train", "val", "test2016")}
    assert counts == {"train": 29_000, "val": 1014, "test2016": 1000}  # as published


@pytest.mark.skipif(not (FOLDER / "mmt-tokenized").is_dir(), reason=f"no mmt-tokenized in {FOLDER}")
def test_multimodal_protocol():
    """Raw references become those that the papers scored against."""
    for split in ("test2016", "test2017"):
        raw = load_corpus(str(FOLDER), "en", "de").pairs(split)
        prepared = load_corpus(str(FOLDER / "mmt-tokenized"), "en", "de").pairs(split)
        sides = zip(zip(*raw, strict=True), zip(*prepared, strict=True), strict=True)
        for language, (own, papers) in zip(("en", "de"), sides, strict=True):
            assert multimodal_form(own, language) == list(papers)


def test_little_padding(lines):
    tokenizer = SentencePieceTokenizer.train(itertools.chain.from_iterable(lines), vocab_size=2000)
    lengths = [[len(ids) + 1 for ids in tokenizer.tokenize(line).numpy()] for line in lines]
    assert BatchPlan(np.array(lengths), 4096, seed=1).padding_share < 0.2


def test_loss_falls(lines, tmp_path):
    for language, texts in zip(("en", "de"), zip(*lines, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in texts)
        (tmp_path / f"{language}.train.txt").write_text(text, encoding="utf-8")
    settings = TrainSettings(
        data=str(tmp_path),
        vocab_size=1000,
        steps=40,
        tokens_per_batch=1024,
        warmup_steps=20,
        peak_rate=0.003,
        steps_per_validation=10,
        model={
            "d_model": 32,
            "d_ff": 64,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
        },
    )
    metrics = train(settings, tmp_path / "run", verbose=0).metrics()
    losses = [line["token_loss"] for line in metrics]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 1
