"""Inputs, weights and outputs of PyTorch's layers, stored by tests/make_torch_twins.py."""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".npz")


def load(case):
    """Returns the arrays of a case by name; `weights` is a list in the order of a Keras layer."""
    with np.load(FILE) as stored:
        arrays = {
            name.removeprefix(f"{case}/"): stored[name]
            for name in stored
            if name.startswith(f"{case}/")
        }
    numbers = sorted(name for name in arrays if name.startswith("weight_"))
    return arrays | {"weights": [arrays.pop(name) for name in numbers]}


def attention_weights(weights):
    """Returns the first eight weights as tests/reference.py takes them."""
    names = ("query", "key", "value", "output")
    return {name: tuple(weights[2 * i : 2 * i + 2]) for i, name in enumerate(names)}


def layer_weights(weights, attentions):
    """Returns the weights of a layer with these attentions as tests/reference.py takes them."""
    found, weights = {}, list(weights)
    for name, count in (*((attention, 8) for attention in attentions), ("feed_forward", 4)):
        found[name] = attention_weights(weights) if count == 8 else tuple(weights[:4])
        found[f"{name}_norm"] = tuple(weights[count : count + 2])
        del weights[: count + 2]
    return found
