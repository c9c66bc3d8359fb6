"""What the tests share: devices, tiny runs, and a guard on AutoGraph. It imports TensorFlow."""

import logging
import os
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as the commands do

import layer_weights
import pytest
import tensorflow as tf
from eager import eagerly

NUM_DEVICES = 3  # logical CPUs, so that MirroredStrategy has something to mirror
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * NUM_DEVICES,
)
# Most graphs of a test run once, so that their optimization takes longer than it saves.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

from keras_transformer.config import DecodingOptions
from keras_transformer.export.check import Finding
from keras_transformer.export.options import ExportOptions
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.session import SavedModelSession
from keras_transformer.model.transformer import Transformer
from keras_transformer.run import Run
from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.settings import TrainSettings
from keras_transformer.translator import Translator

TINY = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2}
WORDS = {"one": "eins", "two": "zwei", "red": "rot", "dog": "Hund", "cat": "Katze", "öl": "oil"}


@pytest.fixture(autouse=True)
def _autograph_guard(caplog):
    """Fails a test in which AutoGraph could not transform a function."""
    logging.getLogger("tensorflow").setLevel(logging.WARNING)  # which commands make quiet
    yield
    failures = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.WARNING and "AutoGraph could not" in record.getMessage()
    ]
    assert not failures


@pytest.fixture
def eager():
    """Nothing is compiled in a test: see eager.py."""
    with eagerly():
        yield


@pytest.fixture(scope="session")
def corpus_dir(tmp_path_factory):
    """A folder of word-by-word translations: 150 training, 12 validation and 9 test pairs."""
    folder = tmp_path_factory.mktemp("corpus")
    words = list(WORDS)
    pairs = [
        [words[(i * 7 + j * j + i // 5) % len(words)] for j in range(1 + i % 5)] for i in range(171)
    ]
    for split, rows in {"train": pairs[:150], "val": pairs[150:162], "test": pairs[162:]}.items():
        for language, translate in {"en": str, "de": WORDS.get}.items():
            lines = [" ".join(map(translate, row)) + " .\n" for row in rows]
            (folder / f"{language}.{split}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_settings(corpus_dir):
    """Settings that train in seconds."""
    return TrainSettings(
        data=str(corpus_dir),
        vocab_size=290,
        augment={},
        steps=5,
        tokens_per_batch=300,
        max_length=40,
        warmup_steps=3,
        steps_per_validation=3,
        model=TINY,
    )


def write_short_pairs(folder, count, splits):
    words = ["red", "dog", "cat", "two"]
    texts = [f"{words[i % 4]} {words[i // 4]}\n" for i in range(count)]
    for split in splits:
        (folder / f"en.{split}.txt").write_text("".join(texts))
        (folder / f"de.{split}.txt").write_text("".join(texts[5:] + texts[:5]).upper())


@pytest.fixture(scope="session")
def short_settings(tmp_path_factory):
    """Settings of a corpus of 16 short pairs, 7 to a batch, that has no validation split."""
    folder = tmp_path_factory.mktemp("short")
    write_short_pairs(folder, 16, ["train"])
    return TrainSettings(
        data=str(folder),
        augment={},
        strategy="one",
        steps=2,
        tokens_per_batch=56,
        max_length=8,
        warmup_steps=2,
        model={**TINY, "d_model": 10, "d_ff": 17, "num_decoder_layers": 1},
    )


@pytest.fixture(scope="session")
def tiny_run(tiny_settings, tmp_path_factory) -> Run:
    """A finished run, trained for five updates: complete, but not a good translator."""
    with eagerly():
        return train(tiny_settings, tmp_path_factory.mktemp("run") / "tiny", verbose=0)


@pytest.fixture(scope="session")
def tiny_translator(tiny_run) -> Translator:
    return Translator.load(tiny_run.path)


class Export(NamedTuple):
    translator: Translator
    path: Path
    findings: list[Finding]


@pytest.fixture(scope="session")
def exported(tiny_translator, tmp_path_factory) -> Export:
    """Version 7 of a model `tiny`, with random weights: no two hypotheses score alike."""
    model = layer_weights.randomize(Transformer(tiny_translator.model.config))
    decoding = DecodingOptions(beam_size=3, length_penalty=0.7, max_source_length=23)
    translator = Translator(model, tiny_translator.tokenizer, decoding)
    findings = []
    # Functions of an export keep this option, and those of users are optimized.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    try:
        path = export_saved_model(
            translator,
            tmp_path_factory.mktemp("models") / "tiny",
            version=7,
            options=ExportOptions(attention_layer=0),
            report=findings.append,
        )
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return Export(translator, path, findings)


@pytest.fixture(scope="session")
def kinds(exported, tmp_path_factory):
    """Exports by their kind: see export_kinds.py."""
    from export_kinds import Kind, Kinds

    return Kinds(tmp_path_factory.mktemp("kinds"), Kind(exported.translator, exported.path))


@pytest.fixture(scope="session")
def served(exported) -> SavedModelSession:
    """The export, opened as a server opens it."""
    return SavedModelSession(exported.path, optimize=True)
