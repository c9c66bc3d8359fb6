import keras
import numpy as np
import pytest

from keras_transformer import WarmupSchedule


def rate(schedule, step):
    """The rate of the paper's `step`, counted from 1; Keras passes the updates before it."""
    return float(schedule(step - 1))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 1 / 32),  # 16^-0.5 * 4^-1.5
        (2, 1 / 16),
        (4, 1 / 8),  # 16^-0.5 * 4^-0.5: the peak
        (64, 1 / 32),  # 16^-0.5 * 64^-0.5
    ],
)
def test_rates_by_hand(step, expected):
    assert rate(WarmupSchedule(d_model=16, warmup_steps=4), step) == pytest.approx(expected)


@pytest.mark.parametrize(("step", "share"), [(1, 1 / 400), (400, 1), (1_600, 1 / 2)])
def test_peak_rate_replaces_the_height_and_not_the_form(step, share):
    schedule = WarmupSchedule(512, warmup_steps=400, peak_rate=0.003)
    assert rate(schedule, step) == pytest.approx(0.003 * share, rel=1e-6)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (2, 1 / 16),  # as without a cooldown
        (4, 1 / 8),
        (60, 60**-0.5 / 4),
        (61, 61**-0.5 / 4),  # the first of the cooldown: the factor is 5 / 5
        (64, 1 / 32 * 2 / 5),
        (65, 65**-0.5 / 4 / 5),
        (66, 0),  # beyond the end
    ],
)
def test_cooldown_by_hand(step, expected):
    schedule = WarmupSchedule(d_model=16, warmup_steps=4, cooldown=1 / 13, total_steps=65)
    assert rate(schedule, step) == pytest.approx(expected)


def test_first_update_of_an_optimizer_moves_at_step_1():
    weight = keras.Variable(np.zeros((), "float32"))
    optimizer = keras.optimizers.SGD(WarmupSchedule(16, warmup_steps=4))
    moved = []
    for _ in range(2):
        optimizer.apply([np.float32(1.0)], [weight])
        moved.append(float(weight.numpy()))
    assert moved == pytest.approx([-1 / 32, -1 / 32 - 1 / 16])


@pytest.mark.parametrize(
    "config",
    [
        {"peak_rate": None, "cooldown": 0.0, "total_steps": None},
        {"peak_rate": 0.003, "cooldown": 0.25, "total_steps": 19},
    ],
)
def test_config_round_trip(config):
    config = {"d_model": 17, "warmup_steps": 13, **config}
    schedule = WarmupSchedule(**config)
    assert schedule.get_config() == config
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert isinstance(copy, WarmupSchedule)
    assert copy.get_config() == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 0}, "`d_model` must be at least 1. Received: d_model=0"),
        ({"warmup_steps": 0}, "`warmup_steps` must be at least 1. Received: warmup_steps=0"),
        ({"peak_rate": 0.0}, "`peak_rate` must be positive. Received: peak_rate=0.0"),
        ({"peak_rate": float("nan")}, "`peak_rate` must be positive. Received: peak_rate=nan"),
        ({"cooldown": 1.1}, "`cooldown` must be from 0 to 1. Received: cooldown=1.1"),
        ({"cooldown": 0.5}, "`total_steps` must be at least 1. Received: total_steps=None"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupSchedule(**{"d_model": 16, **arguments})
