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
