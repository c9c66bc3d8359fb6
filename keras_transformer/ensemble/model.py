"""An ensemble of encoder-decoders."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from jaxtyping import Float, Int
from keras import ops

from keras_transformer.ensemble.config import EnsembleConfig
from keras_transformer.model.encoder_decoder import AttentionScores, EncoderDecoder
from keras_transformer.model.tensor import Tensor
from keras_transformer.registry import build_model


def mean_log_probs(logits: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, "..."]:
    """Returns the logarithm of the mean of several models' probabilities."""
    log_probs = ops.stack([ops.log_softmax(one) for one in logits])  # [members, ..., V]
    return ops.logsumexp(log_probs, axis=0) - math.log(len(logits))


@keras.saving.register_keras_serializable("keras_transformer")
class Ensemble(EncoderDecoder):
    """Several models as one: its probabilities are the mean of theirs.

    Inputs and outputs are those of `Transformer`; the logits are logarithms of probabilities. It
    translates, saves and exports as a `Transformer` does, and its search takes as long as those of
    all members together.

    Args:
        config: the configurations of the members.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import RecurrentConfig, TransformerConfig
        >>> from keras_transformer.ensemble.config import EnsembleConfig
        >>> from keras_transformer.ensemble.model import Ensemble
        >>> kinds = (TransformerConfig, RecurrentConfig)
        >>> configs = [kind.from_preset("tiny", vocab_size=19) for kind in kinds]
        >>> model = Ensemble(EnsembleConfig.of(configs))
        >>> source_ids, target_ids = np.array([[5, 7, 3]]), np.array([[2, 11, 4, 8]])
        >>> tuple(model({"source_ids": source_ids, "target_ids": target_ids}).shape)
        (1, 4, 19)
    """

    config_type = EnsembleConfig

    config: EnsembleConfig
    members: list[EncoderDecoder]  # the models

    def _make_layers(self, config: EnsembleConfig) -> dict[str, Any]:
        return {"members": [build_model(member) for member in config.configs]}

    def _logits(
        self, source_ids: Int[Tensor, "B S"], target_ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return mean_log_probs([member(inputs) for member in self.members])

    @property
    def num_cross_attentions(self) -> int:
        return min(member.num_cross_attentions for member in self.members)

    def attention_scores(
        self, source_ids: Int[Tensor, "B S"], target_ids: Int[Tensor, "B T"]
    ) -> AttentionScores:
        """Returns the attention weights, without dropout.

        A layer has the heads of all members, one member's after another's. Where members have
        different numbers of layers, they are counted from the last one, and the first ones of
        larger members are left out.
        """
        scores = [member.attention_scores(source_ids, target_ids) for member in self.members]
        return AttentionScores(*(_join_heads(kind) for kind in zip(*scores, strict=True)))


def _join_heads(layers: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Joins the heads, [B, N, queries, keys], in the layers that all members have."""
    same_depth = zip(*(reversed(member) for member in layers), strict=False)
    return tuple(ops.concatenate(heads, axis=1) for heads in same_depth)[::-1]
