"""The ceiling, and the input pipeline."""

import itertools
import time
from typing import Any

import numpy as np

from bench.cases import Case
from bench.worker import THREADS

SIDE = 2048
PRODUCTS = 4
BATCHES = 100  # that the pipeline is read for


class TorchProduct:
    """Matrix products of 2048 x 2048 in float32, by torch."""

    def prepare(self, _: Case) -> None:
        """Makes the matrices and multiplies them once."""
        import torch

        torch.set_num_threads(THREADS)
        self.a, self.b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
        self.multiply = torch.mm
        self.run()

    def run(self) -> None:
        """Multiplies."""
        for _ in range(PRODUCTS):
            self.multiply(self.a, self.b)

    def count(self, _: Any) -> dict[str, Any]:
        """Operations: two for each multiplication."""
        return {"flops": PRODUCTS * 2.0 * SIDE**3}


class TensorFlowProduct(TorchProduct):
    """The same by TensorFlow."""

    def prepare(self, _: Case) -> None:
        """Makes the matrices and multiplies them once."""
        import tensorflow as tf

        self.a, self.b = tf.random.uniform([SIDE, SIDE]), tf.random.uniform([SIDE, SIDE])
        self.multiply = tf.matmul
        self.run()


class Pipeline:
    """Batches of 25,000 tokens, from a prepared corpus on disk, in training order."""

    def prepare(self, case: Case) -> None:
        """Prepares the bundled corpus."""
        import tempfile
        from pathlib import Path

        from keras_transformer.trainers.batches import BatchPlan, make_dataset
        from keras_transformer.trainers.preparation import prepare
        from keras_transformer.trainers.prepared import open_prepared
        from keras_transformer.trainers.recipes import TrainSettings

        self.folder = tempfile.TemporaryDirectory()
        settings = TrainSettings(data="bundled", vocab_size=4_000, tokens_per_batch=25_000)
        started = time.perf_counter()
        prepare(settings, Path(self.folder.name) / "corpus")
        self.prepare_seconds = time.perf_counter() - started
        self.pairs = open_prepared(Path(self.folder.name) / "corpus").training
        self.plan = BatchPlan(self.pairs.lengths, 25_000, seed=1)
        self.batches = iter(make_dataset(self.pairs, self.plan, range(10**6)))
        next(self.batches)

    def run(self) -> int:
        """Reads some batches; returns their target tokens."""
        batches = itertools.islice(self.batches, BATCHES)
        return sum(int(np.count_nonzero(labels)) for _, labels, _ in batches)

    def count(self, output: int) -> dict[str, Any]:
        """Target tokens, and how many pairs were prepared a second."""
        return {
            "tokens": output,
            "pairs_per_second": len(self.pairs.lengths) / self.prepare_seconds,
        }
