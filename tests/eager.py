"""Trainings of few updates without compilation, which would take most of their time."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


@contextmanager
def eagerly() -> Iterator[None]:
    """Runs the functions of `tf.function` as Python."""
    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config", UserWarning)
            yield
    finally:
        tf.config.run_functions_eagerly(False)
