"""The mean of a run's last checkpoints (section 6.1)."""

import numpy as np

from keras_transformer.architectures import build_model
from keras_transformer.errors import InputError
from keras_transformer.run import Checkpoint, Run


def average_checkpoints(run: Run, last: int) -> Checkpoint:
    """Averages the weights of the newest checkpoints into the run's averaged one.

    Every command then uses the averaged checkpoint by default.

    Args:
        run: the run.
        last: number of checkpoints (5 for base, 20 for big: section 6.1).

    Raises:
        InputError: if the run keeps fewer checkpoints, or one is damaged or of another model.
    """
    kept = len(run.checkpoints)
    if not 1 <= last <= kept:
        raise InputError(
            f"`last` must be at least 1 and at most the number of checkpoints in {run.path}, "
            f"{kept}, which the setting `keep_checkpoints` limits. Received: last={last}"
        )
    chosen = run.checkpoints[-last:]
    model = build_model(run.config)
    total = [np.zeros(weights.shape) for weights in model.get_weights()]  # float64
    for checkpoint in chosen:
        run.load_weights(model, checkpoint)
        for sum_, weights in zip(total, model.get_weights(), strict=True):
            sum_ += weights
    model.set_weights([weights / last for weights in total])
    return run.save_average(model, chosen)
