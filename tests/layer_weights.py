"""Tiny models, random weights, and the same weights as tests/reference.py takes them."""

import numpy as np
import reference

V = 19
SIZES = {
    "vocab_size": V,
    "d_model": 10,
    "d_ff": 17,
    "num_heads": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}
VARIANTS = {
    "tied": {},
    "learned": {
        "position_encoding": "learned",
        "max_length": 13,
        "d_k": 3,
        "d_v": 4,
        "scale_embeddings": False,
    },
    "untied learned": {
        "share_embeddings": False,
        "position_encoding": "learned",
        "max_length": 13,
        "num_heads": 3,
        "d_k": 4,
        "d_v": 5,
        "scale_attention": False,
    },
    "pre-norm": {"norm_first": True, "activation": "gelu"},
}


def make_model(**settings):
    """Returns a model of `SIZES` with some settings changed, and with random weights."""
    from keras_transformer import Transformer, TransformerConfig  # shared_fixtures.py comes first

    return randomize(Transformer(TransformerConfig(**SIZES | settings)))


def randomize(layer, seed=23):
    """Gives every weight of a built layer, biases and norms too, a value that matters."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        # A factor around 0 in each norm would leave nothing of the input in a few layers.
        mean = 1.0 if weight.name == "gamma" else 0.0
        weight.assign(rng.normal(mean, 0.3, size=weight.shape))
    return layer


def assert_close(actual, expected, **tolerance):
    """Values agree, and shapes."""
    import keras  # shared_fixtures.py comes first

    actual = keras.ops.convert_to_numpy(actual)
    np.testing.assert_allclose(actual, expected, **tolerance)
    assert actual.shape == np.shape(expected)


def dense(layer):
    kernel = layer.kernel.numpy()
    return kernel, layer.bias.numpy() if layer.use_bias else np.zeros(kernel.shape[1])


def norm(layer):
    return layer.norm.gamma.numpy(), layer.norm.beta.numpy()


def attention(layer, is_scaled=True):
    factor = 1.0 if is_scaled else layer.d_k**0.5  # the oracle divides by it
    return {
        "query": tuple(factor * each for each in dense(layer.query_dense)),
        "key": dense(layer.key_dense),
        "value": dense(layer.value_dense),
        "output": dense(layer.output_dense),
    }


def encoder_layer(layer, is_scaled=True):
    return {
        "self_attention": attention(layer.self_attention, is_scaled),
        "self_attention_norm": norm(layer.self_attention_norm),
        "feed_forward": dense(layer.feed_forward.inner_dense)
        + dense(layer.feed_forward.output_dense),
        "feed_forward_norm": norm(layer.feed_forward_norm),
    }


def decoder_layer(layer, is_scaled=True):
    return encoder_layer(layer, is_scaled) | {
        "cross_attention": attention(layer.cross_attention, is_scaled),
        "cross_attention_norm": norm(layer.cross_attention_norm),
    }


def reference_embedding(layer, ids, is_scaled):
    tokens, *positions = layer.get_weights()
    tokens = tokens if is_scaled else tokens / tokens.shape[1] ** 0.5
    if not positions:
        return reference.positional_embedding(ids, tokens)
    return tokens[ids] * tokens.shape[1] ** 0.5 + positions[0][: ids.shape[1]]


def reference_logits(model, source_ids, target_ids, added=lambda encoded: 0.0):
    """The oracle's logits. What `added` makes of the encoder's output is added to the embedding."""
    num_heads, is_scaled = model.config.num_heads, model.config.scale_embeddings
    source_visible, target_visible = source_ids != 0, target_ids != 0
    source_mask = np.repeat(source_visible[:, None], source_ids.shape[1], axis=1)  # [B, S, S]
    target_mask = target_visible[:, None] & np.tri(target_ids.shape[1], dtype=bool)  # [B, T, T]
    cross_mask = np.repeat(source_visible[:, None], target_ids.shape[1], axis=1)  # [B, T, S]

    encoded = reference_embedding(model.source_embedding, source_ids, is_scaled)
    activation = getattr(reference, model.config.activation)
    for layer in model.encoder_layers:
        weights = encoder_layer(layer, model.config.scale_attention)
        if model.config.norm_first:
            encoded = reference.pre_norm_layer(
                encoded, None, weights, num_heads, source_mask, activation=activation
            )
        else:
            encoded = reference.encoder_layer(encoded, weights, num_heads, source_mask)
    if model.config.norm_first:
        encoded = reference.layer_norm(encoded, *model.encoder_norm.get_weights())
    x = reference_embedding(model.target_embedding, target_ids, is_scaled)
    x = x + added(encoded)
    for layer in model.decoder_layers:
        weights = decoder_layer(layer, model.config.scale_attention)
        masks = target_mask, cross_mask
        if model.config.norm_first:
            x = reference.pre_norm_layer(x, encoded, weights, num_heads, *masks, activation)
        else:
            x = reference.decoder_layer(x, encoded, weights, num_heads, *masks)
    if model.config.norm_first:
        x = reference.layer_norm(x, *model.decoder_norm.get_weights())
    if model.config.share_embeddings:
        return x @ model.target_embedding.token_embedding.embeddings.numpy().T
    return x @ model.output_dense.kernel.numpy()
