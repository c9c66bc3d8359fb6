import keras
import numpy as np
import pytest

from keras_transformer import WarmupSchedule

COOLDOWN = {"cooldown": 1 / 13, "total_steps": 65}


@pytest.mark.parametrize(
    ("arguments", "step", "expected"),
    [
        ({}, 1, 1 / 32),  # 16^-0.5 * 4^-1.5
        ({}, 2, 1 / 16),
        ({}, 4, 1 / 8),  # 16^-0.5 * 4^-0.5: the peak
        ({}, 64, 1 / 32),  # 16^-0.5 * 64^-0.5
        # The peak has another height, and the form is the same.
        ({"peak_rate": 0.003}, 1, 0.003 / 4),
        ({"peak_rate": 0.003}, 4, 0.003),
        ({"peak_rate": 0.003}, 16, 0.003 / 2),
        (COOLDOWN, 2, 1 / 16),  # as without a cooldown
        (COOLDOWN, 60, 60**-0.5 / 4),
        (COOLDOWN, 61, 61**-0.5 / 4),  # the first of the cooldown: the factor is 5 / 5
        (COOLDOWN, 64, 1 / 32 * 2 / 5),
        (COOLDOWN, 65, 65**-0.5 / 4 / 5),
        (COOLDOWN, 66, 0),  # beyond the end
    ],
)
def test_rates_by_hand(arguments, step, expected):
    """The paper's steps count from 1; Keras passes the updates before it."""
    schedule = WarmupSchedule(d_model=16, warmup_steps=4, **arguments)
    assert float(schedule(step - 1)) == pytest.approx(expected, rel=1e-6)


def test_first_update_of_an_optimizer_moves_at_step_1():
    weight = keras.Variable(np.zeros((), "float32"))
    optimizer = keras.optimizers.SGD(WarmupSchedule(16, warmup_steps=4))
    moved = []
    for _ in range(2):
        optimizer.apply([np.float32(1.0)], [weight])
        moved.append(float(weight.numpy()))
    assert moved == pytest.approx([-1 / 32, -1 / 32 - 1 / 16])


def test_config_round_trip():
    config = {"d_model": 17, "warmup_steps": 13, "peak_rate": 0.003, "cooldown": 0.25}
    config["total_steps"] = 19
    schedule = WarmupSchedule(**config)
    assert schedule.get_config() == config
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert isinstance(copy, WarmupSchedule)
    assert copy.get_config() == config


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"warmup_steps": 0}, "warmup_steps"),
        ({"peak_rate": float("nan")}, "peak_rate"),
        ({"cooldown": 1.1}, "cooldown"),
        ({"cooldown": 0.5}, "total_steps"),
    ],
)
def test_arguments_out_of_range(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        WarmupSchedule(**{"d_model": 16, **arguments})
