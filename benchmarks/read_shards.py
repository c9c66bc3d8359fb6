"""How fast a corpus of WMT's size is prepared and read, and with how much memory.

Generates pairs whose lengths are distributed like WMT14's (about 28 tokens per side, log-normal),
prepares them, and reads batches of 25,000 tokens per side in training order. Then plans two epochs
of as many pairs as WMT14 English-French has, from lengths alone.

    python benchmarks/read_shards.py [--pairs 500000] [--seconds 20]
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import typer
from bench.processes import memory

from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.data.prepared import open_prepared
from keras_transformer.trainers.settings import TrainSettings

TOKENS_PER_BATCH = 25_000
NUM_WORDS = 50_000
WMT_EN_FR_PAIRS = 36_000_000


def lengths(random: np.random.Generator, rows: int) -> np.ndarray:
    """Words of both sides of pairs, correlated as in text, int [rows, 2]."""
    shared = random.normal(3.0, 0.6, (rows, 1))  # the median is 20 words, the mean 25
    return np.clip(np.exp(shared + random.normal(0, 0.15, (rows, 2))), 1, 150).astype(int)


def write_text(folder: Path, rows: int) -> None:
    """Writes `rows` pairs of words drawn by Zipf's law."""
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = np.array(
        ["".join(random.choice(letters, 2 + i.bit_length() // 2)) for i in range(NUM_WORDS)]
    )
    for language, sizes in zip(("en", "de"), lengths(random, rows).T, strict=True):
        with (folder / f"{language}.train.txt").open("w", encoding="utf-8") as file:
            for size in sizes:
                ranks = np.minimum(random.zipf(1.2, size), NUM_WORDS) - 1
                file.write(" ".join(words[ranks]) + "\n")


def report(text: str) -> None:
    """Prints a line, with the peak memory of this process."""
    print(f"{text}, memory {memory('VmHWM') / 1e9:.2f} GB", flush=True)


def main(pairs: int = 500_000, seconds: float = 20.0) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder, pairs)
        settings = TrainSettings(data=name, vocab_size=16_000, tokens_per_batch=TOKENS_PER_BATCH)
        started = time.monotonic()
        prepare(settings, folder / "corpus")
        report(f"prepare: {pairs / (time.monotonic() - started):,.0f} pairs/s")

        corpus = open_prepared(folder / "corpus").training
        plan = BatchPlan(corpus.lengths, TOKENS_PER_BATCH, seed=1)
        report(f"{corpus.lengths.mean():.1f} tokens per side, padding {plan.padding_share:.0%}")
        for step in (0, 100_000):
            started = time.monotonic()
            fresh = BatchPlan(corpus.lengths, TOKENS_PER_BATCH, seed=1)
            next(iter(make_dataset(corpus, fresh, range(step, 10**6))))
            print(f"from opening to the batch of step {step:,}: {time.monotonic() - started:.2f} s")
        tokens, started = 0, time.monotonic()
        for _, labels, _ in make_dataset(corpus, plan, range(10**6)):
            tokens += int(np.count_nonzero(labels))
            if (passed := time.monotonic() - started) > seconds:
                break
        report(f"read: {tokens / passed:,.0f} target tokens/s")
    started = time.monotonic()
    many = (lengths(np.random.default_rng(2), WMT_EN_FR_PAIRS // 9) * 1.15 + 1).astype(np.uint16)
    plan = BatchPlan(np.tile(many, (9, 1)), TOKENS_PER_BATCH, seed=1)
    plan.batch(0)
    plan.batch(plan.batches_per_epoch)
    report(f"two epochs of {WMT_EN_FR_PAIRS:,} pairs: {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    typer.run(main)
