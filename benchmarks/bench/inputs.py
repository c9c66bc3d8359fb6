"""Inputs of the systems: texts of made-up words, batches of real lengths, and their operations."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import Case, sizes_of
from keras_transformer.config import EOS_ID, TransformerConfig

NUM_SPECIAL_IDS = 4
# 2,000 of the 29,000 pairs, by a BPE of 10,000 of theirs.
LENGTHS = Path(__file__).parent / "multi30k_lengths.npy"
FULL_LENGTH = 33  # that of a bucket
NUM_PAIRS = 30_000
# WMT14 English-German: 4.5 million pairs of 116 and 110 million words (Luong et al. 2015), that is
# 25.8 and 24.4 a side. The rest is assumed: a log-normal, 1.15 and 1.3 subwords a word, and an end.
WMT_WORDS, WMT_SPREAD, WMT_PIECES = (25.8, 24.4), 0.6, (1.15, 1.3)


def words(vocab_size: int) -> list[str]:
    """Words, all different; the i-th is the piece of id `NUM_SPECIAL_IDS + i`."""
    syllables = [a + b for a, b in itertools.product("bdfghklmnprstvz", "aeiou")]
    made = map("".join, itertools.product(syllables, repeat=3))
    return list(itertools.islice(made, vocab_size - NUM_SPECIAL_IDS))


def texts(case: Case) -> list[str]:
    """Sources of a decoding case, of `source` tokens each, the end included."""
    source, batch = case["source"], case["batch"]
    random = np.random.default_rng([source, batch])
    vocabulary = words(sizes_of(case["size"]).vocab_size)
    lengths = np.full(batch, source)
    if case["target"] is None:  # translations end by themselves
        lengths = random.integers(source // 2, source + source // 2 + 1, batch)
    return [" ".join(random.choice(vocabulary, length - 1)) for length in lengths]


def pair_lengths(name: str) -> np.ndarray:
    """Lengths in tokens, ends included, of both sides of pairs, int [NUM_PAIRS, 2]."""
    if name == "full":
        return np.full((NUM_PAIRS, 2), FULL_LENGTH)
    if name == "multi30k":
        return np.resize(np.load(LENGTHS), (NUM_PAIRS, 2)).astype(int)
    return np.clip(_wmt_words(NUM_PAIRS) * WMT_PIECES, 1, 250).astype(int) + 1


def write_text(folder: Path, num_pairs: int) -> None:
    """Writes pairs of WMT's lengths, of words by Zipf's law, as a corpus."""
    random = np.random.default_rng(1)
    vocabulary = np.array(words(50_000))
    lengths = np.clip(_wmt_words(num_pairs), 1, 150).astype(int)
    for language, column in zip(("en", "de"), lengths.T, strict=True):
        with (folder / f"{language}.train.txt").open("w", encoding="utf-8") as file:
            for length in column:
                ranks = np.minimum(random.zipf(1.2, length), len(vocabulary)) - 1
                file.write(" ".join(vocabulary[ranks]) + "\n")


def _wmt_words(num_pairs: int) -> np.ndarray:
    """Words of both sides of pairs, correlated as in text, float [num_pairs, 2]."""
    random = np.random.default_rng(1)
    medians = np.log(WMT_WORDS) - WMT_SPREAD**2 / 2
    shared = random.normal(0, WMT_SPREAD, (num_pairs, 1))
    return np.exp(medians + shared + random.normal(0, 0.15, (num_pairs, 2)))


class _RandomPairs:
    """Pairs of random tokens; stands in for `StoredPairs`."""

    def __init__(self, lengths: np.ndarray, vocab_size: int) -> None:
        self.lengths, self.vocab_size = lengths, vocab_size

    def read(self, rows: list[int]) -> list[tuple[np.ndarray, ...]]:
        def text(row: int, side: int) -> np.ndarray:
            random = np.random.default_rng([row, side])
            ids = random.integers(NUM_SPECIAL_IDS, self.vocab_size, self.lengths[row, side])
            return np.append(ids[:-1], EOS_ID).astype(np.int32)

        return [(text(row, 0), text(row, 1)) for row in rows]


def batches(case: Case) -> dict[str, list[Any]]:
    """Batches of an epoch that is planned as `keras-transformer train` does.

    In order of length, they are the middle batch of each of `num_batches` equal parts of the
    epoch's tokens: padded to its longest text, and padded to the shape of its bucket, for XLA.
    """
    from keras_transformer.trainers.data.batches import BatchPlan, make_dataset

    lengths = pair_lengths(case["lengths"])
    plan = BatchPlan(lengths, case["tokens_per_batch"], seed=1)
    found = [(step, plan.batch(step)) for step in range(plan.batches_per_epoch)]
    found.sort(key=lambda each: (each[1][0].length, each[0]))
    tokens = np.cumsum([lengths[rows, 1].sum() for _, (_, rows) in found])
    middles = (np.arange(case["num_batches"]) + 0.5) / case["num_batches"] * tokens[-1]
    steps: Any = [found[i][0] for i in np.searchsorted(tokens, middles)]
    pairs: Any = _RandomPairs(lengths, sizes_of(case["size"]).vocab_size)
    return {
        name: list(make_dataset(pairs, plan, steps, static_shapes).as_numpy_iterator())
        for name, static_shapes in (("batches", False), ("bucket_batches", True))
    }


def case_flops(case: Case) -> float | None:
    """Operations of a turn, padding not counted; None if they depend on the translations."""
    if case["kind"] == "training":
        sizes = sizes_of(case["size"])
        return 3 * sum(  # the backward pass takes twice as many as the forward pass
            pass_flops(sizes, np.count_nonzero(source), np.count_nonzero(target))
            for inputs, labels, _ in case["batches"]
            for source, target in zip(inputs["source_ids"], labels, strict=True)
        )
    if case["kind"] == "decoding" and case["target"]:
        sizes = sizes_of(case["size"])
        return case["batch"] * pass_flops(sizes, case["source"], case["target"], case["beam"])
    return None


def pass_flops(sizes: TransformerConfig, source: int, target: int, beam: int = 1) -> float:
    """Operations of a forward pass or of decoding: two for each multiplication of matrices."""
    d, layers = sizes.d_model, sizes.num_decoder_layers
    encoder_layer = source * (4 * d * d + 2 * d * sizes.d_ff) + 2 * d * source * source
    encoder = sizes.num_encoder_layers * encoder_layer
    projections = layers * source * 2 * d * d  # keys and values of the decoder's cross-attention
    # Query and output of both attentions, keys and values of one, feed-forward; output projection.
    step = layers * (6 * d * d + 2 * d * sizes.d_ff) + d * sizes.vocab_size
    attended = target * (target + 1) / 2 + target * source  # keys seen, over all steps
    decoder = target * step + layers * 2 * d * attended
    return 2 * (encoder + projections + beam * decoder)
