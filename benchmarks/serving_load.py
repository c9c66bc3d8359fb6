"""Asks the local server from many clients at once, while versions are swapped under it.

    python benchmarks/serving_load.py MODELS/NAME/VERSION --seconds 600

The SavedModel is copied to new versions, one every `--swap-seconds`, so that every version must
give the same answers. Clients send one to four texts, every fourth client over gRPC and the others
over REST, and compare what they get with what a Session gives. Prints the first request's latency
beside the steady one of a single client, failed requests, wrong answers, latencies, throughput and
how the server's memory grew; fails if anything was lost or wrong, or if it grew by more than 2 %.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import urllib3
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

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
TIMEOUT = 60


class Client(threading.Thread):
    """Asks until it is stopped; remembers how long each answer took, and what went wrong."""

    def __init__(self, number: int, addresses: list[str], expected: list[Any], stop: Any) -> None:
        super().__init__(daemon=True)
        self.random = random.Random(number)
        self.use_grpc = number % 4 == 3
        self.addresses, self.expected, self.stop = addresses, expected, stop
        self.seconds: list[float] = []
        self.texts = 0
        self.failed: list[str] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        """Asks and compares, one request after another."""
        rest, grpc_address = self.addresses
        pool = urllib3.PoolManager(retries=False, timeout=TIMEOUT)
        stub = prediction_service_pb2_grpc.PredictionServiceStub(
            grpc.insecure_channel(grpc_address)
        )
        while not self.stop.is_set():
            picked = [self.random.randrange(len(TEXTS)) for _ in range(self.random.randint(1, 4))]
            texts = [TEXTS[index] for index in picked]
            started = time.perf_counter()
            try:
                rows = ask_grpc(stub, texts) if self.use_grpc else ask_rest(pool, rest, texts)
            except Exception as error:
                self.failed.append(f"{type(error).__name__}: {error}"[:300])
                self.stop.wait(0.1)
                continue
            self.seconds.append(time.perf_counter() - started)
            self.texts += len(texts)
            expected = [self.expected[index] for index in picked]
            if not same(rows, expected):
                self.wrong.append(f"{rows} instead of {expected}")


def ask_rest(pool: urllib3.PoolManager, url: str, texts: list[str]) -> list[tuple[str, float]]:
    """Returns a translation and a score for each text."""
    response = pool.request("POST", url, body=json.dumps({"instances": texts}))
    if response.status != 200:
        raise RuntimeError(f"{response.status} {response.data!r}")
    return [(row["translation"], row["score"]) for row in response.json()["predictions"]]


def ask_grpc(stub: Any, texts: list[str]) -> list[tuple[str, float]]:
    """Returns a translation and a score for each text."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "load"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts, tf.string))
    outputs = stub.Predict(request, timeout=TIMEOUT).outputs
    translations = [text.decode() for text in outputs["translation"].string_val]
    return list(zip(translations, outputs["score"].float_val, strict=True))


def same(rows: list[tuple[str, float]], expected: list[tuple[str, float]]) -> bool:
    """Whether translations are equal, and scores nearly: a batch rounds otherwise than a row."""
    return len(rows) == len(expected) and all(
        text == wanted and math.isclose(score, wanted_score, abs_tol=1e-3)
        for (text, score), (wanted, wanted_score) in zip(rows, expected, strict=True)
    )


def resident_mib(pid: int) -> float:
    """Returns the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def add_version(saved_model: Path, folder: Path, version: int) -> None:
    """Adds a version as an export does, and deletes all but the last two."""
    shutil.copytree(saved_model, folder / f".{version}")
    (folder / f".{version}").rename(folder / str(version))
    if version > 2:
        shutil.rmtree(folder / str(version - 2))


def start(folder: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """Starts the server; returns its process and where it listens."""
    ports = ["--port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-c", SERVE, "serve", str(folder), *ports]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    addresses = {}
    assert process.stderr is not None
    for line in process.stderr:
        for name in ("gRPC: ", "Page: "):
            if line.startswith(name):
                addresses[name] = line.removeprefix(name).strip()
        if line.startswith("Try: "):
            break
    else:
        sys.exit("the server did not start")
    threading.Thread(target=process.stderr.read, daemon=True).start()
    url = f"{addresses['Page: ']}v1/models/load:predict"
    return process, [url, addresses["gRPC: "]]


def first_and_steady(url: str) -> tuple[float, float]:
    """Times the first request after the start, and the median of those that follow, in ms."""
    pool = urllib3.PoolManager(retries=False, timeout=TIMEOUT)
    times = []
    for _ in range(51):
        started = time.perf_counter()
        ask_rest(pool, url, TEXTS[1:2])
        times.append(1000 * (time.perf_counter() - started))
    return times[0], float(np.median(times[1:]))


def main() -> None:
    """Runs the load and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("saved_model", type=Path, help="a version's folder")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--swap-seconds", type=float, default=20)
    options = parser.parse_args()

    session = SavedModelSession(options.saved_model)
    rows = session.translate(TEXTS)
    expected = [(row["translation"], row["score"]) for row in rows]
    session.close()
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "load"
        folder.mkdir()
        add_version(options.saved_model, folder, 1)
        process, addresses = start(folder)
        first_request, steady_request = first_and_steady(addresses[0])
        clients = [Client(n, addresses, expected, stop) for n in range(options.clients)]
        for client in clients:
            client.start()
        started = time.monotonic()
        memory, version = [], 1
        next_swap = started + options.swap_seconds
        while time.monotonic() < started + options.seconds and process.poll() is None:
            time.sleep(0.5)
            memory.append(resident_mib(process.pid))
            if time.monotonic() > next_swap:
                version += 1
                add_version(options.saved_model, folder, version)
                next_swap += options.swap_seconds
        stop.set()
        for client in clients:
            client.join(TIMEOUT)
        lost = sum(client.is_alive() for client in clients)
        elapsed = time.monotonic() - started
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)

    failed = [message for client in clients for message in client.failed]
    wrong = [message for client in clients for message in client.wrong]
    seconds = np.array([value for client in clients for value in client.seconds] or [np.nan])
    # Batches come and go, and two versions are in memory while they are swapped: means say more
    # than moments. The first tenth is the start.
    tenths = [part.mean() for part in np.array_split(np.array(memory), 10)]
    first, last = np.mean(tenths[1:4]), np.mean(tenths[-3:])
    median, p90, p99, worst = 1000 * np.percentile(seconds, [50, 90, 99, 100])
    for name, value in {
        "first request, ms": f"{first_request:.0f}; steady {steady_request:.0f}",
        "clients": options.clients,
        "seconds": f"{elapsed:.0f}",
        "versions": version,
        "requests answered": len(seconds),
        "failed": len(failed),
        "lost": lost,
        "wrong": len(wrong),
        "requests/s": f"{len(seconds) / elapsed:.1f}",
        "texts/s": f"{sum(client.texts for client in clients) / elapsed:.1f}",
        "latency, ms": f"{median:.0f} median, {p90:.0f} p90, {p99:.0f} p99, {worst:.0f} worst",
        "memory, MiB": f"{first:.0f} -> {last:.0f}, {100 * (last / first - 1):+.1f} %, "
        f"peak {max(memory):.0f}",
        "by tenths": " ".join(f"{mean:.0f}" for mean in tenths),
        "exit status": status,
    }.items():
        print(f"{name:20}{value}")
    for message in (failed + wrong)[:5]:
        print(message)
    sys.exit(bool(failed or wrong or lost or status or last > 1.02 * first))


if __name__ == "__main__":
    main()
