"""Groups of rows, by hand."""

import pytest
import tensorflow as tf

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
