"""What breaks when Keras changes a private name, and that no other module uses one."""

import ast
import re
from functools import partial
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from keras_transformer.trainers.fitting import keras_internals
from keras_transformer.trainers.fitting.keras_internals import LocalAdam, UnevenModel
from keras_transformer.trainers.fitting.strategies import make_strategy


def test_adam_neither_sums_nor_loses_its_moments():
    """By hand: m = (1 - beta_1) g and v = (1 - beta_2) g^2, of a replica's g and not of the sum."""
    strategy = make_strategy("mirrored")
    with strategy.scope():
        weight, optimizer = keras.Variable([7.0]), LocalAdam(0.1, beta_1=0.75, beta_2=0.5)
        optimizer.build([weight])

    def update():
        optimizer.apply([tf.fill([1], 3.0)], [weight])

    tf.function(partial(strategy.run, update), autograph=False)()
    momentum, velocity = optimizer.moments(weight)
    assert (momentum.numpy(), velocity.numpy()) == ([0.75], [4.5])


@pytest.mark.distributed
def test_replicas_may_hold_batches_of_different_shapes():
    with make_strategy("mirrored").scope():
        inputs = keras.Input((2,))
        model = UnevenModel(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"), jit_compile=False)
    batch = tf.data.Dataset.from_tensors((tf.ones((4, 2)), tf.ones((4, 1))))
    model.fit(batch, shuffle=False, verbose=0)
    assert model.optimizer.iterations.numpy() == 1


def test_no_other_module_uses_private_names():
    folder = Path(keras_internals.__file__).parent
    for path in folder.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        attributes = [each for each in nodes if isinstance(each, ast.Attribute)]
        used = {each.attr for each in attributes if re.match("_[a-z]", each.attr)}
        own = {each.attr for each in attributes if isinstance(each.ctx, ast.Store)}
        own |= {each.name for each in nodes if isinstance(each, ast.FunctionDef)}
        assert (used <= own) == (path.stem != "keras_internals"), used - own
