"""From token ids on disk to batches: an epoch is planned, then read by row number.

A batch is a pure function of (corpus, seed, step), whatever the number of replicas.
Shapes (the package's glossary): B batch, S source length, T target length.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.trainers.prepared import TokenizedPairs


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
                int(min(bound, longer.max())),  # no position that the model may not have
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


class Share(NamedTuple):
    """The part of every batch that one process reads: that of its own replicas.

    A batch's rows are dealt out in turn: to the replicas, and by each to the parts of an update.

    Attributes:
        replicas: replicas in all.
        first: the process's first replica.
        local: how many replicas the process has.
        parts: parts that a replica adds up to an update; 1 for no axis of parts.
    """

    replicas: int = 1
    first: int = 0
    local: int = 1
    parts: int = 1


ALL = Share()


def make_dataset(
    pairs: TokenizedPairs,
    plan: BatchPlan,
    steps: range,
    static_shapes: bool = False,
    share: Share = ALL,
) -> tf.data.Dataset:
    """Feeds the batches of `steps` to `model.fit`.

    Args:
        pairs: the token ids.
        plan: which rows make up which batch.
        steps: steps, counted from 0.
        static_shapes: whether to pad every batch of a bucket to the same shape, rows included,
            so that XLA compiles once a bucket.
        share: the part of each batch to read.

    Returns:
        Elements (inputs, labels, weights), one for each step and local replica: `source_ids` int32
        [B, S] and `target_ids` int32 [B, T], labels int32 [B, T], and weights float32 [B, T],
        1 / (tokens of the whole batch), 0 at padding, so that the loss is the same sum however the
        batch is split. With several parts, [parts, B, S] and so on. A replica that no row is left
        for gets padding.
    """
    only_one = share.parts == 1

    def batches() -> Iterator[Any]:
        for step in steps:
            bucket, rows = plan.batch(step)
            weight = 1 / plan.lengths[rows, 1].sum(dtype=np.float32)
            mine = slice(share.first, share.first + share.local)
            for replica_rows in _deal(rows, share.replicas)[mine]:
                parts = [pairs.read(part.tolist()) for part in _deal(replica_rows, share.parts)]
                if static_shapes:
                    most_rows = -(-bucket.batch_rows // (share.replicas * share.parts))
                    shape = (most_rows, bucket.length)
                else:
                    shape = (max(1, *map(len, parts)), 1)
                element = _pad_parts(parts, shape, weight)
                yield tf.nest.map_structure(lambda a: a[0], element) if only_one else element

    parts = () if only_one else (share.parts,)
    ids = tf.TensorSpec((*parts, None, None), tf.int32)
    weights = tf.TensorSpec((*parts, None, None), tf.float32)
    signature = ({"source_ids": ids, "target_ids": ids}, ids, weights)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    elements = len(steps) * share.local
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(elements)).prefetch(8)
    options = tf.data.Options()
    # There is nothing to tune, and to drop an iterator is to wait for its tuner, a second where the
    # machine is busy.
    options.autotune.enabled = False
    return dataset.with_options(options)


def distribute(
    strategy: tf.distribute.Strategy,
    pairs: TokenizedPairs,
    plan: BatchPlan,
    steps: range,
    static_shapes: bool = False,
    parts: int = 1,
) -> Any:
    """Returns `make_dataset`'s batches, each process's share of them on its own replicas."""

    def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
        local = context.num_replicas_in_sync // context.num_input_pipelines
        share = Share(context.num_replicas_in_sync, context.input_pipeline_id * local, local, parts)
        return make_dataset(pairs, plan, steps, static_shapes, share)

    if strategy.num_replicas_in_sync == 1:
        return make_dataset(pairs, plan, steps, static_shapes, Share(parts=parts))
    return strategy.distribute_datasets_from_function(read)


def _deal(rows: np.ndarray, hands: int) -> list[np.ndarray]:
    return [rows[hand::hands] for hand in range(hands)]


def _pad_parts(
    parts: list[list[tuple[np.ndarray, np.ndarray]]], shape: tuple[int, int], weight: float
) -> Any:
    """Makes an element of `make_dataset` of the texts of its parts, [parts, B, T] throughout."""
    lengths = [
        max([shape[1], *(len(pair[side]) for part in parts for pair in part)]) for side in (0, 1)
    ]
    source_ids = np.full((len(parts), shape[0], lengths[0]), PAD_ID, np.int32)
    labels = np.full((len(parts), shape[0], lengths[1]), PAD_ID, np.int32)
    for i, part in enumerate(parts):
        for j, (source, target) in enumerate(part):
            source_ids[i, j, : len(source)] = source
            labels[i, j, : len(target)] = target
    target_ids = np.roll(labels, 1, axis=-1)
    target_ids[..., 0] = BOS_ID
    # A row's end symbol is input to nothing.
    target_ids[target_ids == EOS_ID] = PAD_ID
    is_token = (labels != PAD_ID).astype(np.float32)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return inputs, labels, is_token * np.float32(weight)
