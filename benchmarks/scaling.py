"""Step time on 1 and 2 replicas and on 2 workers, against a model of it from its parts.

    python benchmarks/scaling.py

Every replica has one thread of its own. The model: a step of R replicas takes what one replica
takes for a batch of the Rth part, and as long as it takes to add up gradients alone:

    step(R) = step of one replica with 1 / R of the rows + all-reduce of 4 bytes a parameter

It is then read out for GPUs, from figures that are named and not measured here.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

STEPS = 12
ROWS, LENGTH, VOCAB_SIZE = 128, 32, 8_000


def measure(replicas: int, workers: int, rows: int, index: int) -> dict[str, float]:
    """Times steps of a model in this process, which is one of `workers`."""
    # Operators that could run side by side must not use a second core where there is one replica.
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[:replicas] if workers == 1 else {cpus[index]})
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    import numpy as np
    import tensorflow as tf

    from keras_transformer.model import Transformer
    from keras_transformer.trainers.recipes import TrainSettings
    from keras_transformer.trainers.strategies import make_strategy
    from keras_transformer.trainers.training import _compile

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * replicas,
    )
    name = "multiworker" if workers > 1 else "mirrored" if replicas > 1 else "one"
    strategy = make_strategy(name)
    settings = TrainSettings(data="none", preset="tiny", model={"d_model": 256, "d_ff": 1024})
    with strategy.scope():
        model, _ = _compile(Transformer(settings.config(VOCAB_SIZE)), settings)
    shapes = [variable.shape for variable in model.trainable_variables]

    @tf.function
    def step(ids: tf.Tensor) -> None:
        weights = tf.ones_like(ids, tf.float32) / (ROWS * LENGTH)
        inputs = {"source_ids": ids, "target_ids": ids}
        strategy.run(model.train_step, args=((inputs, ids, weights),))

    @tf.function
    def add_up() -> None:
        def replica() -> list[tf.Tensor]:
            values = [tf.ones(shape) for shape in shapes]
            context = tf.distribute.get_replica_context()
            reduced: list[tf.Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, values)
            return reduced

        strategy.run(replica)

    ids = tf.constant(np.random.default_rng(1).integers(4, VOCAB_SIZE, (rows, LENGTH)), tf.int32)
    parameters = sum(np.prod(shape) for shape in shapes)
    figures = {"step": _median(lambda: step(ids)), "parameters": float(parameters)}
    figures["all-reduce"] = _median(add_up) if replicas * workers > 1 else 0.0
    return figures


def _median(run: object) -> float:
    times = []
    for _ in range(STEPS + 2):
        started = time.perf_counter()
        run()  # type: ignore[operator]
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def in_processes(replicas: int, workers: int, rows: int) -> dict[str, float]:
    """Runs `measure` in processes of its own and returns the first one's figures."""
    ports = []
    for _ in range(workers):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    processes = []
    for index in range(workers):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        if workers > 1:
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        command = [sys.executable, __file__, *map(str, (replicas, workers, rows, index))]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{name_of(replicas, workers)} failed")
    figures: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return figures


def name_of(replicas: int, workers: int) -> str:
    """Says what runs."""
    return f"{workers} workers" if workers > 1 else f"{replicas} replicas"


def main() -> None:
    """Measures all, then prints the model beside the measurements."""
    whole = in_processes(1, 1, ROWS)
    half = in_processes(1, 1, ROWS // 2)
    megabytes = 4e-6 * whole["parameters"]
    print(f"{whole['parameters'] / 1e6:.1f} M parameters, gradients of {megabytes:.0f} MB")
    print(f"one replica, {ROWS} x {LENGTH} tokens: {1e3 * whole['step']:.0f} ms a step")
    print(f"one replica, half of the rows: {1e3 * half['step']:.0f} ms a step")
    for replicas, workers in ((2, 1), (1, 2)):
        name = name_of(replicas, workers)
        found = in_processes(replicas, workers, ROWS // 2)
        computed = half["step"] + found["all-reduce"]
        print(
            f"{name}: all-reduce {1e3 * found['all-reduce']:.0f} ms "
            f"({megabytes / 1e3 / found['all-reduce']:.1f} GB/s of gradients), "
            f"step {1e3 * found['step']:.0f} ms measured, {1e3 * computed:.0f} ms computed; "
            f"{whole['step'] / found['step']:.2f} times one replica"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*map(int, sys.argv[1:]))))
    else:
        main()
