"""The weights of a `Transformer` under the names and in the order of Hugging Face's models.

Their models, Marian's and those such as M2M-100, add sines to the first half of a vector and
cosines to the second half. A `Transformer` alternates sines and cosines (section 3.5). The
conversion reorders the entries of all weights to match, so that both models compute the same.
"""

import re

import numpy as np

LAYER_NAMES = {
    "self_attention/query": "self_attn.q_proj",
    "self_attention/key": "self_attn.k_proj",
    "self_attention/value": "self_attn.v_proj",
    "self_attention/output": "self_attn.out_proj",
    "self_attention_norm/norm": "self_attn_layer_norm",
    "cross_attention/query": "encoder_attn.q_proj",
    "cross_attention/key": "encoder_attn.k_proj",
    "cross_attention/value": "encoder_attn.v_proj",
    "cross_attention/output": "encoder_attn.out_proj",
    "cross_attention_norm/norm": "encoder_attn_layer_norm",
    "feed_forward/inner": "fc1",
    "feed_forward/output": "fc2",
    "feed_forward_norm/norm": "final_layer_norm",
}
WEIGHT_NAMES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
SHARED_EMBEDDING = "model.shared.weight"
ENCODER_EMBEDDING = "model.encoder.embed_tokens.weight"
DECODER_EMBEDDING = "model.decoder.embed_tokens.weight"
OUTPUT_WEIGHT = "lm_head.weight"
EMBEDDINGS = (SHARED_EMBEDDING, ENCODER_EMBEDDING, DECODER_EMBEDDING, OUTPUT_WEIGHT)
OTHER_NAMES = {
    "embedding/token_embedding/embeddings": SHARED_EMBEDDING,
    "embedding/output_bias": "final_logits_bias",
    "source_embedding/token_embedding/embeddings": ENCODER_EMBEDDING,
    "target_embedding/token_embedding/embeddings": DECODER_EMBEDDING,
    "output/kernel": OUTPUT_WEIGHT,
    "output/bias": "final_logits_bias",
}


def huggingface_name(path: str) -> str:
    """Returns Hugging Face's name of a weight, from the weight's Keras path."""
    if path in OTHER_NAMES:
        return OTHER_NAMES[path]
    if match := re.fullmatch(r"(encoder|decoder)_norm/(\w+)", path):
        return f"model.{match[1]}.layer_norm.{WEIGHT_NAMES[match[2]]}"
    side, index, layer, weight = re.fullmatch(r"(\w+)_(\d+)/(.+)/(\w+)", path).groups()  # type: ignore[union-attr]
    return f"model.{side}.layers.{index}.{LAYER_NAMES[layer]}.{WEIGHT_NAMES[weight]}"


def from_huggingface(path: str, weight: np.ndarray) -> np.ndarray:
    """Converts a weight of Hugging Face's model; `path` is its Keras path."""
    weight = weight.T if path.endswith("/kernel") else weight
    axis = _width_axis(path)
    if axis is None:
        return weight
    halves = np.arange(weight.shape[axis]).reshape(2, -1)
    return np.take(weight, halves.T.ravel(), axis)


def to_huggingface(path: str, weight: np.ndarray) -> np.ndarray:
    """Converts a weight of this package's model; `path` is its Keras path."""
    axis = _width_axis(path)
    if axis is not None:
        turns = np.arange(weight.shape[axis]).reshape(-1, 2)
        weight = np.take(weight, turns.T.ravel(), axis)
    return weight.T if path.endswith("/kernel") else weight


def _width_axis(path: str) -> int | None:
    """Returns the axis of a weight that is D; None if it has none."""
    *_, layer, weight = path.split("/")
    if weight == "embeddings":
        return 1
    if path.startswith("output/"):
        return 0 if weight == "kernel" else None
    if weight in ("gamma", "beta"):
        return 0
    if layer == "output":
        return 1 if weight == "kernel" else 0
    return 0 if weight == "kernel" else None
