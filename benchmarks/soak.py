"""Kills trainings at random moments and compares what they end in with a training left alone.

    python benchmarks/soak.py --kills 50

Each kill is `kill -9` of `keras-transformer train --resume` at a moment drawn evenly from the
time that a whole training takes: while TensorFlow loads, the corpus is prepared, updates are made,
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

CODE = "from keras_transformer.cli.main import main; main()"
SETTINGS = {
    "tokens_per_batch": 600,
    "peak_rate": 0.003,
    "warmup_steps": 20,
    "steps_per_validation": 20,
    "steps_per_save": 7,
    "bleu_sentences": 5,
    "keep_checkpoints": 4,
    "average_last": 3,
    "ema_decay": 0.9,
    "r_drop": 2.0,
    "clip_norm": 1.0,
    "model.d_model": 16,
    "model.d_ff": 24,
    "model.num_heads": 2,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
}


def start(run_dir: Path, steps: int) -> subprocess.Popen[bytes]:
    """Starts or resumes a training."""
    changes = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", CODE, "train", "--data", "bundled", "--vocab-size", "500"]
    options = ["--run-dir", str(run_dir), "--steps", str(steps), "--resume"]
    with run_dir.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([*command, *options, *changes], stdout=log, stderr=log)


def updates(run_dir: Path) -> int:
    """Returns how many updates a run has saved; reading it checks that it is whole."""
    if not (run_dir / "run.json").is_file():
        return 0
    run = Run.load(run_dir)
    return run.load_state()[1] if run.states else 0


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
    parser.add_argument("--folder", type=Path, default=None, help="a new one by default")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"--folder must be new or empty. Received: {folder}")
    chance = random.Random(arguments.seed)

    began = time.monotonic()
    if start(folder / "alone", arguments.steps).wait() != 0:
        raise SystemExit(f"The training without a kill failed: {folder / 'alone.log'}")
    duration = time.monotonic() - began
    expected = Run.load(folder / "alone")
    print(f"A training left alone takes {duration:.1f} s: {folder / 'alone'}", flush=True)

    kills = trainings = 0
    while kills < arguments.kills:
        run_dir = folder / f"killed-{trainings:02d}"
        process = start(run_dir, arguments.steps)
        moment = chance.uniform(0, duration)
        try:
            status = process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            print(
                f"kill {kills:2d} after {moment:5.1f} s: {run_dir.name} has saved "
                f"{updates(run_dir)} of {arguments.steps} updates",
                flush=True,
            )
            continue
        if status != 0:
            raise SystemExit(f"{run_dir} failed with {status}: {run_dir.with_suffix('.log')}")
        assert_same(Run.load(run_dir), expected)
        print(f"{run_dir.name} is complete, and bit for bit the one left alone", flush=True)
        trainings += 1
    if (status := start(run_dir, arguments.steps).wait()) != 0:
        raise SystemExit(f"{run_dir} failed with {status}: {run_dir.with_suffix('.log')}")
    assert_same(Run.load(run_dir), expected)
    print(f"{kills} kills, {trainings + 1} trainings, all bit for bit the one left alone")


if __name__ == "__main__":
    main()
