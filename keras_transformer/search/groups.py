"""A function of many rows, computed group by group in bounded memory, on all cores.

The operations of a search are too small to share between threads. So the rows are dealt to parts
that are computed side by side. It pays with one thread for each operation (docs/speed.md).
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

MAX_PARTS = 8  # more than most machines have cores
# The fewest rows of each of two parts, and of each of more parts: smaller ones take longer in all.
MIN_HALF_ROWS, MIN_PART_ROWS = 4, 16


def map_groups(
    function: Callable[[tf.Tensor], Any],
    costs: tf.Tensor,
    max_cost: int,
    max_rows: int,
    empty: Any,
    max_parts: int | None = None,
) -> Any:
    """Returns what `function` computes for all rows, rows of similar cost together.

    The rows are dealt by cost to parts, which are computed side by side, each group by group. A
    group has at most `max_rows` rows, and its number of rows times its highest cost is at most
    `max_cost`. A row that costs more than `max_cost` is a group of its own.

    Args:
        function: takes row numbers, int32 [G], highest cost first; returns a nest of tensors with
            a leading dimension of G. Parts are computed one after another if it is stateful: read
            variables before.
        costs: int32 [B].
        max_cost: maximum cost of a group.
        max_rows: maximum number of rows of a group.
        empty: the result for 0 rows. The other dimensions of each result are padded with zeros to
            those of `empty`.
        max_parts: maximum number of parts; None for 1 if TensorFlow sees a GPU, which computes a
            large batch fastest, and for `MAX_PARTS` otherwise.
    """
    if max_parts is None:
        max_parts = 1 if tf.config.list_physical_devices("GPU") else MAX_PARTS
    num_rows = tf.size(costs)
    num_parts = tf.maximum(num_rows // MIN_PART_ROWS, tf.minimum(num_rows // MIN_HALF_ROWS, 2))
    num_parts = tf.clip_by_value(num_parts, 1, max_parts)
    order = tf.argsort(costs, direction="DESCENDING", stable=True)

    # The executor runs each call of a function on a thread of its own, unless it is inlined.
    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int32)],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )
    def part_of(rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def groups(row: tf.Tensor) -> tuple[tf.Tensor, Any]:
            size = tf.clip_by_value(max_cost // costs[rows[row]], 1, max_rows)
            group = rows[row : row + size]
            return row + size, tf.nest.map_structure(_padded, function(group), empty)

        return rows, _collect(groups, tf.size(rows), empty)

    def part(number: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return number + 1, part_of(order[number::num_parts])

    none = (tf.zeros([0], tf.int32), empty)
    rows, results = _collect(part, num_parts, none, parallel_iterations=max_parts)
    places = tf.math.invert_permutation(rows)
    return tf.nest.map_structure(lambda x: tf.gather(x, places), results)


def _collect(
    function: Callable[[tf.Tensor], tuple[tf.Tensor, Any]],
    end: tf.Tensor,
    empty: Any,
    parallel_iterations: int = 1,
) -> Any:
    """Concatenates the results of a function from 0 up to `end`.

    It takes a place, and returns the next place and its results.
    """

    def advance(place: tf.Tensor, number: tf.Tensor, arrays: Any) -> tuple[Any, Any, Any]:
        place, results = function(place)
        arrays = tf.nest.map_structure(lambda array, x: array.write(number, x), arrays, results)
        return place, number + 1, arrays

    def new_array(empty: tf.Tensor) -> tf.TensorArray:
        shape = tf.TensorShape([None, *empty.shape[1:]])
        array = tf.TensorArray(
            empty.dtype, size=1, dynamic_size=True, infer_shape=False, element_shape=shape
        )
        return array.write(0, empty)  # the result where there is nothing

    _, _, arrays = tf.while_loop(
        lambda place, *_: place < end,
        advance,
        (0, 1, tf.nest.map_structure(new_array, empty)),
        parallel_iterations=parallel_iterations,
    )
    return tf.nest.map_structure(lambda array: array.concat(), arrays)


def _padded(results: tf.Tensor, empty: tf.Tensor) -> tf.Tensor:
    missing = tf.shape(empty)[1:] - tf.shape(results)[1:]
    return tf.pad(results, tf.pad(missing[:, None], [[1, 0], [1, 0]]))
