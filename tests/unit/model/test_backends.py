"""Keras's other backends: the layers, the model and the loss use `keras.ops` only."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from backend_outputs import outputs

TESTS = Path(__file__).parents[2]


def on(backend, *arguments, **options):
    """Runs Python in another process, on another backend."""
    environment = {**os.environ, "KERAS_BACKEND": backend}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, **options)


@pytest.fixture(scope="module")
def expected():
    """What TensorFlow gives; other tests compare that with `tests/reference.py`."""
    return {name.replace("/", "."): value for name, value in outputs().items()}


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_outputs_and_training_are_those_of_tensorflow(backend, expected, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    on(backend, TESTS / "backend_outputs.py", tmp_path / "outputs.npz", check=True)
    found = dict(np.load(tmp_path / "outputs.npz"))
    assert len(found) > 70
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def test_commands_need_tensorflow(tmp_path):
    command = ["train", "--data", "bundled", "--run-dir", tmp_path / "run"]
    code = "from keras_transformer.cli.main import main; main()"
    result = on("jax", "-c", code, *command, capture_output=True, text=True)
    assert (result.returncode, result.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert "KERAS_BACKEND=jax" in result.stderr
