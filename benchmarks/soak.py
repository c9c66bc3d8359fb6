"""Kills trainings at random moments and compares their results with a training without kills.

    python benchmarks/soak.py --kills 50

Each kill is `kill -9` of `keras-transformer train --resume` at a moment drawn evenly from the
time that a training takes: while TensorFlow loads, the corpus is prepared, updates are made,
files are written or checkpoints averaged. When a training has ended, the next begins. Prints a line
a kill and fails at the first difference.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from keras_transformer.run import Run

COMMAND = [sys.executable, "-c", "from keras_transformer.cli.main import main; main()", "train"]
COMMAND += ["--data", "bundled", "--vocab-size", "500", "--resume"]
SETTINGS = "--set tokens_per_batch=600 --set peak_rate=0.003 --set warmup_steps=20 "
SETTINGS += "--set steps_per_validation=20 --set steps_per_save=7 --set bleu_sentences=5 "
SETTINGS += "--set keep_checkpoints=4 --set average_last=3 --set ema_decay=0.9 --set r_drop=2.0 "
SETTINGS += (
    "--set clip_norm=1.0 --set model.d_model=16 --set model.d_ff=24 --set model.num_heads=2 "
)
SETTINGS += "--set model.num_encoder_layers=1 --set model.num_decoder_layers=1"
COMMAND += SETTINGS.split()


def train(run_dir: Path, steps: int, seconds: float | None = None) -> bool:
    """Starts or resumes a training, and kills it after some seconds; whether it completed."""
    command = [*COMMAND, "--run-dir", str(run_dir), "--steps", str(steps)]
    with run_dir.with_suffix(".log").open("ab") as log:
        try:
            # `run` kills the process, which is a program of one process, with SIGKILL.
            subprocess.run(command, stdout=log, stderr=log, timeout=seconds, check=True)
        except subprocess.TimeoutExpired:
            return False
    return True


def assert_same(run: Run, expected: Run) -> None:
    """Compares weights and metrics bit for bit."""
    if run.metrics() != expected.metrics():
        raise SystemExit(f"{run.path}: the metrics differ from those of {expected.path}")
    for name in ("last", "best", "averaged"):
        for ours, theirs in zip(run.model(name).weights, expected.model(name).weights, strict=True):
            if not np.array_equal(ours, theirs):
                raise SystemExit(f"{run.path}: {name} {ours.path} differs from {expected.path}")


def main() -> None:
    """Runs the soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    chance = random.Random(arguments.seed)

    began = time.monotonic()
    train(folder / "alone", arguments.steps)
    duration = time.monotonic() - began
    expected = Run.load(folder / "alone")
    print(f"A training without kills takes {duration:.1f} s: {folder / 'alone'}", flush=True)

    kills = trainings = 0
    while kills < arguments.kills:
        run_dir = folder / f"killed-{trainings:02d}"
        moment = chance.uniform(0, duration)
        if train(run_dir, arguments.steps, moment):
            assert_same(Run.load(run_dir), expected)
            print(f"{run_dir.name} is complete, and equal bit for bit", flush=True)
            trainings += 1
        else:
            kills += 1
            print(f"kill {kills:2d} after {moment:5.1f} s of {run_dir.name}", flush=True)
    train(run_dir, arguments.steps)
    assert_same(Run.load(run_dir), expected)
    print(f"{kills} kills, {trainings + 1} trainings, all equal bit for bit")


if __name__ == "__main__":
    main()
