"""The page on JAX: its script trains on two devices there, and TensorFlow goes on."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from layer_weights import randomize

from keras_transformer import Run, Transformer, Translator
from keras_transformer.cli.progress import summarize
from keras_transformer.trainers.data.preparation import prepare
from keras_transformer.trainers.settings import TrainSettings

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "jax.md"
STEPS = 4


@pytest.fixture
def script(corpus_dir, tmp_path, monkeypatch):
    """The page's script with a tiny model, without dropout and with weights made by NumPy."""
    monkeypatch.chdir(tmp_path)
    sizes = {"d_model": 14, "d_ff": 22, "num_heads": 2, "num_encoder_layers": 1}
    given = {
        "data": str(corpus_dir),
        "vocab_size": 290,
        "augment": {},
        "max_length": 40,
        "tokens_per_batch": 305,  # an odd number of rows, too
        "model": {**sizes, "num_decoder_layers": 1, "dropout_rate": 0.0},
    }
    settings = TrainSettings(**given)
    tokenizer = prepare(settings, "my-corpus").tokenizer
    model = Transformer(settings.config({"vocab_size": tokenizer.vocab_size}))
    randomize(model).save_weights("initial.weights.h5")
    (text,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    changes = {'data="my-data"': f"**{given!r}", "steps=10_000": f"steps={STEPS}"}
    changes["model.compile("] = 'model.load_weights("initial.weights.h5")\nmodel.compile('
    changes["fit("] = "fit(verbose=0, x="
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.mark.programs
def test_trained_on_jax_and_used_on_tensorflow(script):
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    checks = "\nassert keras.backend.backend() == 'jax' and len(devices) == 2"
    subprocess.run([sys.executable, "-c", script + checks], env=environment, check=True)
    run = Run.load("my-run")
    assert (run.status, summarize(run)["step"]) == ("complete", STEPS)
    translations = Translator.load("my-run").translate(["two red dogs", "a cat"], beam_size=2)

    # The same batches on one device of TensorFlow.
    without = re.sub("^keras.distribution.*\n", "", script, flags=re.M)
    exec(without.replace('"my-run"', '"other-run"'), {})
    other = Run.load("other-run")
    assert run.best.metrics["token_loss"] == pytest.approx(other.best.metrics["token_loss"], 1e-5)
    for found, expected in zip(run.model().weights, other.model().weights, strict=True):
        if not found.path.endswith("key/bias"):  # its gradient is zero, up to rounding
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=found.path)
    expected = Translator.load("other-run").translate(["two red dogs", "a cat"], beam_size=2)
    assert [each.text for each in translations] == [each.text for each in expected]
