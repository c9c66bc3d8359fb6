"""Trainings that differ by rounding only."""

import numpy as np
import pytest


def assert_close_weights(actual, expected, tolerance=1e-5):
    """Variables agree to a share of the largest value of each."""
    for ours, theirs in zip(actual, expected, strict=True):
        # Attention does not depend on the keys' bias: its gradient is rounding error, which Adam
        # blows up to the learning rate.
        if not theirs.path.endswith("key/bias"):
            atol = tolerance * np.abs(theirs).max()
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=theirs.path)


def assert_close_runs(actual, expected):
    """The last weights agree, and the metrics of each validation."""
    assert_close_weights(actual.model("last").weights, expected.model("last").weights)
    for ours, theirs in zip(actual.metrics(), expected.metrics(), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
