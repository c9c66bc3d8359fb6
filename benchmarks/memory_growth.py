"""Resident memory of a training, every 250 updates.

    python benchmarks/memory_growth.py --steps 2500

Trains a small model on the bundled corpus with all that happens beside the updates: validation,
BLEU, checkpoints, saves between them.
"""

import itertools
import tempfile
from pathlib import Path

import keras
import typer
from bench.processes import memory

from keras_transformer.trainers.fitting.training import train
from keras_transformer.trainers.settings import TrainSettings


def main(steps: int = 2_500) -> None:
    """Trains, and prints."""
    settings = TrainSettings(
        data="bundled",
        vocab_size=1_000,
        steps=steps,
        tokens_per_batch=1_000,
        warmup_steps=100,
        steps_per_validation=250,
        steps_per_save=100,
        bleu_sentences=50,
        keep_checkpoints=3,
        model={"d_model": 64, "d_ff": 128, "num_encoder_layers": 1, "num_decoder_layers": 1},
    )
    updates = itertools.count(1)

    def watch(batch: int, logs: object = None) -> None:
        if (update := next(updates)) % 250 == 0:
            print(f"{update:6d} updates: {memory('VmRSS') / 1e6:8.1f} MB", flush=True)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=watch)
    with tempfile.TemporaryDirectory() as folder:
        train(settings, Path(folder) / "run", verbose=0, callbacks=[callback])


if __name__ == "__main__":
    typer.run(main)
