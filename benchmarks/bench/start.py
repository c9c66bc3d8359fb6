"""From nothing to the first translation, in a fresh process each time.

    python -m bench.start session '{"model": "base-forced", ...}'

prints the seconds of importing, of loading, and of the first translation.
"""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.cases import Case
from bench.models import folder_of
from bench.worker import SYSTEMS

IMPORTS = {
    "session": ("keras_transformer.export.session",),
    "process": ("keras_transformer.translator",),
    "ctranslate2": ("ctranslate2", "sentencepiece"),
    "marian": ("torch", "transformers.models.marian.modeling_marian", "sentencepiece"),
}
STORED = {"process": "run", "ctranslate2": "ctranslate2"}


def measure(
    case: Case, systems: Sequence[str], rounds: int, report: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Starts each system's process in turns.

    Returns:
        By system: `seconds`, from the start of the process to the first translation, and of these
        `import`, `load` and `first`, of each round; `bytes` on disk.
    """
    found: dict[str, dict[str, Any]] = {
        name: {"seconds": [], "import": [], "load": [], "first": [], "peak": []} for name in systems
    }
    stored = {name: folder_of(case["model"]) / folder for name, folder in STORED.items()}
    stored["session"] = Path(case["saved_model"])
    for name in systems:
        if name in stored:
            files = stored[name].rglob("*")
            found[name]["bytes"] = sum(file.stat().st_size for file in files if file.is_file())
    for number in range(rounds + 1):
        for name in systems:
            if "skipped" in found[name]:
                continue
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "bench.start", name, json.dumps(case)],
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - began
            if done.returncode:
                # What the kernel kills for want of memory says nothing.
                said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
                reason = said[-1][:300]
                report(f"  {name}: skipped, {reason}")
                found[name] = {"skipped": reason}
            elif number:  # the first round brings the files into memory
                stages = json.loads(done.stdout.splitlines()[-1])
                for stage, value in {"seconds": seconds, **stages}.items():
                    found[name][stage].append(value)
    return found


def main() -> None:
    """Starts a system; all that it needs is imported here."""
    if sys.argv[1] == "ctranslate2":
        sys.modules["torch"] = None  # type: ignore[assignment]  # it would load it
    name, case = sys.argv[1], json.loads(sys.argv[2])
    moments = [time.perf_counter()]
    for module in IMPORTS[name]:
        import_module(module)
    moments.append(time.perf_counter())
    module, class_name, arguments = SYSTEMS[name]
    system = getattr(import_module(f"bench.{module}"), class_name)(**arguments)
    system.take(case)
    system.load()
    moments.append(time.perf_counter())
    system.count(system.run())
    moments.append(time.perf_counter())
    seconds = [after - before for before, after in itertools.pairwise(moments)]
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
    stages = dict(zip(("import", "load", "first"), seconds, strict=True))
    print(json.dumps({**stages, "peak": peak}))


if __name__ == "__main__":
    main()
