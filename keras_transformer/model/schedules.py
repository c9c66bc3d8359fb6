"""The learning rate of section 5.3."""

from typing import Any

import keras
from keras import ops

from keras_transformer.errors import require
from keras_transformer.model.tensor import check_sizes


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step (section 5.3).

        rate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

    The first update uses step 1: Keras counts from 0, the paper from 1. With a cooldown, which the
    paper does not have, the rate is multiplied by a factor that falls linearly from 1 to 0 over the
    last updates (Hägele et al. 2024, arXiv 2405.18392, for a constant rate).

    Args:
        d_model: width of the model.
        warmup_steps: step of the highest rate (4,000: section 5.3).
        peak_rate: the highest rate; None for the paper's, (d_model * warmup_steps)^-0.5.
        cooldown: length of the cooldown as a fraction of `total_steps`; 0 for none.
        total_steps: number of updates of the run; only a cooldown needs it.

    Raises:
        ValueError: if an argument is out of range, or a cooldown lacks `total_steps`.

    Example:
        >>> from keras_transformer import WarmupSchedule
        >>> schedule = WarmupSchedule(d_model=4, warmup_steps=4)
        >>> [float(schedule(done)) for done in (0, 3, 15)]  # of the updates 1, 4 and 16
        [0.0625, 0.25, 0.125]
    """

    def __init__(
        self,
        d_model: int,
        warmup_steps: int = 4000,
        peak_rate: float | None = None,
        cooldown: float = 0.0,
        total_steps: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model, warmup_steps=warmup_steps)
        require(
            peak_rate is None or peak_rate > 0, "`peak_rate` must be positive", peak_rate=peak_rate
        )
        require(0 <= cooldown <= 1, "`cooldown` must be from 0 to 1", cooldown=cooldown)
        if cooldown:
            check_sizes(total_steps=total_steps or 0)
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.peak_rate = peak_rate
        self.cooldown = cooldown
        self.total_steps = total_steps

    def __call__(self, step: Any) -> Any:
        """Returns the rate of the update that follows `step` updates, float32."""
        peak = self.peak_rate or (self.d_model * self.warmup_steps) ** -0.5
        done = ops.cast(step, "float32")
        progress = (done + 1.0) / self.warmup_steps
        rate = peak * ops.minimum(progress, 1.0 / ops.sqrt(progress))
        if not self.cooldown:
            return rate
        left = 1.0 - done / self.total_steps
        return rate * ops.clip(left / self.cooldown, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "peak_rate": self.peak_rate,
            "cooldown": self.cooldown,
            "total_steps": self.total_steps,
        }
