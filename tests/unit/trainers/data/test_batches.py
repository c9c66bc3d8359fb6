import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.trainers.data.batches import BatchPlan, make_dataset

B, E, P = BOS_ID, EOS_ID, PAD_ID


class Numbers:
    """Token ids in memory, of texts that are written-out ids: "7 11" is 7, 11 and the end."""

    def __init__(self, texts):
        self.rows = [
            tuple(np.array([*map(int, text.split()), E], np.int32) for text in pair)
            for pair in texts
        ]
        lengths = [[len(source), len(target)] for source, target in self.rows]
        self.lengths = np.array(lengths, np.uint16)

    def read(self, rows):
        return [self.rows[row] for row in rows]


def random_lengths(seed, rows=211, longest=53):
    """Lengths of both sides of pairs; long ones are rare, as in text."""
    return np.minimum(np.random.default_rng(seed).geometric(0.1, (rows, 2)) + 1, longest)


def epoch(plan, number):
    steps = range(number * plan.batches_per_epoch, (number + 1) * plan.batches_per_epoch)
    return [rows.tolist() for _, rows in map(plan.batch, steps)]


@pytest.fixture(scope="module")
def number_pairs():
    """Pairs whose lengths, with `EOS_ID`, spread over several buckets."""
    random = np.random.default_rng(7)
    texts = [
        [" ".join(map(str, random.integers(4, 99, length - 1))) for length in row]
        for row in random_lengths(3, rows=61, longest=23)
    ]
    return Numbers(texts)


# The plan.


@pytest.mark.parametrize("seed", [None, 0, 5])
@pytest.mark.parametrize("tokens_per_batch", [53, 128, 1000, 10**6])
def test_an_epoch_of_batches(seed, tokens_per_batch):
    """Every row is there once, within the limit of tokens, and batches are at least half full."""
    lengths = random_lengths(2)
    plan = BatchPlan(lengths, tokens_per_batch, seed)
    for number in (0, 1, 7):
        batches = epoch(plan, number)
        assert sorted(itertools.chain.from_iterable(batches)) == list(range(211))
        assert all(len(rows) * lengths[rows].max() <= tokens_per_batch for rows in batches)
    for bucket, rows in map(plan.batch, range(plan.batches_per_epoch)):
        assert len(rows) >= min(bucket.batch_rows / 2, len(lengths))
    for bucket in plan.buckets:
        assert bucket.batch_rows * bucket.length <= tokens_per_batch
        assert lengths[bucket.rows].max() <= bucket.length


def test_batches_of_a_bucket_are_nearly_equal():
    # 17 pairs of 8 tokens, at most 5 to a batch of 47 tokens.
    plan = BatchPlan(np.full((17, 2), 8), tokens_per_batch=47, seed=1)
    assert plan.batches_per_epoch == 4
    assert sorted(map(len, epoch(plan, 0))) == [4, 4, 4, 5]


def test_batch_depends_on_seed_and_step_alone():
    plan, other = (BatchPlan(random_lengths(4), 128, seed=3) for _ in range(2))
    steps = list(range(3 * plan.batches_per_epoch))
    batches = {step: plan.batch(step)[1].tolist() for step in steps}
    assert batches == {step: other.batch(step)[1].tolist() for step in reversed(steps)}
    bucket, rows = plan.batch(10**15)  # a late step needs no replay
    assert set(rows) <= set(bucket.rows)


def test_epochs_and_seeds_differ():
    first, second = (BatchPlan(random_lengths(4), 128, seed) for seed in (1, 2))
    orders = [epoch(first, 0), epoch(first, 1), epoch(first, 2), epoch(second, 0)]
    for one, other in itertools.combinations(orders, 2):
        assert one != other  # the order of the batches
        assert sorted(map(sorted, one)) != sorted(map(sorted, other))  # and what they hold
    lengths = [first.batch(step)[0].length for step in range(first.batches_per_epoch)]
    assert lengths != sorted(lengths)  # buckets are mixed


def test_without_a_seed_batches_come_by_length():
    lengths = random_lengths(5)
    plan = BatchPlan(lengths, 128, seed=None)
    longest = [lengths[rows].max(axis=1) for rows in epoch(plan, 0)]
    assert all(
        one.max() <= other.min() or plan.batch(i)[0] is plan.batch(i + 1)[0]
        for i, (one, other) in enumerate(itertools.pairwise(longest))
    )
    assert longest[0].max() < longest[-1].min()
    assert epoch(plan, 0) == epoch(plan, 1)


def test_padding_share():
    # A batch of three pairs: 3 * (7 + 6) positions and 8 + 9 + 12 tokens; one of two pairs, 2 *
    # (11 + 9) positions and 35 tokens. So 15 of 79 positions are padding.
    lengths = np.array([[3, 5], [7, 2], [6, 6], [11, 4], [11, 9]])
    for seed in (None, 1):
        assert BatchPlan(lengths, 24, seed).padding_share == pytest.approx(15 / 79)


def test_batch_must_hold_the_longest_pair():
    assert BatchPlan(np.array([[3, 5], [13, 4]]), 13, seed=1).batches_per_epoch == 2
    match = "at least the longest pair's tokens, 13. Received: tokens_per_batch=12"
    with pytest.raises(InputError, match=match):
        BatchPlan(np.array([[3, 5], [13, 4]]), 12, seed=1)


# The dataset.


def test_dataset_shifts_the_target():
    pairs = Numbers([("5 6 7", "8"), ("9", "10 11 12 13")])
    plan = BatchPlan(pairs.lengths, 24, seed=None)
    ((inputs, labels, weights),) = make_dataset(pairs, plan, range(1)).as_numpy_iterator()
    np.testing.assert_array_equal(inputs["source_ids"], [[5, 6, 7, E], [9, E, P, P]])
    np.testing.assert_array_equal(labels, [[8, E, P, P, P], [10, 11, 12, 13, E]])
    # The start symbol, then all labels but the last.
    np.testing.assert_array_equal(inputs["target_ids"], [[B, 8, E, P, P], [B, 10, 11, 12, 13]])
    # Seven tokens.
    np.testing.assert_allclose(weights, np.array([[1, 1, 0, 0, 0], [1] * 5]) / 7, rtol=1e-6)
    assert {array.dtype.name for array in (*inputs.values(), labels)} == {"int32"}
    assert weights.dtype == np.float32


def test_static_shapes_are_few_and_hold_the_same_tokens(number_pairs):
    plan = BatchPlan(number_pairs.lengths, 64, seed=1)
    assert len(plan.buckets) > 2
    batches, static_batches = (
        list(make_dataset(number_pairs, plan, range(plan.batches_per_epoch), static_shapes))
        for static_shapes in (False, True)
    )
    shapes = set()
    for (inputs, labels, weights), static in zip(batches, static_batches, strict=True):
        static_inputs, static_labels, static_weights = static
        shapes |= {tuple(array.shape) for array in (*static_inputs.values(), static_labels)}
        rows = len(labels)
        for dense, padded in (
            (inputs["source_ids"], static_inputs["source_ids"]),
            (labels, static_labels),
            (weights, static_weights),
        ):
            width = dense.shape[1]
            np.testing.assert_array_equal(padded[:rows, :width], dense)
            np.testing.assert_array_equal(padded[:rows, width:], 0)
        assert np.all(static_weights[rows:] == 0)
        assert np.prod(static_labels.shape) <= 64
    assert shapes == {(bucket.batch_rows, bucket.length) for bucket in plan.buckets}


def test_starting_late_is_skipping(number_pairs):
    plan = BatchPlan(number_pairs.lengths, 64, seed=1)
    stop = plan.batches_per_epoch + 3
    start = plan.batches_per_epoch - 2
    late = list(make_dataset(number_pairs, plan, range(start, stop)))
    skipped = list(make_dataset(number_pairs, plan, range(stop)).skip(start))
    assert len(late) == 5
    tf.nest.map_structure(np.testing.assert_array_equal, late, skipped)


# The rows of some replicas.


def texts(inputs, labels, weights):
    """Returns the tokens of each row that is not all padding, with its weight."""
    found = []
    for source, target, label, weight in zip(*inputs.values(), labels, weights, strict=True):
        assert target[0] == B
        np.testing.assert_array_equal(weight > 0, label != P)
        if label.any():
            kept = source[source != P], target[label != P], label[label != P]
            tokens = [ids.tolist() for ids in kept]
            found.append((*tokens, float(weight[0])))
    return found


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("replicas", [2, 5])
def test_shards_make_up_the_batch(number_pairs, replicas, static_shapes):
    """However a batch is split, each text is there once, with the same weight."""
    plan = BatchPlan(number_pairs.lengths, 64, seed=1)
    steps = range(3, plan.batches_per_epoch)
    assert replicas == 2 or min(len(plan.batch(step)[1]) for step in steps) < replicas
    complete = make_dataset(number_pairs, plan, steps).as_numpy_iterator()
    datasets = [
        make_dataset(number_pairs, plan, steps, static_shapes, replicas, range(first, first + 1))
        for first in range(replicas)
    ]
    for batch, *shards in zip(
        complete, *(dataset.as_numpy_iterator() for dataset in datasets), strict=True
    ):
        assert all(len(labels) > 0 for _, labels, _ in shards)
        found = [text for shard in shards for text in texts(*shard)]
        assert sorted(found) == sorted(texts(*batch))


def test_one_process_reads_for_all_its_replicas(number_pairs):
    plan = BatchPlan(number_pairs.lengths, 64, seed=1)
    dataset, *alone = (
        make_dataset(number_pairs, plan, range(4), num_replicas=5, replicas=replicas)
        for replicas in (range(2, 4), range(2, 3), range(3, 4))
    )
    assert dataset.cardinality() == 8
    taken = list(dataset)
    for i, both in enumerate(zip(*alone, strict=True)):
        tf.nest.map_structure(np.testing.assert_array_equal, taken[2 * i : 2 * i + 2], list(both))
