"""A function of many rows, computed group by group in bounded memory."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def map_groups(
    function: Callable[[tf.Tensor], Any],
    costs: tf.Tensor,
    max_cost: int,
    max_rows: int,
    empty: Any,
) -> Any:
    """Returns what `function` computes for all rows, rows of similar cost together.

    A group has at most `max_rows` rows, and its number of rows times its highest cost is at most
    `max_cost`. A row that costs more than `max_cost` is a group of its own.

    Args:
        function: takes row numbers, int32 [G], highest cost first; returns a nest of tensors with
            a leading dimension of G.
        costs: int32 [B].
        max_cost: maximum cost of a group.
        max_rows: maximum number of rows of a group.
        empty: the result for 0 rows. The other dimensions of each result are padded with zeros to
            those of `empty`.
    """
    order = tf.argsort(costs, direction="DESCENDING", stable=True)

    def pad(found: tf.Tensor, empty: tf.Tensor) -> tf.Tensor:
        missing = tf.shape(empty)[1:] - tf.shape(found)[1:]
        return tf.pad(found, tf.pad(missing[:, None], [[1, 0], [1, 0]]))

    def advance(start: tf.Tensor, number: tf.Tensor, arrays: Any) -> tuple[Any, Any, Any]:
        size = tf.clip_by_value(max_cost // costs[order[start]], 1, max_rows)
        rows = order[start : start + size]
        found = tf.nest.map_structure(pad, function(rows), empty)
        arrays = tf.nest.map_structure(lambda array, x: array.write(number, x), arrays, found)
        return start + tf.size(rows), number + 1, arrays

    def new_array(empty: tf.Tensor) -> tf.TensorArray:
        shape = tf.TensorShape([None, *empty.shape[1:]])
        array = tf.TensorArray(
            empty.dtype, size=1, dynamic_size=True, infer_shape=False, element_shape=shape
        )
        return array.write(0, empty)  # the result where there are no groups

    _, _, arrays = tf.while_loop(
        lambda start, *_: start < tf.size(costs),
        advance,
        (0, 1, tf.nest.map_structure(new_array, empty)),
        parallel_iterations=1,
    )
    places = tf.math.invert_permutation(order)
    return tf.nest.map_structure(lambda array: tf.gather(array.concat(), places), arrays)
