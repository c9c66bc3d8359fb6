import keras
import numpy as np
import pytest
import reference

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


@pytest.mark.parametrize("step", [1, 2, 3_999, 4_000, 4_001, 40_000, 300_000])
def test_rates_are_the_papers(step):
    expected = reference.learning_rate(step, d_model=512, warmup_steps=4_000)
    assert rate(WarmupSchedule(512), step) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("step", "share"), [(1, 1 / 400), (100, 1 / 4), (400, 1), (1_600, 1 / 2), (4_000, 0.1**0.5)]
)
def test_peak_rate_replaces_the_height_and_not_the_form(step, share):
    schedule = WarmupSchedule(512, warmup_steps=400, peak_rate=0.003)
    assert rate(schedule, step) == pytest.approx(0.003 * share, rel=1e-6)


def test_one_step_of_warmup_is_the_peak():
    assert rate(WarmupSchedule(4, warmup_steps=1), 1) == pytest.approx(0.5)


def test_first_update_of_an_optimizer_moves_at_step_1():
    weight = keras.Variable(np.zeros((), "float32"))
    optimizer = keras.optimizers.SGD(WarmupSchedule(16, warmup_steps=4))
    moved = []
    for _ in range(2):
        optimizer.apply([np.float32(1.0)], [weight])
        moved.append(float(weight.numpy()))
    assert moved == pytest.approx([-1 / 32, -1 / 32 - 1 / 16])


@pytest.mark.parametrize("peak_rate", [None, 0.003])
def test_config_round_trip(peak_rate):
    config = {"d_model": 17, "warmup_steps": 13, "peak_rate": peak_rate}
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
        ({"warmup_steps": -7}, "`warmup_steps` must be at least 1. Received: warmup_steps=-7"),
        ({"peak_rate": 0.0}, "`peak_rate` must be positive. Received: peak_rate=0.0"),
        ({"peak_rate": -0.5}, "`peak_rate` must be positive. Received: peak_rate=-0.5"),
        ({"peak_rate": float("nan")}, "`peak_rate` must be positive. Received: peak_rate=nan"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupSchedule(**{"d_model": 16, **arguments})
