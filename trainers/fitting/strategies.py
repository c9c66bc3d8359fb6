"""Where training runs: one device, all GPUs of a machine, or many machines."""

import functools
import logging
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError, TrainingStoppedError, one_line
from keras_transformer.trainers.settings import StrategyName

logger = logging.getLogger(__name__)

NVIDIA = Path("/dev/nvidia0")  # the first GPU, if there is a driver
SECONDS_TO_LEAVE = 2.0  # other workers may still fetch this worker's part of the last sum
JOBS = ("chief", "worker")  # of the processes that train
LOST_WORKER_STATUS = 75  # EX_TEMPFAIL of sysexits.h
LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
)


def num_workers(strategy: tf.distribute.Strategy) -> int:
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().as_dict() if resolver else {}
    return sum(len(jobs.get(name, ())) for name in JOBS) or 1


class Workers:
    """The processes that train together, which all call the same methods in the same order."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.count = num_workers(strategy)
        self.is_chief: bool = strategy.extended.should_checkpoint
        self._sum = tf.function(self._sum_over_replicas, autograph=False)

    def any_set(self, *flags: bool) -> list[bool]:
        """Returns for each flag whether it is True on any worker; waits for all workers."""
        if self.count == 1:
            return list(flags)
        return [bool(count) for count in self._sum(np.array(flags, np.float32)).numpy()]

    def check_same(self, name: str, text: str) -> None:
        """Raises `InputError` unless the workers' texts are equal; waits for all workers."""
        if self.count == 1:
            return
        digest = zlib.crc32(text.encode()) % 2**16  # the sum over many replicas is exact
        total = self._sum(np.array([digest], np.float32)).numpy()[0]
        if total != digest * self.strategy.num_replicas_in_sync:
            raise InputError(
                f"The workers' {name} differ: start all of them with the same command, "
                "on the same run directory"
            )

    def wait(self) -> None:
        self.any_set(False)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises `TrainingStoppedError` if another worker is lost."""
        try:
            yield
        except LOST_WORKER_ERRORS as error:
            if self.count == 1:
                raise
            raise _lost_worker(error) from error
        finally:
            if self.count > 1:
                time.sleep(SECONDS_TO_LEAVE)

    def _sum_over_replicas(self, values: tf.Tensor) -> tf.Tensor:
        return self.strategy.reduce("SUM", self.strategy.run(lambda: values), axis=None)


def make_strategy(name: StrategyName | None = None) -> tf.distribute.Strategy:
    """Returns the strategy of the setting `strategy`.

    "mirrored" takes all logical CPU devices where there is no GPU. "multiworker" raises an
    `InputError` unless TF_CONFIG or SLURM names the machines.
    """
    gpus = tf.config.list_physical_devices("GPU")
    are_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not gpus and NVIDIA.exists() and not are_hidden:
        logger.warning(
            "TensorFlow does not see this machine's GPU. Are its libraries installed? "
            "(pip install 'tensorflow[and-cuda]')"
        )
    if name is None:
        name = "mirrored" if len(gpus) > 1 else "one"
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        if not gpus:
            logger.warning("There is no GPU to mirror on: training runs on this machine's CPU")
        devices = tf.config.list_logical_devices("GPU" if gpus else "CPU")
        return _mirrored(tuple(device.name for device in devices))
    resolver = _cluster()
    logger.info("Waiting until all workers have started")  # TensorFlow does, for an hour
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except tf.errors.OpError as error:
        raise _lost_worker(error) from error


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Returns one strategy for all calls: TensorFlow mixes up the sums of two strategies."""
    return tf.distribute.MirroredStrategy(list(devices))


def _lost_worker(error: tf.errors.OpError) -> TrainingStoppedError:
    return TrainingStoppedError(
        "Another worker is gone: start all workers again with the same command, and training "
        f"continues from the last save ({type(error).__name__}: {one_line(error.message, 200)})",
        LOST_WORKER_STATUS,
    )


def _cluster() -> tf.distribute.cluster_resolver.ClusterResolver:
    """Reads the machines from TF_CONFIG, else from SLURM's variables."""
    resolvers = tf.distribute.cluster_resolver
    is_slurm = "SLURM_PROCID" in os.environ and not os.environ.get("TF_CONFIG")
    try:
        cluster = (
            resolvers.SlurmClusterResolver() if is_slurm else resolvers.TFConfigClusterResolver()
        )
        jobs = cluster.cluster_spec()
        jobs.task_address(cluster.task_type, cluster.task_id)
        if not set(jobs.jobs) <= set(JOBS):
            raise ValueError(f"the jobs are {', '.join(jobs.jobs)}")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise InputError(
            "`strategy`=multiworker needs SLURM's environment, with one worker a machine, or the "
            'environment variable TF_CONFIG, of the form {"cluster": {"worker": ["HOST:PORT", '
            '...]}, "task": {"type": "worker", "index": 0}}: see docs/howto/several-gpus.md. '
            f"Received: {one_line(error)}"
        ) from error
    return cluster
