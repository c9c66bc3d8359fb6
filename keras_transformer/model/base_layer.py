"""The base class of the package's layers."""

from typing import Any, Self

import keras


class BaseLayer(keras.layers.Layer):
    """A layer whose `get_config` Keras makes from the arguments of its constructor.

    Its output carries the mask of its first input, as Keras's `Embedding(mask_zero=True)` makes it.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def __new__(cls, *args: Any, dtype: Any = None, **kwargs: Any) -> Self:
        """Turns the arguments into the plain values that Keras records.

        `dtype` may be a `DTypePolicy`, which `keras.layers.Layer` adds to the config itself.
        """
        named = {name: _plain(value) for name, value in kwargs.items()}
        return super().__new__(cls, *map(_plain, args), **named)


def _plain(value: Any) -> Any:
    """Returns the config of an activation that is a function or a layer, and other values as is."""
    has_config = isinstance(value, keras.Layer) or (
        callable(value) and getattr(value, "__name__", "<lambda>") != "<lambda>"
    )
    return keras.activations.serialize(value) if has_config else value
