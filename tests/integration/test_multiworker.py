"""Two processes on this machine, which train as two machines do."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from close_runs import assert_close_runs
from command_line import free_ports
from shared_fixtures import TINY

from keras_transformer.run import Run

pytestmark = pytest.mark.distributed

CODE = "from keras_transformer.cli.main import main; main()"
STEPS = 20
SECONDS = 240  # a process that takes longer hangs; to start two takes half a minute


@pytest.fixture(scope="module")
def arguments(corpus_dir):
    """A training of batches that no two workers share evenly; validation every 5 updates."""
    settings = {"augment": "{}", "vocab_size": 290, "tokens_per_batch": 60, "max_length": 40}
    settings |= {"warmup_steps": 3, "peak_rate": 0.003, "steps_per_validation": 5}
    settings |= {"bleu_sentences": 5, "model.dropout_rate": 0.0}
    settings |= {f"model.{name}": value for name, value in TINY.items()}
    changes = [f"--set={name}={value}" for name, value in settings.items()]
    return ["--data", str(corpus_dir), "--resume", *changes]


def start(run_dir, arguments, log, worker=None, ports=()):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if ports:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        task = {"type": "worker", "index": worker}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    options = ["--run-dir", str(run_dir), "--strategy", "multiworker" if ports else "one"]
    command = [sys.executable, "-c", CODE, "train", *options, *arguments]
    with log.open("w") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def run_alone(run_dir, arguments, log, *cluster):
    """Trains in one process to the end."""
    process = start(run_dir, arguments, log, *cluster)
    try:
        assert process.wait(SECONDS) == 0, log.read_text()
    finally:
        process.kill()
    return Run.load(run_dir)


class Pair:
    """Two workers, with the same arguments and each with its own, and what they print."""

    def __init__(self, run_dir, arguments, *own):
        self.logs = [run_dir.with_name(f"{run_dir.name}.{i}.log") for i in range(2)]
        ports = free_ports(2)
        self.processes = [
            start(run_dir, [*arguments, *own[i : i + 1]], log, i, ports)
            for i, log in enumerate(self.logs)
        ]

    def wait_for(self, pattern):
        """Waits until the chief has printed something."""
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.logs[0].read_text()):
            assert time.monotonic() < end, self.output()
            assert self.processes[0].poll() is None, self.output()
            time.sleep(0.05)

    def exit_statuses(self, seconds=SECONDS):
        try:
            return [process.wait(seconds) for process in self.processes]
        except subprocess.TimeoutExpired:
            pytest.fail(self.output())

    def output(self):
        return "\n\n".join(log.read_text() for log in self.logs)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def pair(request):
    """Makes pairs that do not outlive the test."""
    made = []

    def make(*arguments):
        made.append(Pair(*arguments))
        return made[-1]

    yield make
    for workers in made:
        workers.kill()


@pytest.fixture(scope="module")
def one(arguments, tmp_path_factory):
    """The training in one process."""
    folder = tmp_path_factory.mktemp("one")
    return run_alone(folder / "run", [*arguments, "--steps", str(STEPS)], folder / "log")


def assert_same_training(run, expected):
    assert run.status == "complete"
    assert_close_runs(run, expected)


def weights_of(run, checkpoint):
    """All weights but the keys' biases, as one vector: see close_runs.py."""
    model = run.model("last")
    run.load_weights(model, checkpoint)
    values = [w.numpy().ravel() for w in model.weights if not w.path.endswith("key/bias")]
    return np.concatenate(values)


def test_two_workers_train_as_one(arguments, one, pair, tmp_path):
    workers = pair(tmp_path / "run", [*arguments, "--steps", str(STEPS)])
    assert workers.exit_statuses() == [0, 0], workers.output()
    assert_same_training(Run.load(tmp_path / "run"), one)
    assert f"Training: {STEPS} updates" in workers.logs[1].read_text()
    assert workers.logs[1].read_text().startswith("Waiting until all workers have started")
    # Only the chief writes and shows progress.
    assert "After 5 updates" not in workers.logs[1].read_text()
    assert len(list((tmp_path / "run" / "tensorboard" / "train").iterdir())) == 1


def test_a_cluster_of_one_machine(arguments, one, tmp_path):
    changed = [*arguments, "--steps", str(STEPS)]
    run = run_alone(tmp_path / "run", changed, tmp_path / "log", 0, free_ports(1))
    assert_same_training(run, one)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        # At this norm every update is clipped. XLA compiles each length, so there is one.
        (["jit=true", "clip_norm=0.05", "ema_decay=0.8", "max_length=8"], 1e-4),
        (["precision=mixed_float16", "accumulate=2"], 0.1),
    ],
    ids=["jit-clip-ema", "float16-accumulate"],
)
def test_other_ways_to_compute(arguments, pair, tmp_path, changes, share):
    """Two workers differ from one by at most a share of the movement of the last 5 updates."""
    changes = [*changes, "steps=10", "keep_checkpoints=2", "bleu_sentences=0"]
    arguments = [*arguments, *(f"--set={change}" for change in changes)]
    one = run_alone(tmp_path / "one", arguments, tmp_path / "log")
    workers = pair(tmp_path / "run", arguments)
    assert workers.exit_statuses() == [0, 0], workers.output()
    run = Run.load(tmp_path / "run")
    before, after = (weights_of(one, checkpoint) for checkpoint in one.checkpoints)
    movement = np.linalg.norm(after - before)
    assert np.linalg.norm(weights_of(run, run.last) - after) < share * movement
    loss = one.last.metrics["token_loss"]
    assert run.last.metrics["token_loss"] == pytest.approx(loss, rel=share)


def test_sigterm_to_one_saves_and_stops_both(arguments, pair, tmp_path):
    workers = pair(tmp_path / "run", [*arguments, "--steps", "1000000"])
    workers.wait_for("After 10 updates")
    workers.processes[1].send_signal(signal.SIGTERM)  # not the chief
    assert workers.exit_statuses(60) == [143, 143], workers.output()
    for log in workers.logs:
        assert re.search(r"(?m)^Stopped by SIGTERM after \d+ updates", log.read_text())
    assert Run.load(tmp_path / "run").states[-1].step >= 10


@pytest.mark.parametrize("lost", [0, 1])
def test_the_death_of_one_stops_the_other(arguments, one, pair, tmp_path, lost):
    """After the death of the chief, one process resumes from the last save."""
    workers = pair(tmp_path / "run", [*arguments, "--steps", "1000000"])
    workers.wait_for("After 10 updates")
    workers.processes[lost].kill()
    statuses = workers.exit_statuses(60)
    assert statuses[1 - lost] == 75, workers.output()
    assert "error: Another worker is gone: start all workers again" in workers.output()
    run = Run.load(tmp_path / "run")
    assert run.last.step < STEPS
    assert run.load_state()[1] >= 10
    if lost == 1:
        return
    run = run_alone(tmp_path / "run", [*arguments, "--steps", str(STEPS)], tmp_path / "log")
    assert "Resumed after" in (tmp_path / "log").read_text()
    assert_same_training(run, one)


def test_bad_input_of_the_chief_ends_both(arguments, pair, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").write_text("else")
    workers = pair(tmp_path / "run", [*arguments, "--steps", str(STEPS)])
    assert workers.exit_statuses(60) == [1, 75], workers.output()
    assert "is not a run directory" in workers.logs[0].read_text()


def test_other_settings_on_one_worker(arguments, pair, tmp_path):
    workers = pair(tmp_path / "run", arguments, "--seed=0", "--seed=1")
    assert 1 in workers.exit_statuses(60), workers.output()
    assert "The workers' settings differ" in workers.output()
