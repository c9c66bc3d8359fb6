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
        """Leaves `dtype` out of the arguments that Keras records: it may be a `DTypePolicy`.

        Keras records plain values only; `keras.layers.Layer` adds the policy to the config.
        """
        return super().__new__(cls, *args, **kwargs)
