"""The step function of a search with an `Ensemble`."""

from typing import Any

import tensorflow as tf

from keras_transformer.ensemble.model import Ensemble, mean_log_probs
from keras_transformer.registry import step_of

States = tuple[Any, ...]  # of each member


class EnsembleStep:
    """The step functions of the members, and the mean of their probabilities.

    Args:
        model: the model.
        max_length: int32 [], the maximum length of a hypothesis in tokens.
        num_sequences: int32 [], the number of hypotheses of all rows.
    """

    def __init__(
        self, model: Ensemble, max_length: int | tf.Tensor, num_sequences: int | tf.Tensor
    ) -> None:
        self.steps = [step_of(member, max_length, num_sequences) for member in model.members]

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[States, States]:
        """Encodes sources and returns the states before the first step.

        Args:
            source_ids: int32 [B, S], with at least one token in each row.
            beam_size: hypotheses of each source, K.
        """
        states = (step.initial_state(source_ids, beam_size) for step in self.steps)
        caches, row_states = zip(*states, strict=True)
        return caches, row_states

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, caches: States, row_states: States
    ) -> tuple[tf.Tensor, States, States]:
        """Computes the log probabilities that follow one more token of each hypothesis.

        Args:
            target_ids: int32 [B, K], the newest token of each hypothesis.
            position: int32 [], its position, counted from 0.
            caches: the result of `initial_state` or of the previous step.
            row_states: the same.

        Returns:
            Log probabilities, float32 [B, K, V], and the new states.
        """
        found = (
            step(target_ids, position, *state)
            for step, *state in zip(self.steps, caches, row_states, strict=True)
        )
        logits, caches, row_states = zip(*found, strict=True)
        return mean_log_probs(logits), caches, row_states
