"""The type of tensors in annotations such as `Float[Tensor, "B T D"]`."""

from typing import Any

# A backend's tensor, a NumPy array or a symbolic `keras.KerasTensor`: they have no common class.
Tensor = Any
