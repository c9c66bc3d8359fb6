"""Runs cases: every system in a process of its own, one at a time, in turns."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cases import CEILINGS, MEMORY, Case
from bench.worker import THREADS

LEAST_ROUNDS = 3
PAUSE = 0.25  # seconds between two turns: threads of the one before may still be spinning
ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "MKL_NUM_THREADS": str(THREADS),
    "TF_NUM_INTRAOP_THREADS": str(THREADS),
    "TF_NUM_INTEROP_THREADS": str(THREADS),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "HF_HUB_OFFLINE": "1",
    "KERAS_BACKEND": "tensorflow",
    "PYTHONWARNINGS": "ignore",
}
# For MEMORY: what is freed is given back at once.
FRUGAL = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}


class Worker:
    """A system's process.

    Args:
        system: its name.
        logs: a folder for what it prints.
    """

    def __init__(self, system: str, logs: Path) -> None:
        self.system = system
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{system}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", system],
                env={**os.environ, **(FRUGAL if system == MEMORY else {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a line and waits for the answer; what goes wrong is one, too."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"skipped": f"the process ended with status {self.process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Crew:
    """The processes that are alive, kept from case to case as long as cases want them.

    Args:
        logs: a folder for what they print.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.workers: dict[str, Worker] = {}

    def members(self, systems: Sequence[str]) -> list[Worker]:
        """Returns these systems' processes, and ends all others."""
        for name in [name for name in self.workers if name not in systems or name == MEMORY]:
            self.workers.pop(name).close()
        for name in systems:
            if name in self.workers and self.workers[name].process.poll() is not None:
                del self.workers[name]
            if name not in self.workers:
                self.workers[name] = Worker(name, self.logs)
        return [self.workers[name] for name in systems]

    def close(self) -> None:
        """Ends all."""
        self.members(())


def take_turns(
    crew: Crew,
    case: Case,
    systems: Sequence[str],
    rounds: int,
    most_seconds: float,
    report: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Measures a case.

    Args:
        crew: the processes.
        case: the case, with all that the systems need.
        systems: who takes part; the ceilings always do.
        rounds: turns of each.
        most_seconds: rounds end after so long, if there were `LEAST_ROUNDS`.
        report: called with progress.

    Returns:
        By system: `seconds` of each round, `prepare` and what it counted, or why it was `skipped`.
    """
    found: dict[str, dict[str, Any]] = {}
    active: list[Worker] = []
    for worker in crew.members([*systems, *CEILINGS]):
        answer = worker.ask(do="prepare", case=case)
        if "skipped" in answer:
            report(f"  {worker.system}: skipped, {answer['skipped']}")
            found[worker.system] = answer
        else:
            if worker.system not in CEILINGS:
                report(f"  {worker.system}: ready in {answer['seconds']:.1f} s")
            found[worker.system] = {"prepare": answer["seconds"], "seconds": []}
            active.append(worker)
    began = time.monotonic()
    for number in range(rounds):
        if number >= min(LEAST_ROUNDS, rounds) and time.monotonic() - began > most_seconds:
            break
        for worker in list(active):
            time.sleep(PAUSE)
            answer = worker.ask(do="run")
            if "skipped" in answer:
                report(f"  {worker.system}: failed, {answer['skipped']}")
                found[worker.system] = answer
                active.remove(worker)
            else:
                found[worker.system]["seconds"].append(answer["seconds"])
    for worker in active:
        answer = worker.ask(do="count")
        found[worker.system] |= answer
        if "skipped" in answer:
            report(f"  {worker.system}: failed, {answer['skipped']}")
    return found
