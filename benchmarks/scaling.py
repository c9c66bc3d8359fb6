"""Step time on 1 and 2 replicas and on 2 workers, compared with a model of its parts.

    python benchmarks/scaling.py

Every replica has one thread. By the model, a step of R replicas takes as long as a step of one
replica with 1 / R of the rows, and an all-reduce of the gradients, 4 bytes a parameter.
"""

import json
import os
import statistics
import timeit
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
from bench.cases import sizes_of
from bench.processes import ENVIRONMENT, free_ports, new_process

STEPS = 12
ROWS, LENGTH, VOCAB_SIZE = 128, 32, 8_000


def measure(replicas: int, rows: int, addresses: list[str], index: int) -> dict[str, float]:
    """Times steps in this process, number `index` of the workers at `addresses`."""
    workers = len(addresses)
    os.environ |= {**ENVIRONMENT, "TF_NUM_INTRAOP_THREADS": "1"}
    if workers > 1:
        task = {"type": "worker", "index": index}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    # One core for each replica, also for operations that could run side by side.
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[:replicas] if workers == 1 else {cpus[index]})
    import tensorflow as tf
    from bench.ours import training_model

    from keras_transformer.trainers.fitting.strategies import make_strategy

    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    kind = "multiworker" if workers > 1 else "mirrored" if replicas > 1 else "one"
    strategy = make_strategy(kind)
    with strategy.scope():
        model = training_model(sizes_of("small-L4"))
    shapes = [variable.shape for variable in model.trainable_variables]
    ids = tf.random.uniform([rows, LENGTH], 4, VOCAB_SIZE, tf.int32, seed=1)
    batch = ({"source_ids": ids, "target_ids": ids}, ids, tf.ones(ids.shape) / (ROWS * LENGTH))

    def all_reduce() -> list[tf.Tensor]:
        values = [tf.ones(shape) for shape in shapes]
        return tf.distribute.get_replica_context().all_reduce("SUM", values)

    def median(run: Callable[[], object]) -> float:
        function = tf.function(run, autograph=False)
        return statistics.median(timeit.repeat(function, number=1, repeat=STEPS + 2)[2:])

    return {
        "parameters": model.count_params(),
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
    one, half = in_processes(1, 1, ROWS), in_processes(1, 1, ROWS // 2)
    print(f"{one['parameters'] / 1e6:.1f} M parameters, batches of {ROWS} x {LENGTH} tokens")
    rows = {"one replica": one, "one replica, half of the rows": half}
    for replicas, workers in ((2, 1), (1, 2)):
        found = in_processes(replicas, workers, ROWS // 2)
        computed = half["step"] + found["all-reduce"]
        found |= {"computed": computed, "speed": one["step"] / found["step"]}
        rows[f"{replicas * workers} replicas on {workers} workers"] = found
    columns = ["step", "computed", "all-reduce", "speed"]
    print("Seconds, and the speed over that of one replica:")
    print(pd.DataFrame(rows).T[columns].to_markdown(floatfmt=".3f"))


if __name__ == "__main__":
    main()
