"""The recurrent encoder-decoder with attention, which the Transformer replaces.

A bidirectional encoder and a decoder of gated cells (Bahdanau et al., 2015, arXiv 1409.0473), with
the global attention of Luong et al. (2015, arXiv 1508.04025). A state depends on the one before it,
so the layers take their positions one after the other; attention takes all of them at once.
"""

from typing import Any

import keras
from jaxtyping import Bool, Float, Int
from keras import ops

from keras_transformer.config import PAD_ID
from keras_transformer.model.encoder_decoder import AttentionScores, EncoderDecoder
from keras_transformer.model.tensor import Tensor
from keras_transformer.recurrent.config import RecurrentConfig


@keras.saving.register_keras_serializable("keras_transformer")
class Recurrent(EncoderDecoder):
    """A recurrent encoder-decoder with attention, from token ids to logits.

    Inputs and outputs are those of `Transformer`: a dictionary of `source_ids`, int32 [B, S], and
    `target_ids`, int32 [B, T], the target shifted right, both padded with 0 on the right; and
    logits, float32 [B, T, V]. It trains, translates, saves and exports as a `Transformer` does.

    With the encoder's outputs h_j, and the outputs of the first decoder layer, s_t, attention is

        score(t, j) = (W_a h_j) . s_t / sqrt(U)           "luong", their "general", scaled
        score(t, j) = v . tanh(W_1 h_j + W_2 s_t)         "additive"
        a_t         = sum over j of softmax(score(t, j)) h_j

    The other decoder layers read a_t and the outputs of the layer before, so that they know what
    attention has read up to now (Wu et al., 2016, arXiv 1609.08144, section 3). With the outputs
    of the last layer, r_t, the logits are a projection of tanh(W_c [a_t; r_t] + b_c).

    The recurrent layers are Keras's own loops. They do not use cuDNN, whose operations neither XLA
    nor a server without a GPU can run.

    Args:
        config: sizes and rates.

    Deviations:
        Scores are divided by sqrt(U), as in section 3.2.1 of the Transformer's paper; Luong et al.
        do not divide them. `scale_attention=False` leaves the division out. The output of attention
        feeds only the later layers; in these papers, it also feeds the next position ("input
        feeding"). Without that, the first layer runs over all positions before attention, which is
        then one product. Luong et al. attend from the last decoder layer. Bahdanau et al. and Wu et
        al. compute scores with the previous state, and this model with the current one. Embeddings
        are multiplied by sqrt(d_model). W_c has a bias. The reset gate of a GRU applies after the
        product with its weights, as in cuDNN.

    Example:
        >>> import numpy as np
        >>> from keras_transformer import Recurrent, RecurrentConfig
        >>> model = Recurrent(RecurrentConfig(vocab_size=19, d_model=6, units=5))
        >>> source_ids, target_ids = np.array([[5, 7, 3]]), np.array([[2, 11, 4, 8]])
        >>> tuple(model({"source_ids": source_ids, "target_ids": target_ids}).shape)
        (1, 4, 19)
    """

    config_type = RecurrentConfig

    config: RecurrentConfig
    source_embedding: keras.layers.ReversibleEmbedding
    encoder_layers: list[keras.layers.Bidirectional]
    target_embedding: keras.layers.ReversibleEmbedding
    initial_dense: keras.layers.Dense  # from the encoder to the first states of the decoder
    decoder_layers: list[keras.layers.RNN]
    key_dense: keras.layers.Dense  # W_a or W_1
    query_dense: keras.layers.Dense | None  # W_2
    attention: keras.layers.Attention
    combine_dense: keras.layers.Dense  # W_c
    dropout: keras.layers.Dropout

    def _make_layers(self, config: RecurrentConfig) -> dict[str, Any]:
        recurrent = keras.layers.GRU if config.cell == "gru" else keras.layers.LSTM
        states_per_layer = 1 if config.cell == "gru" else 2

        def layer(name: str) -> keras.layers.RNN:
            return recurrent(config.units, return_sequences=True, use_cudnn=False, name=name)

        def dense(name: str) -> keras.layers.Dense:
            return keras.layers.Dense(config.units, use_bias=False, name=name)

        if config.share_embeddings:
            source_embedding = target_embedding = _embedding(config, "embedding", config.vocab_size)
            output_dense = None
        else:
            source_embedding = _embedding(config, "source_embedding", config.vocab_size)
            target_embedding = _embedding(config, "target_embedding", config.num_target_ids)
            output_dense = keras.layers.Dense(config.num_target_ids, use_bias=False, name="output")
        is_additive = config.attention == "additive"
        attention = keras.layers.AdditiveAttention if is_additive else keras.layers.Attention
        return {
            "source_embedding": source_embedding,
            "encoder_layers": [
                keras.layers.Bidirectional(layer(f"encoder_{i}"), name=f"encoder_{i}")
                for i in range(config.num_encoder_layers)
            ],
            "target_embedding": target_embedding,
            "initial_dense": keras.layers.Dense(
                states_per_layer * config.num_decoder_layers * config.units,
                activation="tanh",
                name="initial_state",
            ),
            "decoder_layers": [layer(f"decoder_{i}") for i in range(config.num_decoder_layers)],
            "key_dense": dense("key"),
            "query_dense": dense("query") if is_additive else None,
            "attention": attention(name="attention"),
            "combine_dense": keras.layers.Dense(config.d_model, activation="tanh", name="combine"),
            "output_dense": output_dense,
            "dropout": keras.layers.Dropout(config.dropout_rate, name="dropout"),
        }

    def encode(
        self, source_ids: Int[Tensor, "B S"], training: bool | None = None
    ) -> Float[Tensor, "B S E"]:
        """Runs the encoder.

        Returns:
            float [B, S, E]: at each position, the state after reading the source from the left up
            to it, and the state after reading it from the right.
        """
        mask = ops.not_equal(source_ids, PAD_ID)  # [B, S]
        x = self.embed(self.source_embedding, source_ids)  # [B, S, D]
        for layer in self.encoder_layers:
            x = layer(self.dropout(x, training=training), mask=mask)  # [B, S, E]
        return self.dropout(x, training=training)

    def decode(
        self,
        target_ids: Int[Tensor, "B T"],
        encoder_output: Float[Tensor, "B S E"],
        source_ids: Int[Tensor, "B S"],
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Float[Tensor, "B T V"] | tuple[Float[Tensor, "B T V"], Float[Tensor, "B T S"]]:
        """Runs the decoder, attention and the output projection on all target positions.

        Returns:
            Logits, float32 [B, T, V]; with `return_attention_scores` also the weights of
            attention, float [B, T, S].
        """
        mask = ops.not_equal(source_ids, PAD_ID)  # [B, S]
        keys = self.key_dense(encoder_output)  # [B, S, U]
        x = self.embed(self.target_embedding, target_ids)  # [B, T, D]
        states = self.initial_states(encoder_output)
        for i, (layer, state) in enumerate(zip(self.decoder_layers, states, strict=True)):
            x = layer(self.dropout(x, training=training), initial_state=state)  # [B, T, U]
            if i == 0:
                attended, weights = self.attend(x, keys, encoder_output, mask)  # [B, T, E]
            x = ops.concatenate([attended, x], axis=2)  # [B, T, E + U]
        x = self.combine_dense(x)  # [B, T, D]
        logits = self.project(self.dropout(x, training=training))
        return (logits, weights) if return_attention_scores else logits

    def embed(
        self, embedding: keras.layers.ReversibleEmbedding, ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """Returns the embeddings times sqrt(d_model): a variance of 1 at the start of training."""
        return embedding(ids) * self.config.d_model**0.5

    def initial_states(
        self, encoder_output: Float[Tensor, "B S E"]
    ) -> list[list[Float[Tensor, "B U"]]]:
        """Returns the states of each decoder layer before the first position.

        They are tanh(W h + b) of the source as the encoder has read it from right to left
        (Bahdanau et al., 2015, section A.2.2).
        """
        states = self.initial_dense(
            encoder_output[:, 0, self.config.units :]
        )  # [B, states * L * U]
        num_layers = len(self.decoder_layers)
        # The first state of each layer, then the second one of LSTM cells: [B, U] each.
        states = ops.split(states, states.shape[1] // self.config.units, axis=1)
        return [states[i::num_layers] for i in range(num_layers)]

    def attend(
        self,
        x: Float[Tensor, "B T U"],
        keys: Float[Tensor, "B S U"],
        values: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B S"],
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T S"]]:
        """Lets the outputs of the first decoder layer attend to the encoder's; also the weights."""
        if self.query_dense is not None:
            query = self.query_dense(x)
        else:
            query = x * self.config.units**-0.5 if self.config.scale_attention else x
        return self.attention(
            [query, values, keys], mask=[None, mask], return_attention_scores=True
        )

    @property
    def num_cross_attentions(self) -> int:
        return 1  # after the decoder's first layer

    def attention_scores(
        self, source_ids: Int[Tensor, "B S"], target_ids: Int[Tensor, "B T"]
    ) -> AttentionScores:
        """Returns the attention weights, without dropout.

        Only `cross` has any, float [B, 1, T, S], because nothing attends to its own sequence.
        """
        encoder_output = self.encode(source_ids, training=False)
        _, weights = self.decode(
            target_ids, encoder_output, source_ids, return_attention_scores=True, training=False
        )
        return AttentionScores((), (), (weights[:, None],))


def _embedding(
    config: RecurrentConfig, name: str, vocab_size: int
) -> keras.layers.ReversibleEmbedding:
    return keras.layers.ReversibleEmbedding(
        vocab_size,
        config.d_model,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=config.d_model**-0.5),
        reverse_dtype=keras.config.dtype_policy().compute_dtype,
        name=name,
    )
