"""Real text, where it is at hand: Multi30k may not be redistributed."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.tokenizers import SentencePieceTokenizer
from keras_transformer.trainers.data.batches import BatchPlan
from keras_transformer.trainers.data.corpora import load_corpus
from keras_transformer.trainers.scoring.scores import multimodal_form

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
    return [pair.sides for pair in itertools.islice(pairs, NUM_PAIRS)]


@pytest.mark.skipif(not (FOLDER / "mmt-tokenized").is_dir(), reason=f"no mmt-tokenized in {FOLDER}")
def test_multimodal_protocol():
    """Raw references become those that the papers scored against."""
    for split in ("test2016", "test2017"):
        raw, prepared = (
            list(load_corpus(str(folder), "en", "de").pairs(split))
            for folder in (FOLDER, FOLDER / "mmt-tokenized")
        )
        for language, name in (("en", "source"), ("de", "target")):
            own, papers = ([getattr(pair, name) for pair in pairs] for pairs in (raw, prepared))
            assert multimodal_form(own, language) == papers


def test_little_padding(lines):
    tokenizer = SentencePieceTokenizer.train(itertools.chain.from_iterable(lines), vocab_size=2000)
    lengths = [[len(ids) + 1 for ids in tokenizer.source.tokenize(line).numpy()] for line in lines]
    assert BatchPlan(np.array(lengths), 4096, seed=1).padding_share < 0.2
