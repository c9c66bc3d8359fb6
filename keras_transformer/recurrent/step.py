"""The step function of a search with a `Recurrent`: the decoder for one more token.

The tests compare it with `Recurrent.decode`. All hypotheses of a sentence share the encoder's
output: they are the positions of attention's query.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.recurrent.model import Recurrent

# The states of all decoder layers, float [B, K, U]. The search gathers them when hypotheses
# change places.
States = tuple[tuple[tf.Tensor, ...], ...]


class EncodedRows(NamedTuple):
    """What attention keeps of a batch of sentences."""

    keys: tf.Tensor  # float [B, S, U]
    values: tf.Tensor  # float [B, S, E]
    mask: tf.Tensor  # bool [B, S], False at padding


class RecurrentStep:
    """The step function of `beam_search`, with the current weights of a model.

    For the search, its `cache` is `States`, and its `row_state` is `EncodedRows`. The arguments are
    those of `DecoderStep`; a recurrent decoder needs only the model.
    """

    def __init__(
        self, model: Recurrent, max_length: int | tf.Tensor, num_sequences: int | tf.Tensor
    ) -> None:
        self.model = model

    def initial_state(self, source_ids: tf.Tensor, beam_size: int) -> tuple[States, EncodedRows]:
        """Encodes sources, int32 [B, S], and returns the state before the first step."""
        values = self.model.encode(source_ids, training=False)  # [B, S, E]
        states = tf.nest.map_structure(
            lambda state: tf.repeat(state[:, None], beam_size, axis=1),  # [B, K, U]
            self.model.initial_states(values),
        )
        rows = EncodedRows(self.model.key_dense(values), values, source_ids != PAD_ID)
        return tuple(map(tuple, states)), rows

    def __call__(
        self, target_ids: tf.Tensor, position: tf.Tensor, states: States, rows: EncodedRows
    ) -> tuple[tf.Tensor, States, EncodedRows]:
        model, units, num_beams = self.model, self.model.config.units, target_ids.shape[1]
        x = model.embed(model.target_embedding, target_ids)  # [B, K, D]
        new_states: list[tuple[tf.Tensor, ...]] = []
        for i, (layer, state) in enumerate(zip(model.decoder_layers, states, strict=True)):
            before = [tf.reshape(part, [-1, units]) for part in state]
            x, after = layer.cell(tf.reshape(x, [-1, x.shape[-1]]), before)  # [R, U]
            new_states.append(tuple(tf.reshape(part, [-1, num_beams, units]) for part in after))
            x = tf.reshape(x, [-1, num_beams, units])
            if i == 0:
                attended, _ = model.attend(x, *rows)  # [B, K, E]
            x = tf.concat([attended, x], axis=2)  # [B, K, E + U]
        return model.project(model.combine_dense(x)), tuple(new_states), rows
