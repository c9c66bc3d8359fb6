"""TensorFlow Serving itself, which a script starts with the server's own flags.

The script is $TENSORFLOW_SERVING; tests that need it are skipped where it is absent.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3
from command_line import free_ports
from fake_models import Serving

ROOT = Path(__file__).parents[1]
DEFAULT = ROOT.parent / "shared/tools/tensorflow-serving/run.sh"
SCRIPT = Path(os.environ.get("TENSORFLOW_SERVING", DEFAULT))
SECONDS_TO_START = 240  # the first start installs it


@contextmanager
def tensorflow_serving(models: Mapping[str, Path], folder: Path, *flags: str) -> Iterator[Serving]:
    """Serves models by name, each a folder of versions; `folder` is for its files."""
    if not SCRIPT.is_file():
        pytest.skip(f"TensorFlow Serving is not here: TENSORFLOW_SERVING is {SCRIPT}")
    rest, grpc = free_ports(2)
    configs = "".join(
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}\n'
        for name, path in models.items()
    )
    (folder / "models.config").write_text(f"model_config_list {{\n{configs}}}\n")
    command = [SCRIPT, f"--rest_api_port={rest}", f"--port={grpc}", *flags]
    command += [f"--model_config_file={folder}/models.config", "--max_num_load_retries=0"]
    command += ["--file_system_poll_wait_seconds=1", "--tensorflow_intra_op_parallelism=1"]
    command += [f"--tensorflow_session_config_file={ROOT}/export/docker/session.config"]
    log = folder / "server.log"
    with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            url = f"http://127.0.0.1:{rest}"
            for name in models:
                wait_for_version(url, name, process, log)
            yield Serving(url, f"127.0.0.1:{grpc}", process.terminate)
        finally:
            process.kill()


def wait_for_version(
    url: str, name: str, process: subprocess.Popen, log: Path, seconds: float = SECONDS_TO_START
) -> None:
    """Waits until a version of a model is available."""
    end = time.monotonic() + seconds
    with urllib3.PoolManager(retries=False, timeout=5) as pool:
        while process.poll() is None and time.monotonic() < end:
            try:
                status = pool.request("GET", f"{url}/v1/models/{name}").json()
            except (urllib3.exceptions.HTTPError, ValueError):
                status = {}
            states = {each["state"] for each in status.get("model_version_status", [])}
            if "AVAILABLE" in states:
                return
            if states == {"END"}:  # the version could not be loaded
                break
            time.sleep(0.2)
    pytest.fail(f"No version of {name} is available: {log.read_text()[-3000:]}")
