"""TensorFlow on a GPU, beside torch on the same card. Each command prints a table.

    python benchmarks/gpu.py updates   # of training, tiny and base
    python benchmarks/gpu.py memory    # of the largest batches
    python benchmarks/gpu.py search    # in process and in a session
    python benchmarks/gpu.py replicas  # two logical GPUs, kills and resumes

Every row of a table has a process of its own, and is printed at once. With --at-once N, N of them
prepare side by side, if the card's memory allows it, and are then measured one after the other. A
row that fails or is late is left out, with a word. `--small` takes sizes for a CPU.
"""

import argparse
import functools
import multiprocessing
import os
import signal
import statistics
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from bench import models
from bench.cases import decoding, sizes_of
from bench.inputs import case_flops, texts
from bench.processes import Row, call, count, kill, new_process, prepare, run
from bench.systems import PRODUCTS

PRECISIONS = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
SHAPES = {"tiny": (128, 24), "base-V37000": (128, 64)}  # pairs, and tokens of a side
PAPER_SHAPE = (390, 64)  # about 25,000 tokens: section 5.1
LARGEST = {"base-V37000": (226, 256), "big": (152, 256)}  # docs/howto/memory.md, for 80 GiB
SMALL = {"tiny": (3, 5)}
TURNS, TIMES = 3, 10  # the median of turns, each of so many updates
UPDATES, KILLED_AT = 12, 7  # of the trainings of `replicas`


def updates(small: bool) -> Iterator[Row]:
    """Updates in each precision, compiled and not, beside torch's, and in micro-batches."""
    side = 64 if small else 8192
    for dtype in PRECISIONS.values():
        name = f"products of {side} x {side}, {dtype}"
        yield _row(name, "product-tensorflow", {}, side=side, dtype=dtype)
    for size, shape in (SMALL if small else SHAPES).items():
        for precision in PRECISIONS:
            yield _update("fit", size, shape, precision=precision)
            yield _update("fit", size, shape, precision=precision, jit=True)
            yield _update("torch-transformer", size, shape, precision=precision)
    yield _update("torch-transformer", size, shape, precision="mixed_bfloat16", jit=True)
    yield _update("fit", size, shape, precision="mixed_bfloat16", num_micro_batches=4)
    shape = (4, 7) if small else PAPER_SHAPE
    yield _update("fit", size, shape, precision="mixed_bfloat16")
    yield _update("fit", size, shape, precision="mixed_bfloat16", jit=True)


def memory(small: bool) -> Iterator[Row]:
    """Updates of the largest batches that docs/howto/memory.md computes for 80 GiB."""
    for size, shape in (SMALL if small else LARGEST).items():
        for precision in ("float32", "mixed_bfloat16"):
            yield _update("fit", size, shape, precision=precision)


def _update(system: str, size: str, shape: tuple[int, int], **options: Any) -> Row:
    random = np.random.default_rng(1)
    ids = random.integers(4, sizes_of(size).vocab_size, (3, *shape), np.int32)
    inputs = {"source_ids": ids[0], "target_ids": ids[1]}
    batches = [(inputs, ids[2], np.full(shape, 1 / ids[2].size, np.float32))] * TIMES
    case = {"kind": "training", "size": size, "batches": batches, "bucket_batches": batches}
    used = [value if isinstance(value, str) else name for name, value in options.items()]
    name = ", ".join([size, f"{shape[0]} x {shape[1]}", system, *used])
    return _row(name, system, case, **options)


def _row(name: str, system: str, case: Row, **options: Any) -> Row:
    return {"name": name, "system": system, "options": options, "case": case}


def search(small: bool) -> Iterator[Row]:
    """Searches with 4 beams for 30 tokens, by a model of random weights."""
    size = "tiny" if small else "base"
    for sentences in (2,) if small else (1, 32, 256):
        case = decoding(size, "forced", 25, sentences, 4)
        case["texts"] = texts(case)
        for system in ("session", "session-bfloat16", "process", "marian"):
            yield _row(f"{size}, {sentences} sentences, {system}", system, case)


TABLES = {each.__name__: each for each in (updates, memory, search)}


def measure(rows: list[Row], limit: float, log: Path) -> Iterator[Row]:
    """Prepares rows side by side, at most `limit` seconds, and yields what each took."""
    processes = [new_process(log, threads=None) for _ in rows]
    pids = [process.submit(os.getpid) for process in processes]
    waiting = [
        process.submit(prepare, row["system"], row["case"], row["options"])
        for row, process in zip(rows, processes, strict=True)
    ]
    wait(waiting, limit)
    for pid, prepared in zip(pids, waiting, strict=True):
        if not prepared.done():  # it would disturb the others
            kill(pid)
    for row, process, pid, prepared in zip(rows, processes, pids, waiting, strict=True):
        try:
            row["s to prepare"] = prepared.result(timeout=0)
            turns = [process.submit(run).result(limit) for _ in range(TURNS)]
            row |= process.submit(count).result(limit)
        except Exception as error:  # of any library, or it was late
            left_out = f"{row['name']}: left out, {type(error).__name__}: {error}"
            print(left_out[:300], file=sys.stderr, flush=True)
            kill(pid)
            continue
        row["seconds"] = statistics.median(turns)
        yield row
    for child in multiprocessing.active_children():
        child.kill()


def _devices() -> list[str]:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return [tf.config.experimental.get_device_details(gpu)["device_name"] for gpu in gpus]


def print_table(rows: Iterable[Row]) -> None:
    """Prints milliseconds, rates, the share of the rate of large products, and memory."""
    head = "| | ms | tokens/s | TFLOP/s | share | GiB | s to prepare |"
    print(f"{head}\n|{7 * '---|'}", flush=True)
    rates: dict[Any, float] = {}
    for row in rows:
        seconds, case, options = row["seconds"], row["case"], row["options"]
        flops = row.get("flops") or case_flops(case)
        tera = flops / seconds / 1e12 if flops and case.get("kind") != "decoding" else None
        if "dtype" in options:
            rates[options["dtype"]] = tera or 0.0
        rate = rates.get(PRECISIONS.get(options.get("precision", "")))
        times = PRODUCTS if "dtype" in options else TIMES if case.get("kind") == "training" else 1
        cells = (
            (1000 * seconds / times, ".1f"),
            (row["tokens"] / seconds if "tokens" in row else None, ",.0f"),
            (tera, ".3g"),
            (tera / rate if tera and rate else None, ".0%"),
            (row["gpu_bytes"] / 2**30 if "gpu_bytes" in row else None, ".2f"),
            (row["s to prepare"], ".0f"),
        )
        texts = ("" if value is None else format(value, form) for value, form in cells)
        print(f"| {row['name']} | {' | '.join(texts)} |", flush=True)


def replicas(folder: Path, log: Path, limit: float) -> None:
    """Trains on one and on two logical devices, the latter also with a kill; compares weights."""
    from keras_transformer.run import Run

    print("| | largest difference of a weight |\n|---|---|", flush=True)
    for a, b in (("one", ""), ("two", "one"), ("resumed", "two")):
        arguments = 2 if b else 1, str(folder / a)
        if a == "resumed":
            with suppress(BrokenProcessPool):
                call(log, limit, _train, *arguments, KILLED_AT)
                raise SystemExit(f"The training was not killed: see {log}")
        call(log, limit, _train, *arguments)
        if b:
            both = [Run.load(folder / each).model("last").get_weights() for each in (a, b)]
            largest = max(float(np.abs(x - y).max()) for x, y in zip(*both, strict=True))
            print(f"| {a} and {b} | {largest:.1e} |", flush=True)


def _train(devices: int, run_dir: str, killed_at: int = 0) -> None:
    """Trains deterministically, and kills its process after an update."""
    import keras
    import tensorflow as tf

    from keras_transformer.trainers.fitting.training import train
    from keras_transformer.trainers.settings import TrainSettings

    gpus = tf.config.list_physical_devices("GPU")
    logical = tf.config.LogicalDeviceConfiguration(memory_limit=4096 if gpus else None)
    device = (gpus or tf.config.list_physical_devices("CPU"))[0]
    tf.config.set_logical_device_configuration(device, [logical] * devices)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()
    settings = TrainSettings(
        data="bundled",
        vocab_size=600,
        augment={},
        # Replicas drop other values.
        model={"dropout_rate": 0.0, "num_encoder_layers": 1, "num_decoder_layers": 1},
        steps=UPDATES,
        steps_per_validation=5,
        steps_per_save=2,
        strategy="mirrored" if devices > 1 else "one",
    )

    def stop(batch: int, logs: Any = None) -> None:
        if callback.model.optimizer.iterations.numpy() == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    # NCCL refuses two logical GPUs of one card.
    reduction = tf.distribute.ReductionToOneDevice()
    strategy = functools.partial(tf.distribute.MirroredStrategy, cross_device_ops=reduction)
    with mock.patch.object(tf.distribute, "MirroredStrategy", strategy):
        train(settings, run_dir, verbose=0, resume=True, callbacks=[callback])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=[*TABLES, "replicas"])
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="of each step")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what the rows print")
    parser.add_argument("--folder", type=Path, help="of the model of `search`, to keep it")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # processes share the card
    os.environ.setdefault("CUDA_CACHE_MAXSIZE", str(2**32))  # kernels that are compiled from PTX
    log, limit = arguments.log, arguments.limit
    if not arguments.small:
        devices = call(log, limit, _devices)
        if not devices:
            raise SystemExit(f"TensorFlow sees no GPU: see --log, {log}")
        print(f"Devices: {', '.join(devices)}", flush=True)
    with TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.table == "replicas":
            replicas(folder, log, limit)
            return
        rows = list(TABLES[arguments.table](arguments.small))
        if arguments.table == "search":
            for row in rows:
                row["case"] |= {"folder": folder / "model", "run": folder / "model" / "run"}
            call(log, limit, models.make, rows[0]["case"])
        starts = range(0, len(rows), arguments.at_once)
        parts = (rows[start : start + arguments.at_once] for start in starts)
        print_table(row for part in parts for row in measure(part, limit, log))


if __name__ == "__main__":
    main()
