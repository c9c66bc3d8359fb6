"""The encoder-decoder Transformer (Figure 1 of the paper), a functional Keras model."""

from typing import Any

import keras
from jaxtyping import Float, Int

from keras_transformer.config import TransformerConfig
from keras_transformer.model.embedding import PositionalEmbedding
from keras_transformer.model.encoder_decoder import AttentionScores, EncoderDecoder
from keras_transformer.model.layers import DecoderLayer, EncoderLayer
from keras_transformer.model.masks import decoder_mask, padding_mask
from keras_transformer.model.tensor import Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(EncoderDecoder):
    """The model of "Attention Is All You Need", from token ids to logits.

    The input is a dictionary of `source_ids`, int32 [B, S], and `target_ids`, int32 [B, T], the
    target shifted right. Both are padded with 0, and S and T are at least 1. The output is logits,
    float32 [B, T, V]. Source embedding, target embedding and output projection share one matrix
    (section 3.4), unless `config.share_embeddings` is False.

    The model takes Keras's global dtype policy when it is built. `fit` and `save` work as for any
    functional model, and so does `keras.models.load_model` after `import keras_transformer`.
    A file stores neither the dtype policy nor which layers are trainable. So Keras cannot restore
    the optimizer of a model that was compiled with frozen layers, or in mixed_float16 unless that
    policy is set before `load_model`: it warns, and the optimizer starts anew. The weights load.

    Args:
        config: sizes and rates.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import Transformer
        >>> model = Transformer.from_preset("tiny", vocab_size=19)
        >>> source_ids, target_ids = np.array([[5, 7, 3]]), np.array([[2, 11, 4, 8]])
        >>> tuple(model({"source_ids": source_ids, "target_ids": target_ids}).shape)
        (1, 4, 19)
    """

    config_type = TransformerConfig

    config: TransformerConfig
    source_embedding: PositionalEmbedding
    encoder_layers: list[EncoderLayer]
    target_embedding: PositionalEmbedding
    decoder_layers: list[DecoderLayer]

    def _make_layers(self, config: TransformerConfig) -> dict[str, Any]:
        sizes: dict[str, Any] = {
            "d_model": config.d_model,
            "d_ff": config.d_ff,
            "num_heads": config.num_heads,
            "dropout_rate": config.dropout_rate,
            "attention_dropout_rate": config.attention_dropout_rate,
            "feed_forward_dropout_rate": config.feed_forward_dropout_rate,
            "d_k": config.d_k,
            "d_v": config.d_v,
            "activation": config.activation,
            "layer_norm_epsilon": config.layer_norm_epsilon,
            "scale_attention": config.scale_attention,
            "norm_first": config.norm_first,
        }
        norms = {
            f"{side}_norm": keras.layers.LayerNormalization(
                epsilon=config.layer_norm_epsilon, name=f"{side}_norm"
            )
            for side in ("encoder", "decoder")
            if config.norm_first
        }
        if config.share_embeddings:
            source_embedding = target_embedding = _embedding(
                config, "embedding", config.vocab_size, config.output_bias
            )
            output_dense = None
        else:
            source_embedding = _embedding(config, "source_embedding", config.vocab_size)
            target_embedding = _embedding(config, "target_embedding", config.num_target_ids)
            output_dense = keras.layers.Dense(
                config.num_target_ids, use_bias=config.output_bias, name="output"
            )
        return {
            "source_embedding": source_embedding,
            "encoder_layers": [
                EncoderLayer(**sizes, name=f"encoder_{i}") for i in range(config.num_encoder_layers)
            ],
            "target_embedding": target_embedding,
            "decoder_layers": [
                DecoderLayer(**sizes, name=f"decoder_{i}") for i in range(config.num_decoder_layers)
            ],
            "output_dense": output_dense,
            **norms,
        }

    def encode(
        self,
        source_ids: Int[Tensor, "B S"],
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Float[Tensor, "B S D"] | tuple[Float[Tensor, "B S D"], tuple[Tensor, ...]]:
        """Runs the encoder.

        Returns:
            float [B, S, D]; with `return_attention_scores` also the weights, a float [B, N, S, S]
            for each layer.
        """
        mask = padding_mask(source_ids)  # [B, 1, 1, S]
        scores = []
        x = self.source_embedding(source_ids, training=training)  # [B, S, D]
        for layer in self.encoder_layers:
            x, weights = layer(x, mask, return_attention_scores=True, training=training)
            scores.append(weights)
        if self.encoder_norm is not None:
            x = self.encoder_norm(x)
        return (x, tuple(scores)) if return_attention_scores else x

    def decode(
        self,
        target_ids: Int[Tensor, "B T"],
        encoder_output: Float[Tensor, "B S D"],
        source_ids: Int[Tensor, "B S"],
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> (
        Float[Tensor, "B T V"]
        | tuple[Float[Tensor, "B T V"], tuple[Tensor, ...], tuple[Tensor, ...]]
    ):
        """Runs the decoder and the output projection on all target positions.

        Args:
            target_ids: int32 [B, T], the target shifted right.
            encoder_output: float [B, S, D], the output of `encode`.
            source_ids: int32 [B, S]; the decoder does not attend to its padding.
            return_attention_scores: whether to return the attention weights too.

        Returns:
            Logits, float32 [B, T, V]; with `return_attention_scores` also, for each layer, the
            weights of self-attention, float [B, N, T, T], and of cross-attention, [B, N, T, S].
        """
        self_mask = decoder_mask(target_ids)  # [B, 1, T, T]
        cross_mask = padding_mask(source_ids)  # [B, 1, 1, S]
        self_scores, cross_scores = [], []
        x = self.embed_target(target_ids, encoder_output, source_ids, training)  # [B, T, D]
        for layer in self.decoder_layers:
            x, self_weights, cross_weights = layer(
                x,
                encoder_output,
                self_mask,
                cross_mask,
                return_attention_scores=True,
                training=training,
                use_causal_mask=False,  # `self_mask` is causal, and is made once for all layers
            )
            self_scores.append(self_weights)
            cross_scores.append(cross_weights)
        if self.decoder_norm is not None:
            x = self.decoder_norm(x)
        logits = self.project(x)
        if return_attention_scores:
            return logits, tuple(self_scores), tuple(cross_scores)
        return logits

    def embed_target(
        self,
        target_ids: Int[Tensor, "B T"],
        encoder_output: Float[Tensor, "B S D"],
        source_ids: Int[Tensor, "B S"],
        training: bool | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Returns the input of the decoder's layers; a subclass may add to it from the source."""
        return self.target_embedding(target_ids, training=training)

    @property
    def num_cross_attentions(self) -> int:
        return len(self.decoder_layers)

    def attention_scores(
        self, source_ids: Int[Tensor, "B S"], target_ids: Int[Tensor, "B T"]
    ) -> AttentionScores:
        """Returns the attention weights of all layers and heads, without dropout."""
        encoder_output, encoder = self.encode(
            source_ids, return_attention_scores=True, training=False
        )
        _, decoder, cross = self.decode(
            target_ids, encoder_output, source_ids, return_attention_scores=True, training=False
        )
        return AttentionScores(encoder, decoder, cross)


def _embedding(
    config: TransformerConfig, name: str, vocab_size: int, output_bias: bool = False
) -> PositionalEmbedding:
    return PositionalEmbedding(
        vocab_size,
        config.d_model,
        dropout_rate=config.dropout_rate,
        position_encoding=config.position_encoding,
        first_position=config.first_position,
        max_length=config.max_length,
        output_bias=output_bias,
        scale_embeddings=config.scale_embeddings,
        name=name,
    )
