"""Where the time of a system goes: TensorFlow's profiler, as a table of operations."""

import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from bench.cases import Case
from bench.processes import ENVIRONMENT
from bench.run import complete
from bench.systems import make_system

MAX_SECONDS = 3.0  # of recorded calls: a trace holds a limited number of events
MAX_CALLS = 10
NUM_ROWS = 14
NAMES = {"PartitionedCallOp": "starting operations"}  # what is left of a function's time
# Events around operations. A training also has one with the name of its function.
CONTAINERS = ("Run", "Process", "FunctionRun", "ExecutorDoneCallback", "EagerKernelExecute")


def print_profile(case: Case, name: str) -> None:
    os.environ.update(ENVIRONMENT)
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with TemporaryDirectory() as folder:
        complete(case, Path(folder), Path(folder, "log"))
        system = make_system(name)
        system.prepare(case)
        began = time.perf_counter()
        system.run()
        calls = min(MAX_CALLS, 1 + int(MAX_SECONDS / (time.perf_counter() - began)))
        tf.profiler.experimental.start(folder)
        began = time.perf_counter()
        for _ in range(calls):
            system.run()
        wall = 1e3 * (time.perf_counter() - began) / calls
        tf.profiler.experimental.stop()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        planes = xplane_pb2.XSpace.FromString(trace.read_bytes()).planes
    threads = [milliseconds(plane, line) for plane in planes for line in plane.lines]
    # A session computes operations in the thread that calls; a training waits there for others.
    first, *rest = sorted(threads, key=Counter.total, reverse=True)
    columns = {"ms in the first thread": first, "in others": sum(rest, Counter())}
    table = pd.DataFrame(columns).rename(index=NAMES).fillna(0) / calls
    table = table.loc[table.sum(axis="columns").sort_values(ascending=False).index]
    shown, left = table[:NUM_ROWS], table[NUM_ROWS:]
    sums = pd.DataFrame({"other operations": left.sum(), "all": table.sum()}).T
    print(f"{case['id']}, {name}: {wall:.1f} ms, with the profiler's own work")
    print(pd.concat([shown, sums]).to_markdown(floatfmt=".1f"))
    print(f"No operation: {wall - first.total() / calls:.1f} ms in the first thread", flush=True)


def milliseconds(plane: Any, line: Any) -> Counter[str]:
    """Returns the time of each operation in a thread, without that of operations inside."""
    found: Counter[str] = Counter()
    stack: list[tuple[int, str]] = []  # end and name of the operations around the next one
    for event in sorted(line.events, key=lambda each: (each.offset_ps, -each.duration_ps)):
        name = plane.event_metadata[event.metadata_id].name.split(":")[-1]
        if name in CONTAINERS:
            continue
        while stack and stack[-1][0] <= event.offset_ps:
            stack.pop()
        found[name] += event.duration_ps * 1e-9
        if stack:
            found[stack[-1][1]] -= event.duration_ps * 1e-9
        stack.append((event.offset_ps + event.duration_ps, name))
    return found
