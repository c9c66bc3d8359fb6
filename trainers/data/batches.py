"""From token ids on disk to batches: an epoch is planned, then read by row number.

A batch is a pure function of (corpus, seed, step), whatever the number of replicas.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.tokenizers import shifted
from keras_transformer.trainers.data.prepared import StoredPairs
from keras_transformer.trainers.settings import TrainSettings


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Pairs of similar length, and the shape of their batches."""

    rows: np.ndarray  # row numbers
    length: int  # longest side of a pair
    batch_rows: int  # maximum


class BatchPlan:
    """Decides which rows make up the batch of a step.

    Pairs are bucketed by the length of their longer side. Every epoch shuffles each bucket, splits
    it into batches of nearly equal numbers of rows, and shuffles the batches. A bucket that does
    not fill one batch takes the longest pairs of the next one. So every batch holds at least half
    of the rows that fit, unless the corpus itself is smaller than a batch. Every epoch has the same
    number of batches.

    Args:
        lengths: int [rows, 2], tokens of both sides.
        tokens_per_batch: maximum number of tokens of each side of a batch, padding included.
        seed: of the shuffles; None for batches in order of length, for evaluation.
        rates: how often an epoch has each row on average, float [rows], as of
            `StoredPairs.rates`; None for once.

    Raises:
        InputError: if a pair is longer than a batch may be.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        tokens_per_batch: int,
        seed: int | None,
        rates: np.ndarray | None = None,
    ) -> None:
        self.lengths, self.rates = lengths, rates
        self.seed = seed
        longest = int(lengths.max())
        if longest > tokens_per_batch:
            raise InputError(
                "`tokens_per_batch` must be at least the longest pair's tokens, "
                f"{longest}. Received: tokens_per_batch={tokens_per_batch}"
            )
        self.buckets = _make_buckets(lengths.max(axis=1), tokens_per_batch)
        # Two, because an input pipeline reads ahead into the next epoch.
        self._epoch = functools.lru_cache(maxsize=2)(self._plan_epoch)
        self.batches_per_epoch = len(self._epoch(0))

    def batch(self, step: int) -> tuple[Bucket, np.ndarray]:
        """Returns the bucket and the row numbers of the batch of a step, counted from 0."""
        epoch, index = divmod(step, self.batches_per_epoch)
        return self._epoch(epoch)[index]

    def _plan_epoch(self, epoch: int) -> list[tuple[Bucket, np.ndarray]]:
        random = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        batches = []
        for bucket in self.buckets:
            rows = (
                bucket.rows if random is None else random.permutation(self._drawn(bucket, random))
            )
            num_batches = -(-len(rows) // bucket.batch_rows)
            batches += [(bucket, batch) for batch in np.array_split(rows, num_batches)]
        if random is not None:
            random.shuffle(batches)
        return batches

    def _drawn(self, bucket: Bucket, random: np.random.Generator) -> np.ndarray:
        """Returns the rows of a bucket in an epoch, as many in each."""
        if self.rates is None:
            return bucket.rows
        rates, drawn = self.rates[bucket.rows], []
        for rate in np.unique(rates):
            rows = bucket.rows[rates == rate]
            whole, rest = divmod(max(1, round(len(rows) * rate)), len(rows))
            drawn += [np.tile(rows, whole), random.permutation(rows)[:rest]]
        return np.concatenate(drawn)

    @functools.cached_property
    def first_epoch(self) -> np.ndarray:
        """The row numbers of an epoch."""
        return np.concatenate([rows for _, rows in self._epoch(0)])

    @property
    def mean_tokens(self) -> np.ndarray:
        """Numbers of tokens of both sides of a batch on average, without padding, float [2]."""
        return self.lengths[self.first_epoch].sum(axis=0) / self.batches_per_epoch

    @property
    def padding_share(self) -> float:
        """Fraction of the positions of both sides, over an epoch, that are padding."""
        positions = sum(
            len(rows) * int(self.lengths[rows].max(axis=0).sum()) for _, rows in self._epoch(0)
        )
        return 1.0 - float(self.lengths[self.first_epoch].sum()) / positions


def plan_of(pairs: StoredPairs, settings: TrainSettings) -> BatchPlan:
    """Returns the batches of a training."""
    rates = pairs.rates(settings.sampling_temperature)
    return BatchPlan(pairs.lengths, settings.tokens_per_batch, settings.seed, rates)


def _make_buckets(lengths: np.ndarray, tokens_per_batch: int) -> list[Bucket]:
    """Buckets rows by their lengths, [rows]; the shortest pairs come first."""
    rows = np.argsort(lengths, kind="stable").astype(np.int32)  # half the memory
    lengths = lengths[rows]
    longest = int(lengths[-1])
    bounds = [0, *(min(bound, tokens_per_batch) for bound in _bucket_bounds(longest))]
    buckets: list[Bucket] = []
    stop = len(rows)  # `rows[stop:]` are in buckets
    for lower, upper in reversed(list(itertools.pairwise(bounds))):
        start = int(np.searchsorted(lengths, lower, side="right"))
        if start >= stop:  # no pair is left that is longer than `lower`
            continue
        batch_rows = tokens_per_batch // upper
        start = max(0, min(start, stop - batch_rows))  # shorter pairs fill the batch
        bucket = Bucket(rows[start:stop], min(upper, longest), batch_rows)
        if stop - start < batch_rows and buckets:  # the shortest pairs do not fill a batch
            longer = buckets.pop()
            bucket = dataclasses.replace(longer, rows=rows[: stop + len(longer.rows)])
        buckets.append(bucket)
        stop = start
    return buckets[::-1]


def _bucket_bounds(longest: int) -> list[int]:
    """Upper bounds of the buckets: steps of 4 at first, then of a fifth of the length."""
    bounds = [8]
    while bounds[-1] < longest:
        bounds.append(max(bounds[-1] + 4, bounds[-1] * 6 // 5))
    return bounds


def make_dataset(
    pairs: StoredPairs,
    plan: BatchPlan,
    steps: range,
    static_shapes: bool = False,
    num_replicas: int = 1,
    replicas: range = range(1),
) -> tf.data.Dataset:
    """Feeds batches to `model.fit`; row i of one goes to replica i modulo `num_replicas`.

    Args:
        pairs: the token ids.
        plan: which rows make up which batch.
        steps: steps, counted from 0.
        static_shapes: whether to pad every batch of a bucket to the same shape, rows included,
            so that XLA compiles once per bucket.
        num_replicas: number of replicas of all processes.
        replicas: those of this process, which reads their rows alone.

    Returns:
        Elements (inputs, labels, weights), one for each step and replica of `replicas`:
        `source_ids` int32 [B, S] and `target_ids` int32 [B, T], labels int32 [B, T], and weights
        float32 [B, T], 1 / (tokens of the batch of all replicas), 0 at padding. A replica without
        a row gets a row of padding.
    """

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray, np.float32]]:
        for step in steps:
            bucket, rows = plan.batch(step)
            weight = 1 / plan.lengths[rows, 1].sum(dtype=np.float32)
            for replica in replicas:
                texts = pairs.read(rows[replica::num_replicas].tolist())
                if static_shapes:
                    shape = (-(-bucket.batch_rows // num_replicas), bucket.length)
                else:
                    shape = (max(1, len(texts)), 1)
                yield *_pad(texts, shape), weight

    @tf.autograph.experimental.do_not_convert
    def element(source_ids: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor) -> tuple[Any, ...]:
        inputs = {"source_ids": source_ids, "target_ids": shifted(labels)}
        return inputs, labels, weight * tf.cast(labels != PAD_ID, tf.float32)

    ids = tf.TensorSpec((None, None), tf.int32)
    signature = (ids, ids, tf.TensorSpec((), tf.float32))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature).map(element)
    num_elements = len(steps) * len(replicas)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_elements)).prefetch(8)
    options = tf.data.Options()
    # The end of an iterator would wait for the tuner, which has nothing to tune here.
    options.autotune.enabled = False
    return dataset.with_options(options)


def distribute(
    strategy: tf.distribute.Strategy,
    pairs: StoredPairs,
    plan: BatchPlan,
    steps: range,
    static_shapes: bool = False,
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Returns the batches of `make_dataset`; each process reads its own shard of them."""
    if strategy.num_replicas_in_sync == 1:
        return make_dataset(pairs, plan, steps, static_shapes)

    def read(context: tf.distribute.InputContext) -> tf.data.Dataset:
        num_replicas = context.num_replicas_in_sync
        num_local = num_replicas // context.num_input_pipelines
        first = context.input_pipeline_id * num_local
        replicas = range(first, first + num_local)
        return make_dataset(pairs, plan, steps, static_shapes, num_replicas, replicas)

    return strategy.distribute_datasets_from_function(read)


def _pad(
    texts: list[tuple[np.ndarray, np.ndarray]], min_shape: tuple[int, int]
) -> list[np.ndarray]:
    """Returns the ids of both sides, int32 [B, S] and [B, T], padded."""
    rows, min_length = min_shape
    padded = []
    for side in (0, 1):
        length = max([min_length, *(len(text[side]) for text in texts)])
        ids = np.full((rows, length), PAD_ID, np.int32)
        for row, text in zip(ids, texts, strict=False):
            row[: len(text[side])] = text[side]
        padded.append(ids)
    return padded
