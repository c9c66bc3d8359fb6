"""Resident memory of a training, every 250 updates.

    python benchmarks/memory_growth.py --steps 2500

Trains a small model on the bundled corpus with all that happens beside the updates: validation,
BLEU, checkpoints, saves between them.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bench.processes import memory

from keras_transformer.trainers import training
from keras_transformer.trainers.callbacks import TrainingProgress
from keras_transformer.trainers.recipes import TrainSettings


class _Watch(TrainingProgress):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        super().on_train_batch_end(batch, logs)
        if self.step % 250 == 0:
            print(f"{self.step:6d} updates: {memory('VmRSS') / 1e6:8.1f} MB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_500)
    settings = TrainSettings(
        data="bundled",
        vocab_size=1_000,
        steps=parser.parse_args().steps,
        tokens_per_batch=1_000,
        warmup_steps=100,
        steps_per_validation=250,
        steps_per_save=100,
        bleu_sentences=50,
        keep_checkpoints=3,
        model={"d_model": 64, "d_ff": 128, "num_encoder_layers": 1, "num_decoder_layers": 1},
    )
    training.TrainingProgress = _Watch  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        training.train(settings, Path(folder) / "run", verbose=0)
