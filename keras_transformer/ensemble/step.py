"""The step function of a search with an `Ensemble`."""

from typing import Any

import tensorflow as tf

from keras_transformer.ensemble.model import Ensemble, mean_log_probs
from keras_transformer.registry import step_of

States = tuple[Any, ...]  # of each member


class EnsembleStep:
    """The step functions of the members, and the mean of their probabilities."""

    def __init__(
        self, model: Ensemble, max_length: int | tf.Tensor, num_sequences: int | tf.Tensor
    ) -> None:
        self.steps = [step_of(member, max_length, num_sequences) for member in model.members]

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[States, States]:
        states = (step.initial_state(source_ids, beam_size) for step in self.steps)
        caches, row_states = zip(*states, strict=True)
        return caches, row_states

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, caches: States, row_states: States
    ) -> tuple[tf.Tensor, States, States]:
        results = (
            step(target_ids, position, *state)
            for step, *state in zip(self.steps, caches, row_states, strict=True)
        )
        logits, caches, row_states = zip(*results, strict=True)
        return mean_log_probs(logits), caches, row_states
