"""From token ids on disk to batches: an epoch is planned, then read by row number.

A batch is a pure function of (corpus, seed, step), whatever the number of replicas.
Shapes (the package's glossary): B batch, S source length, T target length.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.trainers.preparation import TokenizedPairs


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Pairs of similar length, and the shape of their batches."""

    rows: np.ndarray  # row numbers
    length: int  # longest side of a pair
    batch_rows: int

    @property
    def num_batches(self) -> int:
        """Batches in an epoch; the last may be smaller."""
        return -(-len(self.rows) // self.batch_rows)


class BatchPlan:
    """Decides which rows make up the batch of a step.

    Pairs are bucketed by the length of their longer side. Every epoch shuffles each bucket, cuts
    it into batches and shuffles the batches. As the buckets are fixed, every epoch has the same
    number of batches, so any step is found at once.

    Args:
        lengths: int [rows, 2], tokens of both sides.
        tokens_per_batch: most tokens of a side of a batch, padding included.
        seed: of the shuffles; None for batches in order of length, for evaluation.

    Raises:
        InputError: if a pair is longer than a whole batch may be.
    """

    def __init__(self, lengths: np.ndarray, tokens_per_batch: int, seed: int | None) -> None:
        self.lengths = lengths
        self.seed = seed
        longer = lengths.max(axis=1)
        if longer.max() > tokens_per_batch:
            raise InputError(
                "`tokens_per_batch` must be at least the longest pair's tokens, "
                f"{longer.max()}. Received: tokens_per_batch={tokens_per_batch}"
            )
        bounds = np.minimum(_bucket_bounds(longer.max()), tokens_per_batch)
        index = np.searchsorted(bounds, longer).astype(np.uint8)
        self.buckets = [
            Bucket(
                np.flatnonzero(index == i).astype(np.int32),  # half the memory
                int(bound),
                tokens_per_batch // int(bound),
            )
            for i, bound in enumerate(bounds)
            if (index == i).any()
        ]
        self.batches_per_epoch = sum(bucket.num_batches for bucket in self.buckets)
        # An input pipeline reads ahead over the end of an epoch, hence two.
        self._epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)

    def batch(self, step: int) -> tuple[Bucket, np.ndarray]:
        """Returns the bucket and the row numbers of the batch of a step, counted from 0."""
        epoch, index = divmod(step, self.batches_per_epoch)
        return self._epoch(epoch)[index]

    def _plan_epoch(self, epoch: int) -> list[tuple[Bucket, np.ndarray]]:
        random = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        batches = []
        for bucket in self.buckets:
            rows = bucket.rows if random is None else random.permutation(bucket.rows)
            cuts = range(bucket.batch_rows, len(rows), bucket.batch_rows)
            batches += [(bucket, batch) for batch in np.split(rows, cuts)]
        if random is not None:
            random.shuffle(batches)
        return batches

    @property
    def padding_share(self) -> float:
        """Share of the positions of both sides, over an epoch, that are padding."""
        positions = sum(
            len(rows) * int(self.lengths[rows].max(axis=0).sum()) for _, rows in self._epoch(0)
        )
        return 1.0 - float(self.lengths.sum()) / positions


def _bucket_bounds(longest: int) -> np.ndarray:
    """Upper bounds of the buckets: steps of 4 at first, then of a fifth of the length."""
    bounds = [8]
    while bounds[-1] < longest:
        bounds.append(max(bounds[-1] + 4, bounds[-1] * 6 // 5))
    return np.array(bounds)


def make_dataset(
    pairs: TokenizedPairs, plan: BatchPlan, steps: range, static_shapes: bool = False
) -> tf.data.Dataset:
    """Feeds the batches of `steps` to `model.fit`.

    Args:
        pairs: the token ids.
        plan: which rows make up which batch.
        steps: steps, counted from 0.
        static_shapes: whether to pad every batch of a bucket to the same shape, rows included,
            so that XLA compiles once a bucket.

    Returns:
        Elements (inputs, labels, weights): `source_ids` int32 [B, S] and `target_ids` int32
        [B, T], labels int32 [B, T], and weights float32 [B, T], 1 / (tokens of the batch), 0 at
        padding, so that the loss is the same sum however a strategy splits the batch.
    """

    def batches() -> Iterator[Any]:
        for step in steps:
            bucket, rows = plan.batch(step)
            batch = pairs.read(rows.tolist())
            shape = (bucket.batch_rows, bucket.length) if static_shapes else (len(batch), 0)
            source_ids = _pad([source for source, _ in batch], shape)  # [B, S]
            labels = _pad([target for _, target in batch], shape)  # [B, T]
            target_ids = np.roll(labels, 1, axis=1)  # [B, T]
            target_ids[:, 0] = BOS_ID
            # A row's end symbol is input to nothing.
            target_ids[target_ids == EOS_ID] = PAD_ID
            is_token = (labels != PAD_ID).astype(np.float32)
            inputs = {"source_ids": source_ids, "target_ids": target_ids}
            yield inputs, labels, is_token / is_token.sum()

    ids = tf.TensorSpec((None, None), tf.int32)
    weights = tf.TensorSpec((None, None), tf.float32)
    signature = ({"source_ids": ids, "target_ids": ids}, ids, weights)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(steps))).prefetch(8)


def _pad(sequences: list[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Stacks sequences, padded to at least `shape`."""
    length = max(shape[1], *map(len, sequences), 0)
    padded = np.full((shape[0], length), PAD_ID, np.int32)
    for row, sequence in zip(padded, sequences, strict=False):
        row[: len(sequence)] = sequence
    return padded
