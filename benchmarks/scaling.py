"""Step time on 1 and 2 replicas and on 2 workers, compared with a model of its parts.

    python benchmarks/scaling.py

Every replica has one thread. By the model, a step of R replicas takes as long as a step of one
replica with 1 / R of the rows, and an all-reduce of the gradients, 4 bytes a parameter.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.cases import sizes_of
from bench.processes import free_ports, new_process

STEPS = 12
ROWS, LENGTH, VOCAB_SIZE = 128, 32, 8_000


def measure(replicas: int, rows: int, addresses: list[str], index: int) -> dict[str, float]:
    """Times steps in this process, number `index` of the workers at `addresses`."""
    workers = len(addresses)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    if workers > 1:
        task = {"type": "worker", "index": index}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    # One core for each replica, also for operations that could run side by side.
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[:replicas] if workers == 1 else {cpus[index]})
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    import numpy as np
    import tensorflow as tf
    from bench.ours import training_model

    from keras_transformer.trainers.fitting.strategies import make_strategy

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = make_strategy(
        "multiworker" if workers > 1 else "mirrored" if replicas > 1 else "one"
    )
    with strategy.scope():
        model = training_model(sizes_of("small-L4"))
    shapes = [variable.shape for variable in model.trainable_variables]
    random = np.random.default_rng(1)
    ids = tf.constant(random.integers(4, VOCAB_SIZE, (rows, LENGTH)), tf.int32)
    batch = ({"source_ids": ids, "target_ids": ids}, ids, tf.ones(ids.shape) / (ROWS * LENGTH))

    def all_reduce() -> list[tf.Tensor]:
        values = [tf.ones(shape) for shape in shapes]
        return tf.distribute.get_replica_context().all_reduce("SUM", values)

    def median(run: Callable[[], object]) -> float:
        run = tf.function(run, autograph=False)
        times = []
        for _ in range(STEPS + 2):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return statistics.median(times[2:])

    return {
        "parameters": float(sum(np.prod(shape) for shape in shapes)),
        "step": median(lambda: strategy.run(model.train_step, args=(batch,))),
        "all-reduce": median(lambda: strategy.run(all_reduce)) if replicas * workers > 1 else 0.0,
    }


def in_processes(replicas: int, workers: int, rows: int) -> dict[str, float]:
    """Runs `measure` in new processes and returns the first one's figures."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    with ExitStack() as stack:
        processes = [stack.enter_context(new_process(Path(os.devnull))) for _ in addresses]
        found = [
            process.submit(measure, replicas, rows, addresses, index)
            for index, process in enumerate(processes)
        ]
        return found[0].result()


def main() -> None:
    """Measures everything and prints the model beside the measurements."""
    one, half = in_processes(1, 1, ROWS), in_processes(1, 1, ROWS // 2)
    megabytes = 4e-6 * one["parameters"]
    print(f"{one['parameters'] / 1e6:.1f} M parameters, gradients of {megabytes:.0f} MB")
    print(f"one replica, {ROWS} x {LENGTH} tokens: {1e3 * one['step']:.0f} ms a step")
    print(f"one replica, half of the rows: {1e3 * half['step']:.0f} ms a step")
    for replicas, workers in ((2, 1), (1, 2)):
        found = in_processes(replicas, workers, ROWS // 2)
        computed = half["step"] + found["all-reduce"]
        print(
            f"{replicas * workers} replicas on {workers} workers: all-reduce "
            f"{1e3 * found['all-reduce']:.0f} ms, step {1e3 * found['step']:.0f} ms measured, "
            f"{1e3 * computed:.0f} ms by the model; "
            f"{one['step'] / found['step']:.2f} times one replica"
        )


if __name__ == "__main__":
    main()
