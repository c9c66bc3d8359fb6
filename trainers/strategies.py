"""Where training runs: one device, all GPUs of a machine, or many machines."""

import functools
import itertools
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError, TrainingStoppedError

logger = logging.getLogger(__name__)

StrategyName = Literal["one", "mirrored", "multiworker"]

NVIDIA = Path("/dev/nvidia0")  # the first GPU, where there is a driver
SECONDS_TO_LEAVE = 2.0  # the others may still fetch what this worker has added to the last sum
LOST_WORKER_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again


class Workers:
    """The processes that train together, one a machine; mostly there is just this one.

    All of them call the same methods in the same order.

    Args:
        strategy: the strategy that all of them made.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        resolver = strategy.cluster_resolver
        tasks = resolver.cluster_spec().as_dict() if resolver else {}
        self.count = len(tasks.get("chief", [])) + len(tasks.get("worker", [])) or 1
        first = "chief" if "chief" in tasks else "worker"
        self.is_chief = self.count == 1 or (resolver.task_type, resolver.task_id) == (first, 0)
        self._sum = tf.function(self._sum_over_replicas)

    def any(self, *flags: bool) -> list[bool]:
        """Returns, for each flag, whether it is set on any worker; waits for all of them."""
        if self.count == 1:
            return list(flags)
        return [bool(count) for count in self._sum(np.array(flags, np.float32)).numpy()]

    def have_same(self, text: str) -> bool:
        """Returns whether this worker's text is the mean one; all have the same if all say yes."""
        if self.count == 1:
            return True
        digest = zlib.crc32(text.encode()) % 2**16  # whose sum over many replicas is exact
        total = self._sum(np.array([digest], np.float32)).numpy()[0]
        return bool(total == digest * self.strategy.num_replicas_in_sync)

    def wait(self) -> None:
        """Waits until all workers have come here."""
        self.any(False)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turns the failure of another worker into one sentence.

        Raises:
            TrainingStoppedError: if another worker is gone; its exit status is 75.
        """
        try:
            yield
        except (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.CancelledError,
            tf.errors.DeadlineExceededError,
            tf.errors.InternalError,
            tf.errors.FailedPreconditionError,
            tf.errors.NotFoundError,
        ) as error:
            if self.count == 1:
                raise
            raise _lost(error) from error
        finally:
            if self.count > 1:
                time.sleep(SECONDS_TO_LEAVE)

    def _sum_over_replicas(self, values: tf.Tensor) -> tf.Tensor:
        return self.strategy.reduce("SUM", self.strategy.run(lambda: values), axis=None)


def make_strategy(name: StrategyName | None = None) -> tf.distribute.Strategy:
    """Returns the strategy of a name.

    Args:
        name: "one" for the first device, "mirrored" for all GPUs of this machine (all logical
            CPU devices where there is no GPU), "multiworker" for those of all the machines that
            the environment variable TF_CONFIG or SLURM names; None for "mirrored" where there are
            several GPUs, else "one".

    Raises:
        InputError: if there is no such strategy, or nothing names the machines.
    """
    gpus = tf.config.list_physical_devices("GPU")
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not gpus and NVIDIA.exists() and not is_hidden:
        logger.warning(
            "TensorFlow does not see this machine's GPU: are its libraries there? "
            "(pip install 'tensorflow[and-cuda]')"
        )
    if name is None:
        name = "mirrored" if len(gpus) > 1 else "one"
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU" if gpus else "CPU")
        return _mirrored(tuple(device.name for device in devices))
    if name == "multiworker":
        resolver = _cluster()
        logger.info("Waiting until all workers have started")  # TensorFlow does, for an hour
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        except (tf.errors.OpError, RuntimeError) as error:
            if "program startup" in str(error):
                raise InputError(
                    "`strategy`=multiworker must be the first that TensorFlow does in a program: "
                    "start the training in a process of its own"
                ) from error
            raise _lost(error) from error
    raise InputError(
        f"`strategy` must be one, mirrored or multiworker. Received: strategy={name!r}"
    )


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Makes one strategy a process: the sums of a second one would be taken for the first's."""
    return tf.distribute.MirroredStrategy(list(devices))


def _lost(error: Exception) -> TrainingStoppedError:
    reason = str(getattr(error, "message", error)).strip().partition("\n")[0]
    return TrainingStoppedError(
        "Another worker is gone: start all workers again with the same command, and training goes "
        f"on from the last save ({type(error).__name__}: {reason[:200]})",
        LOST_WORKER_STATUS,
    )


def _cluster() -> tf.distribute.cluster_resolver.ClusterResolver:
    """Reads TF_CONFIG, else what SLURM tells its tasks."""
    text = os.environ.get("TF_CONFIG", "")
    if text:
        _check_tf_config(text)
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "SLURM_PROCID" in os.environ:
        try:
            resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
            resolver.cluster_spec()  # says what is wrong with it now, and not in the strategy
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise InputError(
                f"SLURM's environment does not name the machines and their GPUs: {error}. Start "
                "one worker a machine by srun, with nvidia-smi or CUDA_VISIBLE_DEVICES for the GPUs"
            ) from error
        return resolver
    raise InputError(
        "`strategy`=multiworker needs the environment variable TF_CONFIG, or SLURM's, to name the "
        "machines: see docs/scaling.md"
    )


def _check_tf_config(text: str) -> None:
    try:
        values: Any = json.loads(text)
        cluster, task = values["cluster"], values["task"]
        kind, index = task["type"], task["index"]
        if not set(cluster) <= {"chief", "worker"} or len(cluster.get("chief", [])) > 1:
            raise ValueError("a cluster has workers, and at most one chief")
        addresses = cluster[kind]
        if not (isinstance(index, int) and 0 <= index < len(addresses)):
            raise ValueError(f"there is no {kind} {index}")
        addresses = itertools.chain.from_iterable(cluster.values())
        if not all(isinstance(a, str) and re.fullmatch(r".+:\d{1,5}", a) for a in addresses):
            raise ValueError("an address is HOST:PORT")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(
            'TF_CONFIG must be of the form {"cluster": {"worker": ["HOST:PORT", ...]}, '
            f'"task": {{"type": "worker", "index": 0}}}}: {reason}. Received: {text}'
        ) from error
