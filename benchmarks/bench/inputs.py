"""What the systems get: made-up words, texts of them, and batches of real lengths."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import Case, sizes_of
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID

NUM_SPECIAL_IDS = 4
# 2,000 of the 29,000 pairs, by a BPE of 10,000 of theirs.
LENGTHS = Path(__file__).parent / "multi30k_lengths.npy"
FULL_LENGTH = 33  # that of a bucket
# WMT14 English-German: 4.5 million pairs of 116 and 110 million words (Luong et al. 2015), that is
# 25.8 and 24.4 a side. The rest is assumed: a log-normal of the spread of read_shards.py, 1.15 and
# 1.3 subwords a word, and an end.
WMT_WORDS, WMT_SPREAD, WMT_PIECES = (25.8, 24.4), 0.6, (1.15, 1.3)


def words(vocab_size: int) -> list[str]:
    """Words, all different; the i-th is the piece of id `NUM_SPECIAL_IDS + i`."""
    syllables = [a + b for a, b in itertools.product("bdfghklmnprstvz", "aeiou")]
    made = map("".join, itertools.product(syllables, repeat=3))
    return list(itertools.islice(made, vocab_size - NUM_SPECIAL_IDS))


def texts(case: Case) -> list[str]:
    """Sources of a decoding case, of `source` tokens each, the end included.

    Where translations end by themselves, sources are uneven too: half to one and a half of it.
    """
    random = np.random.default_rng([case["source"], case["batch"]])
    vocabulary = words(sizes_of(case["size"]).vocab_size)
    source = case["source"]
    lengths = np.full(case["batch"], source)
    if case["target"] is None:
        lengths = random.integers(source // 2, source + source // 2 + 1, case["batch"])
    return [" ".join(random.choice(vocabulary, length - 1)) for length in lengths]


def pair_lengths(name: str, rows: int = 30_000) -> np.ndarray:
    """Lengths in tokens, ends included, of both sides of pairs, int [rows, 2].

    So many that the last batch of a bucket, which may be small, is as rare as in a real corpus.
    """
    if name == "full":
        return np.full((rows, 2), FULL_LENGTH)
    if name == "multi30k":
        return np.resize(np.load(LENGTHS), (rows, 2)).astype(int)
    random = np.random.default_rng(1)
    medians = np.log(WMT_WORDS) - WMT_SPREAD**2 / 2
    shared = random.normal(0, WMT_SPREAD, (rows, 1))
    both = medians + shared + random.normal(0, 0.15, (rows, 2))
    return np.clip(np.exp(both) * WMT_PIECES, 1, 250).astype(int) + 1


class Pairs:
    """Pairs of random tokens; stands in for `TokenizedPairs`.

    Args:
        case: a training case.
    """

    def __init__(self, case: Case) -> None:
        self.lengths = pair_lengths(case["lengths"])
        self.vocab_size = sizes_of(case["size"]).vocab_size
        self._texts: dict[tuple[int, int], np.ndarray] = {}

    def read(self, rows: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the (source, target) token ids of rows, each with its end."""
        return [(self._text(row, 0), self._text(row, 1)) for row in rows]

    def _text(self, row: int, side: int) -> np.ndarray:
        if (row, side) not in self._texts:
            random = np.random.default_rng([row, side])
            ids = random.integers(NUM_SPECIAL_IDS, self.vocab_size, self.lengths[row, side])
            ids[-1] = EOS_ID
            self._texts[row, side] = ids.astype(np.int32)
        return self._texts[row, side]


def plan_batches(case: Case) -> tuple[Any, list[int]]:
    """Plans an epoch as `keras-transformer train` does.

    Returns:
        The plan, and the steps to measure: in order of length, the middle batch of each of
        `batches` equal parts of the epoch's tokens.
    """
    from keras_transformer.trainers.batches import BatchPlan

    lengths = pair_lengths(case["lengths"])
    plan = BatchPlan(lengths, case["tokens_per_batch"], seed=1)
    found = [(step, plan.batch(step)) for step in range(plan.batches_per_epoch)]
    found.sort(key=lambda each: (each[1][0].length, each[0]))
    tokens = np.cumsum([lengths[rows, 1].sum() for _, (_, rows) in found])
    middles = (np.arange(case["batches"]) + 0.5) / case["batches"] * tokens[-1]
    return plan, [found[i][0] for i in np.searchsorted(tokens, middles)]


def batch_rows(case: Case) -> list[list[int]]:
    """The pairs of each batch that is measured."""
    plan, steps = plan_batches(case)
    return [plan.batch(step)[1].tolist() for step in steps]


def padded(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Sources, the decoder's inputs and labels of a batch, int64, padded to its longest."""
    sources = _pad([source for source, _ in pairs])
    labels = _pad([target for _, target in pairs])
    inputs = np.roll(labels, 1, axis=1)
    inputs[:, 0] = BOS_ID
    inputs[inputs == EOS_ID] = PAD_ID
    return sources, inputs, labels


def _pad(rows: list[np.ndarray]) -> np.ndarray:
    array = np.full((len(rows), max(map(len, rows))), PAD_ID, np.int64)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


if __name__ == "__main__":
    print(json.dumps(batch_rows(json.loads(sys.argv[1]))))  # TensorFlow stays out of the caller
