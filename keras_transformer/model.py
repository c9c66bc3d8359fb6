"""The encoder-decoder Transformer (Figure 1 of the paper), a functional Keras model.

Shapes (the package's glossary): B batch, S source length, T target length, D d_model, N heads,
H head size (d_k or d_v), V vocabulary, K beams, C cache length.
"""

from typing import Any, NamedTuple, Self

import keras
from keras import ops

from keras_transformer import losses, schedules  # noqa: F401  # for files of compiled models
from keras_transformer.attention import (
    KeyValueCache,
    MultiHeadAttention,
    additive_mask,
    matrix_product,
)
from keras_transformer.config import TransformerConfig
from keras_transformer.embedding import PositionalEmbedding
from keras_transformer.errors import InputError
from keras_transformer.layers import DecoderLayer, EncoderLayer
from keras_transformer.masks import decoder_mask, padding_mask


class DecoderMemory(NamedTuple):
    """What the decoder keeps of a batch of sentences while it decodes.

    Attributes:
        source: per decoder layer, cross-attention's keys and values of the encoder's output.
        source_mask: float [B, 1, 1, S], to be added to scores: very negative at padding.
        target: per decoder layer, self-attention's keys and values of all positions of all
            hypotheses so far, C of a sentence. They stay where they are whichever hypotheses live
            on, for to move them costs more than to compute scores that a mask hides.
    """

    source: tuple[KeyValueCache, ...]
    source_mask: Any
    target: tuple[KeyValueCache, ...]


class AttentionScores(NamedTuple):
    """The attention weights of all layers and heads, one array a layer.

    A row is a query: row t of `decoder` and `cross` belongs to the token that follows
    `target_ids[:, t]`. Each row's weights over the keys that it may see add up to 1.

    Attributes:
        encoder: float [B, N, S, S] each.
        decoder: float [B, N, T, T] each.
        cross: float [B, N, T, S] each.
    """

    encoder: tuple[Any, ...]
    decoder: tuple[Any, ...]
    cross: tuple[Any, ...]


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(keras.Model):
    """The model of "Attention Is All You Need", from token ids to logits.

    Inputs are a dictionary: `source_ids`, int32 [B, S], and `target_ids`, int32 [B, T], the
    target shifted right; both padded with 0, S and T at least 1. The output is logits, float32
    [B, T, V], in any precision. Source embedding, target embedding and output projection are one
    matrix (section 3.4) unless the config says otherwise.

    Its precision is Keras's global dtype policy at the time it is built. `fit`, `save` and
    `keras.models.load_model` work as for every functional model, but that a loaded one has the
    global policy, too, and is trainable in all its layers. Keras finds the classes of a file once
    `from keras_transformer import Transformer` has run. `encode`, `memory` and `decode_step` give
    the same computation in the pieces that a search needs.

    Args:
        config: sizes and rates.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import Transformer, TransformerConfig
        >>> config = TransformerConfig(
        ...     vocab_size=19,
        ...     d_model=6,
        ...     d_ff=11,
        ...     num_heads=2,
        ...     num_encoder_layers=1,
        ...     num_decoder_layers=1,
        ... )
        >>> model = Transformer(config)
        >>> logits = model({
        ...     "source_ids": np.array([[5, 7, 3]]),
        ...     "target_ids": np.array([[2, 11, 4, 8]]),
        ... })
        >>> tuple(logits.shape)
        (1, 4, 19)
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        def embedding(name: str) -> PositionalEmbedding:
            return PositionalEmbedding(
                config.vocab_size,
                config.d_model,
                dropout_rate=config.dropout_rate,
                position_encoding=config.position_encoding,
                max_length=config.max_length,
                name=name,
            )

        sizes: dict[str, Any] = {
            "d_model": config.d_model,
            "d_ff": config.d_ff,
            "num_heads": config.num_heads,
            "dropout_rate": config.dropout_rate,
            "attention_dropout_rate": config.attention_dropout_rate,
            "feed_forward_dropout_rate": config.feed_forward_dropout_rate,
            "d_k": config.d_k,
            "d_v": config.d_v,
        }
        if config.share_embeddings:
            source_embedding = target_embedding = embedding("embedding")
            output_dense = None
        else:
            source_embedding = embedding("source_embedding")
            target_embedding = embedding("target_embedding")
            output_dense = keras.layers.Dense(config.vocab_size, use_bias=False, name="output")
        encoder_layers = [
            EncoderLayer(**sizes, name=f"encoder_{i}") for i in range(config.num_encoder_layers)
        ]
        decoder_layers = [
            DecoderLayer(**sizes, name=f"decoder_{i}") for i in range(config.num_decoder_layers)
        ]

        source_ids = keras.Input((None,), dtype="int32", name="source_ids")  # [B, S]
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")  # [B, T]
        source_mask = padding_mask(source_ids)  # [B, 1, 1, S]
        target_mask = decoder_mask(target_ids)  # [B, 1, T, T]

        x = source_embedding(source_ids)  # [B, S, D]
        for layer in encoder_layers:
            x = layer(x, attention_mask=source_mask)
        encoder_output = x
        x = target_embedding(target_ids)  # [B, T, D]
        for layer in decoder_layers:
            x = layer(
                x,
                encoder_output,
                self_attention_mask=target_mask,
                cross_attention_mask=source_mask,
            )
        if output_dense is None:
            logits = target_embedding.token_embedding(x, reverse=True)  # [B, T, V]
        else:
            logits = output_dense(x)  # [B, T, V]
        logits = ops.cast(logits, "float32")

        super().__init__(
            inputs={"source_ids": source_ids, "target_ids": target_ids}, outputs=logits, **kwargs
        )
        self.config = config
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.encoder_layers = encoder_layers
        self.decoder_layers = decoder_layers
        self.output_dense = output_dense

    @classmethod
    def from_preset(cls, /, preset: str, *, vocab_size: int, **overrides: Any) -> Self:
        """Builds a model of a published size with fresh weights.

        Args:
            preset: "tiny", "base", "big", or a row of `TABLE_3`.
            vocab_size: number of token ids, V.
            **overrides: other attributes of `TransformerConfig`.

        Raises:
            InputError: if there is no such preset or attribute, or a value is out of range.
        """
        return cls(TransformerConfig.from_preset(preset, vocab_size=vocab_size, **overrides))

    def encode(self, source_ids: Any) -> Any:
        """Runs the encoder without dropout.

        Args:
            source_ids: int32 [B, S].

        Returns:
            float [B, S, D].
        """
        mask = padding_mask(source_ids)
        x = self.source_embedding(source_ids, training=False)  # [B, S, D]
        for layer in self.encoder_layers:
            x = layer(x, attention_mask=mask, training=False)
        return x

    def attention_scores(self, source_ids: Any, target_ids: Any) -> AttentionScores:
        """Returns what every head attends to, without dropout whatever its rate.

        Args:
            source_ids: int32 [B, S].
            target_ids: int32 [B, T], the target shifted right.
        """
        source_mask, target_mask = padding_mask(source_ids), decoder_mask(target_ids)
        encoder, decoder, cross = [], [], []
        x = self.source_embedding(source_ids, training=False)  # [B, S, D]
        for layer in self.encoder_layers:
            x, scores = layer(x, source_mask, return_attention_scores=True, training=False)
            encoder.append(scores)
        encoder_output = x
        x = self.target_embedding(target_ids, training=False)  # [B, T, D]
        for layer in self.decoder_layers:
            x, self_scores, cross_scores = layer(
                x,
                encoder_output,
                target_mask,
                source_mask,
                return_attention_scores=True,
                training=False,
            )
            decoder.append(self_scores)
            cross.append(cross_scores)
        return AttentionScores(tuple(encoder), tuple(decoder), tuple(cross))

    def memory(self, source_ids: Any) -> DecoderMemory:
        """Encodes sources and projects what every decoding step will attend to.

        Args:
            source_ids: int32 [B, S], at least one token in each row.
        """
        encoder_output = self.encode(source_ids)  # [B, S, D]
        num_rows = ops.shape(source_ids)[0]

        def nothing(attention: MultiHeadAttention) -> KeyValueCache:
            heads = (num_rows, attention.num_heads)
            return KeyValueCache(
                keys=ops.zeros((*heads, attention.d_k, 0), self.compute_dtype),
                values=ops.zeros((*heads, 0, attention.d_v), self.compute_dtype),
            )

        return DecoderMemory(
            source=tuple(
                layer.cross_attention.project_memory(encoder_output)
                for layer in self.decoder_layers
            ),
            source_mask=additive_mask(padding_mask(source_ids)),
            target=tuple(nothing(layer.self_attention) for layer in self.decoder_layers),
        )

    def no_ancestors(self, num_rows: Any) -> Any:
        """Returns the `ancestors` of hypotheses before the first step, bool [B * K, 0].

        Args:
            num_rows: sentences times hypotheses, B * K.
        """
        return ops.zeros((num_rows, 0), "bool")

    def output_kernel(self) -> Any:
        """Returns the output projection, float [D, V], laid out for many small products."""
        if self.output_dense is None:
            kernel = ops.transpose(self.target_embedding.token_embedding.embeddings)  # [D, V]
        else:
            kernel = self.output_dense.kernel
        return ops.cast(kernel, self.compute_dtype)

    def decode_step(
        self,
        target_ids: Any,
        position: Any,
        ancestors: Any,
        memory: DecoderMemory,
        output_kernel: Any,
    ) -> tuple[Any, Any, DecoderMemory]:
        """Computes the logits that follow one more token of K hypotheses per sentence.

        Args:
            target_ids: int32 [B, K], the newest token of each hypothesis.
            position: its position, counted from 0 (the start symbol's).
            ancestors: bool [B * K, C], which of the sentence's positions belong to a hypothesis.
                Who chooses other hypotheses to live on gathers their rows.
            memory: of the sentences, as returned by `memory` or the previous step.
            output_kernel: as returned by `output_kernel`, once for all steps.

        Returns:
            logits, float32 [B, K, V], and the longer `memory`, and `ancestors` where K > 1.
        """
        num_beams = target_ids.shape[1]
        rows = ops.reshape(target_ids, (-1, 1))  # [B * K, 1]
        x = self.target_embedding(rows, start=position, training=False)  # [B * K, 1, D]
        x = ops.reshape(x, (-1, num_beams, self.config.d_model))  # [B, K, D]
        mask = None  # a single hypothesis sees everything
        if num_beams > 1:
            themselves = ops.tile(ops.eye(num_beams, dtype="bool"), (ops.shape(target_ids)[0], 1))
            ancestors = ops.concatenate([ancestors, themselves], axis=1)  # [B * K, C + K]
            num_positions = ops.shape(ancestors)[1]
            mask = additive_mask(ops.reshape(ancestors, (-1, 1, num_beams, num_positions)))
        target = []
        for layer, cache, source in zip(
            self.decoder_layers, memory.target, memory.source, strict=True
        ):
            x, cache = layer.decode_step(x, cache, mask, source, memory.source_mask)
            target.append(cache)
        logits = matrix_product(x, output_kernel)  # [B, K, V]
        return ops.cast(logits, "float32"), ancestors, memory._replace(target=tuple(target))

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Refuses: matrices are used in more places than the layers that Keras would rewrite.

        Raises:
            InputError: always.
        """
        raise InputError(
            "A Transformer cannot be quantized; `export --weights float16` halves what is stored"
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the sizes as plain values."""
        return {"config": self.config.to_dict(), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Inverse of `get_config`."""
        sizes, name = config["config"], config["name"]
        return cls(TransformerConfig.from_dict(sizes), name=name)
