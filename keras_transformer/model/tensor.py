"""What the modules of the model share: the type of tensors, their precision, checks of sizes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_transformer.errors import require

# A backend's tensor, a NumPy array or a symbolic `keras.KerasTensor`: they have no common class.
# Annotations name the shape, as in `Float[Tensor, "B T D"]`.
Tensor = Any


def check_sizes(**sizes: int | None) -> None:
    """Raises an `InputError` if a size is below 1; None is no size."""
    for name, size in sizes.items():
        require(size is None or size >= 1, f"`{name}` must be at least 1", **{name: size})


@contextmanager
def precision(policy: str) -> Iterator[None]:
    """Builds layers with a dtype policy of Keras, such as "mixed_bfloat16"."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
