"""Groups of rows, by hand."""

import os
import threading

import pytest
import tensorflow as tf

from keras_transformer.search import groups
from keras_transformer.search.groups import map_groups


@pytest.mark.parametrize(
    ("costs", "max_cost", "sizes"),
    [
        # 11 costs more than there is and is alone, 7 too; 10 // 5 = 2 rows, 5 and 3; 2 is left.
        ([5, 7, 3, 11, 2], 10, [2, 1, 2, 1, 1]),
        ([5, 7, 3, 11, 2], 14, [2, 2, 2, 1, 2]),  # 11 | 7 5 | 3 2
        ([1, 1, 1, 1, 1], 100, [3, 3, 3, 2, 2]),  # at most 3, in order where costs are equal
        ([], 10, []),
    ],
)
def test_groups_by_hand(costs, max_cost, sizes):
    costs = tf.constant(costs, tf.int32)

    def rows_and_size(rows):
        padded = tf.repeat(rows[:, None], tf.gather(costs, rows[0]), axis=1)
        return padded, tf.fill([tf.size(rows)], tf.size(rows))

    empty = (tf.zeros([0, 11], tf.int32), tf.zeros([0], tf.int32))
    rows, found = map_groups(rows_and_size, costs, max_cost, 3, empty)
    assert rows.shape == (len(costs), 11)
    assert found.numpy().tolist() == sizes
    for row, line in enumerate(rows.numpy()):
        assert line[: int(costs[row])].tolist() == [row] * int(costs[row])


# At least 3 rows a part, or two parts of at least 2; at most 4 parts.
@pytest.mark.parametrize(
    ("num_rows", "num_parts"), [(3, 1), (4, 2), (8, 2), (9, 3), (12, 4), (17, 4)]
)
def test_rows_are_dealt_to_parts(num_rows, num_parts, monkeypatch):
    monkeypatch.setattr(groups, "MIN_PART_ROWS", 3)
    monkeypatch.setattr(groups, "MIN_HALF_ROWS", 2)
    costs = tf.random.shuffle(tf.range(1, num_rows + 1), seed=1)

    def rows_and_highest(rows):
        return rows, tf.fill([tf.size(rows)], costs[rows[0]])

    empty = (tf.zeros([0], tf.int32), tf.zeros([0], tf.int32))
    rows, highest = map_groups(rows_and_highest, costs, 1_000, 100, empty, max_parts=4)
    assert rows.numpy().tolist() == list(range(num_rows))
    # Each part is one group. The rows of the highest costs come first in one part each.
    assert set(highest.numpy()) == {num_rows - part for part in range(num_parts)}
    assert (highest.numpy() >= costs.numpy()).all()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one core")
def test_parts_are_computed_side_by_side():
    """Each of two parts waits for the other."""
    barrier = threading.Barrier(2, timeout=20)

    def function(rows):
        return tf.ensure_shape(tf.numpy_function(wait, [rows], tf.int32, stateful=False), [None])

    def wait(rows):
        barrier.wait()
        return rows

    compute = tf.function(
        lambda costs: map_groups(function, costs, 1_000, 100, tf.zeros([0], tf.int32))
    )
    assert compute(tf.fill([8], 1)).numpy().tolist() == list(range(8))
