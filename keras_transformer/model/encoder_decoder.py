"""What all architectures have in common: a functional Keras model of two sequences."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import keras
from jaxtyping import Float
from keras import ops

from keras_transformer.errors import InputError
from keras_transformer.model.tensor import Tensor


class AttentionScores(NamedTuple):
    """The attention weights of all layers and heads.

    The last two axes are queries and keys, and the weights of a query add up to 1. Query t of
    `decoder` and `cross` predicts the token that follows `target_ids[:, t]`.
    """

    encoder: tuple[Tensor, ...]  # a float [B, N, S, S] for each layer
    decoder: tuple[Tensor, ...]  # a float [B, N, T, T] for each layer
    cross: tuple[Tensor, ...]  # a float [B, N, T, S] for each layer


class EncoderDecoder(keras.Model):
    """What the architectures have in common: inputs, configuration and files."""

    config_type: ClassVar[Any]

    source_embedding: Any
    encoder_layers: list[Any]
    target_embedding: Any
    decoder_layers: list[Any]
    encoder_norm: keras.layers.Layer | None = None  # after the last layer, with `norm_first`
    decoder_norm: keras.layers.Layer | None = None
    output_dense: keras.layers.Dense | None  # None where the target's embedding is shared
    # The encoder, and the decoder with the output projection, on all positions.
    encode: Callable[..., Any]
    decode: Callable[..., Any]
    attention_scores: Callable[..., AttentionScores]  # without dropout

    def __init__(self, config: Any, **kwargs: Any) -> None:
        if not isinstance(config, self.config_type):
            raise InputError(
                f"`config` must be a {self.config_type.__name__}. Received: {config!r}"
            )
        # Assignment would make Keras list the weights in another order than that of the graph.
        self.__dict__.update(config=config, **self._make_layers(config))
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")  # [B, S]
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")  # [B, T]
        logits = self._logits(source_ids, target_ids)  # [B, T, V]
        super().__init__(
            inputs={"source_ids": source_ids, "target_ids": target_ids}, outputs=logits, **kwargs
        )

    def _make_layers(self, config: Any) -> dict[str, Any]:  # by the names of their attributes
        raise NotImplementedError

    def _logits(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        return self.decode(target_ids, self.encode(source_ids), source_ids)

    @property
    def num_cross_attentions(self) -> int:
        """The number of `cross` in `attention_scores`."""
        raise NotImplementedError

    @classmethod
    def from_preset(cls, /, preset: str, *, vocab_size: int, **overrides: Any) -> Self:
        """Builds a model with fresh weights, by the configuration's `from_preset`."""
        return cls(cls.config_type.from_preset(preset, vocab_size=vocab_size, **overrides))

    def project(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Computes the logits, float32 [B, T, V], of the decoder's output."""
        dense = self.output_dense
        logits = self.target_embedding(x, reverse=True) if dense is None else dense(x)
        return ops.cast(logits, "float32")

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Raises an `InputError`, because a search cannot use quantized weights."""
        raise InputError(
            f"A {type(self).__name__} cannot be quantized; "
            "`export --weights float16` halves what is stored"
        )

    def get_config(self) -> dict[str, Any]:
        return {"config": self.config.to_dict(), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(cls.config_type(**config["config"]), name=config["name"])
