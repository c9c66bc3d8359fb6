"""Kills trainings at random moments and compares their results with a training without kills.

    python benchmarks/soak.py --kills 50

Each kill is `kill -9` of `keras-transformer train --resume` at a moment drawn evenly from the
time that a training takes: while TensorFlow loads, the corpus is prepared, updates are made,
files are written or checkpoints averaged. When a training has ended, the next begins. Prints a line
a kill, and the memory of a training that ends; fails at the first difference. For the memory alone:

    python benchmarks/soak.py --kills 0 --steps 2500
"""

import math
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import typer

from keras_transformer.run import Run

COMMAND = [sys.executable, "-c", "from keras_transformer.cli.main import main; main()", "train"]
COMMAND += ["--data", "bundled", "--vocab-size", "500", "--resume"]
SETTINGS = "tokens_per_batch=600 peak_rate=0.003 warmup_steps=20 steps_per_validation=20 "
SETTINGS += "steps_per_save=7 bleu_sentences=5 keep_checkpoints=4 average_last=3 ema_decay=0.9 "
SETTINGS += "r_drop=2.0 clip_norm=1.0 model.d_model=16 model.d_ff=24 model.num_heads=2 "
SETTINGS += "model.num_encoder_layers=1 model.num_decoder_layers=1"
COMMAND += [f"--set={setting}" for setting in SETTINGS.split()]


def train(run_dir: Path, steps: int, seconds: float = math.inf) -> bool:
    """Starts or resumes a training, and kills it after some seconds; whether it completed."""
    command = [*COMMAND, "--run-dir", str(run_dir), "--steps", str(steps)]
    began, resident = time.monotonic(), []
    with run_dir.with_suffix(".log").open("ab") as log:
        process = psutil.Popen(command, stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(0.02)
            resident.append(process.memory_info().rss / 1e6)
            if time.monotonic() - began > seconds:
                process.kill()  # it has no children
                return process.wait() == 0
    if process.returncode:
        raise SystemExit(f"The training failed: see {run_dir.with_suffix('.log')}")
    tenths = [round(part.mean()) for part in np.array_split(resident, 10)]
    print(f"{run_dir.name} is complete; MB of memory in tenths of its time: {tenths}", flush=True)
    return True


def assert_same(run: Run, expected: Run) -> None:
    if run.metrics() != expected.metrics():
        raise SystemExit(f"{run.path}: the metrics differ from those of {expected.path}")
    for name in ("last", "best", "averaged"):
        for ours, theirs in zip(run.model(name).weights, expected.model(name).weights, strict=True):
            if not np.array_equal(ours, theirs):
                raise SystemExit(f"{run.path}: {name} {ours.path} differs from {expected.path}")


def main(kills: int = 50, steps: int = 150, seed: int = 1) -> None:
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    chance = random.Random(seed)
    began = time.monotonic()
    train(folder / "alone", steps)
    duration = time.monotonic() - began
    expected = Run.load(folder / "alone")
    print(f"A training without kills takes {duration:.1f} s: {folder / 'alone'}", flush=True)

    killed, trainings, completed = 0, 0, False
    while killed < kills or not completed:
        run_dir = folder / f"killed-{trainings:02d}"
        moment = chance.uniform(0, duration) if killed < kills else math.inf
        completed = train(run_dir, steps, moment)
        if completed:
            assert_same(Run.load(run_dir), expected)
            trainings += 1
        else:
            killed += 1
            print(f"kill {killed:2d} after {moment:5.1f} s of {run_dir.name}", flush=True)
    print(f"{killed} kills, {trainings} trainings, all equal bit for bit")


if __name__ == "__main__":
    typer.run(main)
