"""Asks the local server from many clients while new versions of the model replace old ones.

    python benchmarks/serving_load.py MODELS/NAME/VERSION --seconds 600

Every `--swap-seconds` the SavedModel is copied to a new version, so all versions must give the same
answers. Each client sends one to four texts at a time, every fourth client over gRPC, and compares
the answers with those of a Session. Prints latencies, throughput, failures and the memory of the
server, and fails if a request failed or an answer was wrong.
"""

import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import typer
from bench.processes import free_ports, memory

from keras_transformer.errors import InputError
from keras_transformer.export.clients import GrpcClient, RestClient
from keras_transformer.export.session import SavedModelSession

SERVE = "from keras_transformer.cli.main import main; main()"
TEXTS = [
    "Two dogs play in the snow.",
    "A man in a red shirt is riding a bicycle down the street.",
    "Children.",
    "A woman with a large purse is walking by a gate, while a group of people looks on.",
    "Zwei Männer 😀 kochen.",
    "",
]


def ask(number: int, ports: list[int], expected: list[str], end: float) -> tuple[list, list]:
    """Asks until a time of `time.monotonic`; returns the latencies in seconds, and the problems."""
    chance = random.Random(number)
    client: RestClient | GrpcClient = RestClient(f"http://127.0.0.1:{ports[0]}/v1/models/load")
    if number % 4 == 3:
        client = GrpcClient(f"127.0.0.1:{ports[1]}", "load")
    latencies, problems = [], []
    while time.monotonic() < end:
        picked = chance.choices(range(len(TEXTS)), k=chance.randint(1, 4))
        started = time.perf_counter()
        try:
            rows = client.translate([TEXTS[index] for index in picked])
        except InputError as error:
            problems.append(str(error))
            continue
        latencies.append(time.perf_counter() - started)
        for row, index in zip(rows, picked, strict=True):
            if row["translation"] != expected[index]:
                problems.append(f"{row} instead of {expected[index]}")
    return latencies, problems


def main(
    saved_model: Path, seconds: float = 600, clients: int = 32, swap_seconds: float = 20
) -> None:
    session = SavedModelSession(saved_model, optimize=True)
    expected = [str(row["translation"]) for row in session.translate(TEXTS)]
    session.close()
    ports = free_ports(2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "load"
        shutil.copytree(saved_model, folder / "1")
        command = [sys.executable, "-c", SERVE, "serve", str(folder)]
        command += ["--port", str(ports[0]), "--grpc-port", str(ports[1])]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        if not any(line.startswith("Try: ") for line in process.stderr or ()):
            raise SystemExit("The server did not start")
        end = time.monotonic() + seconds
        resident, version, swap = [], 1, time.monotonic() + swap_seconds
        with ThreadPoolExecutor(clients) as pool:
            asked = [pool.submit(ask, number, ports, expected, end) for number in range(clients)]
            while time.monotonic() < end and process.poll() is None:
                time.sleep(0.5)
                resident.append(memory("VmRSS", process.pid) / 2**20)
                if time.monotonic() > swap:
                    version, swap = version + 1, swap + swap_seconds
                    # As an export does: the folder gets its name when it is complete.
                    shutil.copytree(saved_model, folder / ".new")
                    (folder / ".new").rename(folder / str(version))
                    shutil.rmtree(folder / str(version - 2), ignore_errors=True)
        process.terminate()
        process.communicate(timeout=60)
    answers = [client.result() for client in asked]
    latencies = np.array([value for values, _ in answers for value in values] or [np.nan])
    problems = [problem for _, found in answers for problem in found]
    # Means, because batches come and go; the first tenth of the time is the start.
    tenths = [round(part.mean()) for part in np.array_split(np.array(resident), 10)]
    times = np.percentile(1000 * latencies, [50, 90, 99, 100]).round()
    print(f"clients {clients}, seconds {seconds:.0f}, versions {version}")
    print(f"requests {len(latencies)}, a second {len(latencies) / seconds:.1f}")
    print(f"latency, ms: median, 90th and 99th percentile, maximum {times}")
    print(f"memory, MiB: peak {max(resident):.0f}, means of tenths of the time {tenths}")
    print(f"problems {len(problems)}, exit status {process.returncode}", *problems[:5], sep="\n")
    sys.exit(bool(problems or process.returncode))


if __name__ == "__main__":
    typer.run(main)
