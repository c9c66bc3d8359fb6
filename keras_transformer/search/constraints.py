"""What the results of a search must keep to.

Shapes (the package's glossary): B batch, K beams, V vocabulary.
"""

from typing import Any, Protocol

import tensorflow as tf

from keras_transformer.search.beam_search import StepFunction


class Constraint(Protocol):
    """Restricts what a search finds. The rows of a call are its sources."""

    @property
    def min_lengths(self) -> tf.Tensor:
        """The number of tokens that each row's shortest result needs, the end included, int32."""

    def apply(
        self,
        step_fn: StepFunction,
        cache: Any,
        row_state: Any,
        rows: tf.Tensor,
        max_lengths: tf.Tensor,
        beam_size: int,
    ) -> tuple[StepFunction, Any, Any]:
        """Returns the step function of some rows, restricted, its `cache` and its `row_state`.

        The logits of tokens that must not follow become -inf. At least one token may follow each
        sequence, also one that the search has given up.

        Args:
            step_fn: the step function; see `beam_search`.
            cache: its state of the hypotheses, leading dimensions B, K.
            row_state: its state of the rows, leading dimension B.
            rows: int32 [B], the rows' numbers.
            max_lengths: int32 [B], at least their `min_lengths`.
            beam_size: K.
        """
