"""Systems in processes of their own, so that no library disturbs another, measured in turns."""

import ctypes
import gc
import itertools
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.cases import CEILINGS, Case
from bench.systems import THREADS, make_system

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
MIN_ROUNDS = 3
MAX_SECONDS = 45.0  # of a case, once it has MIN_ROUNDS
PAUSE = 0.25  # seconds between turns: threads of the system before may still be spinning
Row = dict[str, Any]


def new_process(log: Path, threads: int | None = THREADS) -> ProcessPoolExecutor:
    """A new process, whose output goes to a file, on some cores or on all."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, initializer=_start, initargs=(log, threads))


def take_turns(case: Case, rounds: int, log: Path) -> tuple[list[Row], dict[str, Row]]:
    """Measures every system once a round, with the ceilings where the report needs them.

    Returns `system`, `round` and `seconds` of each turn; and by system what it counted.
    """
    turns: list[Row] = []
    counts: dict[str, Row] = {}
    ceilings = CEILINGS if case["kind"] in ("decoding", "training") else ()
    with ExitStack() as stack:
        active = {
            name: stack.enter_context(new_process(log)) for name in (*case["systems"], *ceilings)
        }

        def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return active[name].submit(function, *arguments).result()
            except Exception as error:  # of any library; or the process was killed
                print(f"  {name}: skipped, {type(error).__name__}: {error}"[:300], flush=True)
                del active[name]
                return None

        for name in [*active]:
            counts[name] = {"prepare": call(name, prepare, name, case)}
        began = time.monotonic()
        for number in range(rounds):
            if number >= MIN_ROUNDS and time.monotonic() - began > MAX_SECONDS:
                break
            for name in [*active]:
                time.sleep(PAUSE)
                turns.append({"system": name, "round": number, "seconds": call(name, run)})
        for name in [*active]:
            counts[name] |= call(name, count) or {}
    return [turn for turn in turns if turn["system"] in active], counts


def take_starts(case: Case, rounds: int, log: Path) -> tuple[list[Row], dict[str, Row]]:
    """Starts the systems in turns, from nothing to the first translation; as `take_turns`."""
    turns: list[Row] = []
    counts: dict[str, Row] = {}
    # The round before the first brings the files into the page cache.
    for number, name in itertools.product(range(-1, rounds), case["systems"]):
        began = time.perf_counter()
        with new_process(log) as process:
            stages, counts[name] = process.submit(_start_up, name, case).result()
        seconds = time.perf_counter() - began
        if number >= 0:
            turns.append({"system": name, "round": number, "seconds": seconds, **stages})
    return turns, counts


def _start(log: Path, threads: int | None) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


# The following functions run in a system's process, and this is its system.

_this = SimpleNamespace()


def prepare(name: str, case: Case, options: Row | None = None) -> float:
    """Makes a system, prepares it for a case, and returns the seconds."""
    _this.system = make_system(name, **(options or {}))
    started = time.perf_counter()
    _this.system.prepare(case)
    seconds = time.perf_counter() - started
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _this.resident = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    return seconds


def run() -> float:
    """Runs the system once, and returns the seconds."""
    started = time.perf_counter()
    _this.output = _this.system.run()
    return time.perf_counter() - started


def count() -> Row:
    """Returns what the system counts, and the memory of its process in bytes."""
    peak = memory("VmHWM")
    return {**_this.system.count(_this.output), "peak": peak, "grown": peak - _this.resident}


def _start_up(name: str, case: Case) -> tuple[Row, Row]:
    """Translates once; returns the stages, and the bytes on disk."""
    stages, started = {}, time.perf_counter()
    system = make_system(name)
    for stage, work in {
        "import": lambda: [*map(import_module, system.imports)],
        "load": lambda: system.load(case),
        "first": lambda: system.count(system.run()),
    }.items():
        work()
        stages[stage] = time.perf_counter() - started - sum(stages.values())
    stored = (case["folder"] / (system.stored or "nothing")).rglob("*")
    size = sum(path.stat().st_size for path in stored if path.is_file())
    return {**stages, "peak": memory("VmHWM")}, {"bytes": size or None}


def memory(name: str, pid: int | str = "self") -> int:
    """Bytes, from a process's status."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split(f"{name}:")[1].split()[0])


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens to."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]
