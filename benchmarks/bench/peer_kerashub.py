"""KerasHub's layers and samplers, put together as its own sequence-to-sequence models do it."""

from typing import Any

import keras
import keras_hub
import tensorflow as tf
from keras import ops

from bench.cases import Case, sizes_of
from bench.ours import Fit
from bench.systems import Translating
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, TransformerConfig

# From KerasHub's names of weights to ours, one after the other.
NAMES = {
    "attention_layer_norm": "attention_norm/norm",
    "attention_layer/": "attention/",
    "attention_output": "output",
    "feedforward_layer_norm": "feed_forward_norm/norm",
    "feedforward_intermediate_dense": "feed_forward/inner",
    "feedforward_output_dense": "feed_forward/output",
}


class Layers:
    """An encoder and a decoder with one embedding."""

    def __init__(self, sizes: TransformerConfig) -> None:
        layer: dict[str, Any] = {
            "intermediate_dim": sizes.d_ff,
            "num_heads": sizes.num_heads,
            "dropout": 0.1,
            "layer_norm_epsilon": sizes.layer_norm_epsilon,
        }
        self.d_model, self.num_heads = sizes.d_model, sizes.num_heads
        self.embedding = keras_hub.layers.ReversibleEmbedding(
            sizes.vocab_size,
            sizes.d_model,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=sizes.d_model**-0.5),
        )
        self.positions = keras_hub.layers.SinePositionEncoding()
        self.dropout = keras.layers.Dropout(0.1)
        self.encoders = [
            keras_hub.layers.TransformerEncoder(**layer) for _ in range(sizes.num_encoder_layers)
        ]
        self.decoders = [
            keras_hub.layers.TransformerDecoder(**layer) for _ in range(sizes.num_decoder_layers)
        ]

    def embed(self, ids: Any, start: Any = 0) -> Any:
        tokens = self.embedding(ids) * self.d_model**0.5
        return self.dropout(tokens + self.positions(tokens, start_index=start))

    def encode(self, source_ids: Any) -> Any:
        x = self.embed(source_ids)
        for layer in self.encoders:
            x = layer(x, padding_mask=source_ids != PAD_ID)
        return x

    def model(self) -> keras.Model:
        """A functional model, from source and shifted target to logits."""
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        encoder_output = self.encode(source_ids)
        x = self.embed(target_ids)
        for layer in self.decoders:
            x = layer(
                x,
                encoder_output,
                decoder_padding_mask=target_ids != PAD_ID,
                encoder_padding_mask=source_ids != PAD_ID,
            )
        logits = self.embedding(x, reverse=True)
        return keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)

    def load(self, model: keras.Model) -> None:
        """Takes over the weights of our model; the layers must be built."""
        weights = {variable.path: variable.numpy() for variable in model.weights}
        self.embedding.embeddings.assign(weights["embedding/token_embedding/embeddings"])
        for stack, layers in (("encoder", self.encoders), ("decoder", self.decoders)):
            for i, layer in enumerate(layers):
                for variable in layer.weights:
                    name = variable.path.split("/", 1)[1]
                    for theirs, ours in NAMES.items():
                        name = name.replace(theirs, ours)
                    array = weights[f"{stack}_{i}/{name}"]
                    variable.assign(array.reshape(variable.shape))  # heads have an axis there

    def decode_step(self, ids: Any, index: Any, state: Any, is_first: bool = False) -> Any:
        """Runs the decoder for one position; returns logits and the new state.

        The state is the caches of self-attention and cross-attention, [B, L, 2, T, N, H] and
        [B, L, 2, S, N, H], the encoder's output and its mask.
        """
        self_cache, cross_cache, encoder_output, mask = state
        x = self.embed(ids, start=index)
        self_caches, cross_caches = [], []
        for i, layer in enumerate(self.decoders):
            x, self_part, cross_part = layer(
                x,
                encoder_output,
                encoder_padding_mask=mask,
                self_attention_cache=self_cache[:, i],
                self_attention_cache_update_index=index,
                cross_attention_cache=cross_cache[:, i],
                cross_attention_cache_update_index=0 if is_first else None,
            )
            self_caches.append(self_part)
            cross_caches.append(cross_part)
        caches = ops.stack(self_caches, axis=1), ops.stack(cross_caches, axis=1)
        return self.embedding(x, reverse=True)[:, 0], (*caches, encoder_output, mask)

    def generate(
        self, source_ids: Any, beam: int, length: int, stop: tuple[int, ...] | None
    ) -> Any:
        """Searches for up to `length` tokens; int32 [B, 1 + length], the start symbol first."""
        batch, source = source_ids.shape
        start = [BOS_ID] + length * [PAD_ID]
        prompt = ops.convert_to_tensor(batch * [start], dtype="int32")
        head = (self.num_heads, self.d_model // self.num_heads)
        state = (
            ops.zeros((batch, len(self.decoders), 2, 1 + length, *head)),
            ops.zeros((batch, len(self.decoders), 2, source, *head)),
            self.encode(source_ids),
            source_ids != PAD_ID,
        )
        # As in KerasHub's models: the first position fills the caches.
        _, state = self.decode_step(prompt[:, :1], 0, state, is_first=True)

        def step(prompt: Any, state: Any, index: Any) -> tuple[Any, Any, Any]:
            ids = ops.slice(prompt, [0, index - 1], [ops.shape(prompt)[0], 1])
            logits, new = self.decode_step(ids, index - 1, state)
            return logits, None, (new[0], *state[1:])

        samplers = keras_hub.samplers
        sampler = samplers.BeamSampler(beam) if beam > 1 else samplers.GreedySampler()
        return sampler(next=step, prompt=prompt, cache=state, index=1, stop_token_ids=stop)


class KerasHubTranslator(Translating):
    """`TransformerDecoder` with caches, and `BeamSampler` or `GreedySampler`, under XLA."""

    def load(self, case: Case) -> None:
        from keras_transformer.run import Run

        super().load(case)
        run = Run.load(case["run"])
        layers = Layers(run.config)
        layers.model()  # builds
        layers.load(run.model())
        stop = (EOS_ID,) if case["target"] is None else None

        def generate(source_ids: tf.Tensor) -> tf.Tensor:
            return layers.generate(source_ids, case["beam"], self.max_tokens, stop)

        self.generate = tf.function(generate, jit_compile=True, autograph=False)

    def translate(self, texts: list[str]) -> list[str]:
        ids = [[*pieces, EOS_ID] for pieces in self.pieces.encode(texts)]
        longest = max(map(len, ids))
        batch = [row + [PAD_ID] * (longest - len(row)) for row in ids]
        found = self.generate(tf.constant(batch, tf.int32)).numpy().tolist()
        # The sampler continues until all rows have an end symbol.
        ends = [[*row, EOS_ID].index(EOS_ID) for row in found]
        return [self.pieces.decode(row[1:end]) for row, end in zip(found, ends, strict=True)]


class KerasHubFit(Fit):
    """`TransformerEncoder` and `TransformerDecoder` in Keras's `fit`, without label smoothing."""

    def make(self, case: Case) -> keras.Model:
        model = Layers(sizes_of(case["size"])).model()
        model.compile(
            optimizer=keras.optimizers.Adam(1e-4, beta_2=0.98, epsilon=1e-9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
            jit_compile=self.jit,
        )
        model.optimizer.build(model.trainable_variables)
        return model
