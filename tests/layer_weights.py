"""Tiny models, random weights, and the same weights as tests/reference.py takes them."""

import numpy as np

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
    "untied": {"share_embeddings": False},
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
    "next word": {"share_embeddings": False, "word_id_ends": (12, 9)},
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
