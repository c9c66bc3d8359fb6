"""KerasHub's layers and samplers, put together as its own sequence-to-sequence models do it."""

from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from keras import ops

from bench.cases import Case, sizes_of
from bench.convert import LAYER_NORM_EPSILON, Weights
from bench.trainers import FitInTurns
from bench.translators import Translating
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID


class Layers:
    """An encoder and a decoder with one embedding.

    Args:
        vocab_size: V.
        d_model: D.
        d_ff: F.
        num_heads: N.
        num_layers: of the encoder and of the decoder.
    """

    def __init__(
        self, vocab_size: int, d_model: int, d_ff: int, num_heads: int, num_layers: tuple[int, int]
    ) -> None:
        sizes: dict[str, Any] = {
            "intermediate_dim": d_ff,
            "num_heads": num_heads,
            "dropout": 0.1,
            "layer_norm_epsilon": LAYER_NORM_EPSILON,
        }
        self.d_model, self.num_heads = d_model, num_heads
        self.embedding = keras_hub.layers.ReversibleEmbedding(
            vocab_size,
            d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )
        self.positions = keras_hub.layers.SinePositionEncoding()
        self.dropout = keras.layers.Dropout(0.1)
        self.encoders = [keras_hub.layers.TransformerEncoder(**sizes) for _ in range(num_layers[0])]
        self.decoders = [keras_hub.layers.TransformerDecoder(**sizes) for _ in range(num_layers[1])]

    def embed(self, ids: Any, start: Any = 0) -> Any:
        """Embeddings and positions, float [B, T, D]."""
        tokens = self.embedding(ids) * self.d_model**0.5
        return self.dropout(tokens + self.positions(tokens, start_index=start))

    def encode(self, source_ids: Any) -> Any:
        """Runs the encoder, float [B, S, D]."""
        x = self.embed(source_ids)
        for layer in self.encoders:
            x = layer(x, padding_mask=source_ids != PAD_ID)
        return x

    def model(self) -> keras.Model:
        """A functional model, from source and shifted target to logits."""
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        memory = self.encode(source_ids)
        x = self.embed(target_ids)
        for layer in self.decoders:
            x = layer(
                x,
                memory,
                decoder_padding_mask=target_ids != PAD_ID,
                encoder_padding_mask=source_ids != PAD_ID,
            )
        logits = self.embedding(x, reverse=True)
        return keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)

    def load(self, weights: Weights) -> None:
        """Takes over weights; the layers must be built."""
        self.embedding.embeddings.assign(weights["embedding"])
        for stack, layers in (("encoder", self.encoders), ("decoder", self.decoders)):
            for i, layer in enumerate(layers):
                prefix = f"{stack}.{i}"
                _load_attention(layer, "self", weights, prefix)
                if stack == "decoder":
                    _load_attention(layer, "cross", weights, prefix)
                for part, dense in (
                    ("inner", layer._feedforward_intermediate_dense),
                    ("output", layer._feedforward_output_dense),
                ):
                    dense.kernel.assign(weights[f"{prefix}.ffn.{part}.kernel"])
                    dense.bias.assign(weights[f"{prefix}.ffn.{part}.bias"])
                layer._feedforward_layer_norm.gamma.assign(weights[f"{prefix}.ffn.norm.gamma"])
                layer._feedforward_layer_norm.beta.assign(weights[f"{prefix}.ffn.norm.beta"])

    def decode_step(
        self, ids: Any, memory: Any, mask: Any, cache: Any, index: Any, cross: Any, is_first: bool
    ) -> tuple[Any, Any, Any]:
        """Runs the decoder for one position, with caches [B, L, 2, T, N, H]."""
        x = self.embed(ids, start=index)
        caches, crosses = [], []
        for i, layer in enumerate(self.decoders):
            x, layer_cache, layer_cross = layer(
                x,
                memory,
                encoder_padding_mask=mask,
                self_attention_cache=cache[:, i],
                self_attention_cache_update_index=index,
                cross_attention_cache=cross[:, i],
                cross_attention_cache_update_index=0 if is_first else None,
            )
            caches.append(layer_cache)
            crosses.append(layer_cross)
        logits = self.embedding(x, reverse=True)
        return logits[:, 0], ops.stack(caches, axis=1), ops.stack(crosses, axis=1)

    def generate(
        self, source_ids: Any, beam: int, length: int, stop: tuple[int, ...] | None
    ) -> Any:
        """Searches for `length` tokens at most, int32 [B, 1 + length], the start symbol first."""
        batch, source = source_ids.shape
        memory, mask = self.encode(source_ids), source_ids != PAD_ID
        prompt = ops.full((batch, 1 + length), PAD_ID, dtype="int32")
        prompt = ops.slice_update(prompt, [0, 0], ops.full((batch, 1), BOS_ID, dtype="int32"))
        head = (self.num_heads, self.d_model // self.num_heads)
        cache = ops.zeros((batch, len(self.decoders), 2, 1 + length, *head))
        cross = ops.zeros((batch, len(self.decoders), 2, source, *head))
        # As in KerasHub's models: the first position fills the caches.
        _, cache, cross = self.decode_step(prompt[:, :1], memory, mask, cache, 0, cross, True)

        def step(prompt: Any, caches: Any, index: Any) -> tuple[Any, Any, Any]:
            cache, memory, mask, cross = caches
            ids = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
            logits, cache, _ = self.decode_step(ids, memory, mask, cache, index - 1, cross, False)
            return logits, None, (cache, memory, mask, cross)

        sampler = (
            keras_hub.samplers.BeamSampler(num_beams=beam)
            if beam > 1
            else keras_hub.samplers.GreedySampler()
        )
        return sampler(
            next=step,
            prompt=prompt,
            cache=(cache, memory, mask, cross),
            index=1,
            stop_token_ids=stop,
        )


def _load_attention(layer: Any, name: str, weights: Weights, prefix: str) -> None:
    attention = getattr(layer, f"_{name}_attention_layer")
    for part in ("query", "key", "value", "output"):
        dense = getattr(attention, f"_{part}_dense")
        for variable, kind in ((dense.kernel, "kernel"), (dense.bias, "bias")):
            array = weights[f"{prefix}.{name}.{part}.{kind}"]
            variable.assign(array.reshape(variable.shape))  # heads are an axis of their own
    norm = getattr(layer, f"_{name}_attention_layer_norm")
    norm.gamma.assign(weights[f"{prefix}.{name}.norm.gamma"])
    norm.beta.assign(weights[f"{prefix}.{name}.norm.beta"])


class KerasHubTranslator(Translating):
    """`TransformerDecoder` with caches, and `BeamSampler` or `GreedySampler`, under XLA."""

    model_name = ""

    def load(self) -> None:
        """Takes over the weights, and compiles for the case's shapes."""
        if self.model_name != self.case["model"]:
            self.model_name = self.case["model"]
            weights = Weights(self.folder)
            self.layers = Layers(
                weights.vocab_size,
                weights.d_model,
                weights.d_ff,
                weights.num_heads,
                weights.num_layers,
            )
            self.layers.model()  # builds
            self.layers.load(weights)
        stop = (EOS_ID,) if self.case["target"] is None else None
        beam, length = self.case["beam"], self.most_tokens

        def generate(source_ids: tf.Tensor) -> tf.Tensor:
            return self.layers.generate(source_ids, beam, length, stop)

        self.generate = tf.function(generate, jit_compile=True, autograph=False)

    def run(self) -> list[str]:
        """Translates all texts as one batch."""
        ids = [[*pieces, EOS_ID] for pieces in self.pieces.encode(self.texts)]
        longest = max(map(len, ids))
        batch = np.array([row + [PAD_ID] * (longest - len(row)) for row in ids], np.int32)
        found = self.generate(tf.constant(batch)).numpy().tolist()
        return [self.pieces.decode(_until_end(row[1:])) for row in found]


def _until_end(ids: list[int]) -> list[int]:
    """The sampler goes on behind the end, until all rows have one."""
    return ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids


class KerasHubFit(FitInTurns):
    """`TransformerEncoder` and `TransformerDecoder` in Keras's `fit`, without label smoothing."""

    def make(self, case: Case) -> keras.Model:
        """Returns the compiled model."""
        sizes = sizes_of(case["size"])
        model = Layers(
            sizes.vocab_size,
            sizes.d_model,
            sizes.d_ff,
            sizes.num_heads,
            (sizes.num_encoder_layers, sizes.num_decoder_layers),
        ).model()
        model.compile(
            optimizer=keras.optimizers.Adam(1e-4, beta_2=0.98, epsilon=1e-9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
            jit_compile=self.jit,
        )
        return model
