"""Systems in processes of their own, so that no library disturbs another, measured in turns."""

import ctypes
import gc
import itertools
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.cases import CEILINGS, Case
from bench.systems import THREADS, make_system

ENVIRONMENT = {
    "OMP_NUM_THREADS": str(THREADS),
    "MKL_NUM_THREADS": str(THREADS),
    "TF_NUM_INTRAOP_THREADS": str(THREADS),
    "TF_NUM_INTEROP_THREADS": str(THREADS),
    "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),  # as the commands do
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


def kill(pid: Future[int]) -> None:
    with suppress(ProcessLookupError, BrokenProcessPool):
        os.kill(pid.result(), signal.SIGKILL)


def call(log: Path, limit: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own, and ends the program if that is late."""
    with new_process(log, threads=None) as process:
        pid, called = process.submit(os.getpid), process.submit(function, *arguments)
        try:
            return called.result(limit)
        except TimeoutError:
            kill(pid)
            raise SystemExit(f"{function.__name__} took more than {limit:.0f} s") from None


def take_turns(case: Case, rounds: int, log: Path) -> tuple[list[Row], dict[str, Row]]:
    """Measures every system once a round, with the ceilings where the report needs them.

    A system that fails is left out. Returns `system`, `round` and `seconds` of each turn; and by
    system what it counted.
    """
    turns: list[Row] = []
    counts: dict[str, Row] = {}
    ceilings = CEILINGS if case["kind"] in ("decoding", "training") else ()
    with ExitStack() as stack:
        active = {
            name: stack.enter_context(new_process(log)) for name in (*case["systems"], *ceilings)
        }

        def call(name: str, *work: Any) -> Any:
            result = _result(name, active[name].submit(*work))
            if result is None:
                del active[name]
            return result

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
    counts: dict[str, Row] = {name: {} for name in case["systems"]}
    # The round before the first brings the files into the page cache.
    for number, name in itertools.product(range(-1, rounds), case["systems"]):
        if name in counts:
            began = time.perf_counter()
            with new_process(log) as process:
                found = _result(name, process.submit(_start_up, name, case))
            seconds = time.perf_counter() - began
            if found is None:
                del counts[name]
            elif number >= 0:
                turns.append({"system": name, "round": number, "seconds": seconds, **found})
    return turns, counts


def _result(name: str, future: Future[Any]) -> Any:
    """The result, or None and a word."""
    try:
        return future.result()
    except Exception as error:  # of any library; or the process was killed
        print(f"  {name}: skipped, {type(error).__name__}: {error}"[:300], flush=True)
        return None


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
    started = time.perf_counter()
    _this.output = _this.system.run()
    return time.perf_counter() - started


def count() -> Row:
    """Returns what the system counts, and the memory of its process in bytes."""
    peak = memory("VmHWM")
    return {**_this.system.count(_this.output), "peak": peak, "grown": peak - _this.resident}


def _start_up(name: str, case: Case) -> Row:
    """Translates once; returns the seconds of the stages, and bytes in memory and on disk."""
    times = [time.perf_counter()]
    system = make_system(name)
    for module in system.imports:
        import_module(module)
    times.append(time.perf_counter())
    system.load(case)
    times.append(time.perf_counter())
    system.count(system.run())
    times.append(time.perf_counter())
    stages = zip(("import", "load", "first"), np.diff(times).tolist(), strict=True)
    stored = (case["folder"] / system.stored).rglob("*")
    size = sum(path.stat().st_size for path in stored if path.is_file())
    return {**dict(stages), "peak": memory("VmHWM"), "bytes": size}


def memory(name: str, pid: int | str = "self") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split(f"{name}:")[1].split()[0])


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]
