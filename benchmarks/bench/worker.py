"""A system in a process of its own: a line of JSON comes in, it works, a line of JSON goes out.

    python -m bench.worker ctranslate2

{"do": "prepare", "case": {...}} builds and warms up, {"do": "run"} is timed here, without the
pipe, and {"do": "count"} says what the last run made. What libraries print goes to stderr.
"""

import ctypes
import gc
import json
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

THREADS = 2

# Name: module, class, arguments.
SYSTEMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "session": ("translators", "Session", {}),
    "process": ("translators", "InProcess", {}),
    "memory": ("translators", "Memory", {}),
    "ctranslate2": ("translators", "CTranslate2", {"compute_type": "float32"}),
    "ctranslate2-int8": ("translators", "CTranslate2", {"compute_type": "int8"}),
    "marian": ("translators", "Marian", {}),
    "keras-hub": ("kerashub", "KerasHubTranslator", {}),
    "fit": ("trainers", "Fit", {}),
    "fit-xla": ("trainers", "Fit", {"jit": True}),
    "keras-hub-fit": ("kerashub", "KerasHubFit", {}),
    "keras-hub-fit-xla": ("kerashub", "KerasHubFit", {"jit": True}),
    "torch-transformer": ("torch_trainers", "TorchTransformer", {}),
    "marian-training": ("torch_trainers", "MarianTraining", {}),
    "product-torch": ("others", "TorchProduct", {}),
    "product-tensorflow": ("others", "TensorFlowProduct", {}),
    "pipeline": ("others", "Pipeline", {}),
}


class Host:
    """Does what the lines say.

    Args:
        name: of the system.
    """

    def __init__(self, name: str) -> None:
        module, class_name, arguments = SYSTEMS[name]
        self.system = getattr(import_module(f"bench.{module}"), class_name)(**arguments)
        self.output: Any = None
        self.resident = 0

    def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        """Builds and warms up, the first time apart from the second."""
        self.output = None
        started = time.perf_counter()
        self.system.prepare(case)
        seconds = time.perf_counter() - started
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self.resident = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        return {"seconds": seconds, "resident": self.resident}

    def run(self) -> dict[str, Any]:
        """Does the work once."""
        started = time.perf_counter()
        self.output = self.system.run()
        return {"seconds": time.perf_counter() - started}

    def count(self) -> dict[str, Any]:
        """Says what the last run made, and how much memory the runs took beyond the model."""
        peak = _memory("VmHWM")
        return {**self.system.count(self.output), "peak": peak, "grown": peak - self.resident}


def _memory(name: str) -> int:
    """Bytes, from this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def main() -> None:
    """Serves until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    host: Host | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            host = host or Host(sys.argv[1])
            answer = getattr(host, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"skipped": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # This file is also the module that the systems import from.
    import_module("bench.worker").main()
