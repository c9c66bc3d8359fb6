"""A Transformer learns a task and translates sentences that it has not seen."""

import itertools
import math
import random

import pytest
import reference
import tensorflow as tf

from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
from keras_transformer.trainers.data.corpora import load_corpus
from keras_transformer.trainers.data.prepared import StoredPairs
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.scoring.evaluation import evaluate
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator

WORDS = {"one": "eins", "two": "zwei", "red": "rot", "dog": "Hund", "cat": "Katze", "oil": "Öl"}
SPLIT_SIZES = {"train": 1500, "val": 64, "test": 64}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Word-by-word translations in reverse order; no source is in two splits."""
    folder = tmp_path_factory.mktemp("reversals")
    sources = [words for n in (4, 5) for words in itertools.product(WORDS, repeat=n)]
    random.Random(1).shuffle(sources)
    rows = iter(sources)
    for split, size in SPLIT_SIZES.items():
        chosen = list(itertools.islice(rows, size))
        english = [" ".join(words) for words in chosen]
        german = [" ".join(WORDS[word] for word in reversed(words)) for words in chosen]
        for language, lines in {"en": english, "de": german}.items():
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{language}.{split}.txt").write_text(text, encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    settings = TrainSettings(
        data=data,
        augment={},
        steps=400,
        tokens_per_batch=512,
        max_length=16,
        warmup_steps=100,
        peak_rate=0.005,
        steps_per_validation=200,
        model={
            "d_model": 32,
            "d_ff": 64,
            "num_heads": 4,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dropout_rate": 0.0,
        },
    )
    return train(settings, tmp_path_factory.mktemp("run") / "reversals", verbose=0)


def test_translates_what_it_never_saw(run, data, tmp_path):
    pairs = load_corpus(data, "en", "de").pairs("test")
    scores = evaluate(Translator.load(run.path), pairs, tmp_path / "test", "de")
    assert scores.num_pairs == SPLIT_SIZES["test"]
    assert scores.bleu.value > 90


def test_decoder_uses_the_source(run):
    """With the sources of other targets, the loss is worse than that of a guess."""
    pairs = StoredPairs(run.path / "corpus", "val")
    plan = BatchPlan(pairs.lengths, 512, seed=None)
    model = run.model()
    true, shuffled = [], []
    for inputs, labels, _ in make_dataset(pairs, plan, range(plan.batches_per_epoch)):
        others = {**inputs, "source_ids": tf.roll(inputs["source_ids"], 1, axis=0)}
        for losses, batch in ((true, inputs), (shuffled, others)):
            logits = model(batch).numpy()
            loss = reference.label_smoothed_cross_entropy(logits, labels.numpy(), smoothing=0.0)
            losses.append(loss.sum() / pairs.lengths[:, 1].sum())
    assert sum(true) < 0.3
    assert sum(shuffled) > math.log(len(WORDS))
