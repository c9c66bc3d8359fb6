"""This package's systems: an export, a translator, training, and the input pipeline."""

import ctypes
import functools
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cases import Case, sizes_of
from bench.inputs import write_text
from bench.models import fixed_length, options
from bench.systems import Translating
from keras_transformer.config import DecodingOptions

if TYPE_CHECKING:
    import keras

    from keras_transformer import TransformerConfig

NUM_BATCHES = 100  # that the pipeline is read for


class Session(Translating):
    """The SavedModel in a session, as TF Serving has it: no Python, no XLA."""

    imports = ("keras_transformer.export.session",)

    def __init__(self, compute: str = "float32") -> None:
        self.stored = f"saved_model_{compute}"

    def load(self, case: Case) -> None:
        os.environ["TF_NUM_INTRAOP_THREADS"] = "1"  # as the commands do
        from keras_transformer.export.session import SavedModelSession

        super().load(case)
        path = case["folder"] / self.stored / "1"
        # A command that translates once does not wait for the optimization of the graph.
        self.session = SavedModelSession(path, optimize=case["kind"] != "start")
        self.signature = {1: "greedy", 4: "serving_default"}[case["beam"]]

    def translate(self, texts: list[str]) -> list[str]:
        outputs = self.session.run(self.signature, {"text": [each.encode() for each in texts]})
        return [text.decode() for text in outputs["translation"]]


class InProcess(Translating):
    """The `Translator`."""

    imports = ("keras_transformer.translator",)
    stored = "run"

    def __init__(self, early_stopping: str = DecodingOptions.early_stopping) -> None:
        self.early_stopping = early_stopping

    def load(self, case: Case) -> None:
        os.environ["TF_NUM_INTRAOP_THREADS"] = "1"  # as the commands do
        from keras_transformer import Translator
        from keras_transformer.run import Run

        super().load(case)
        run = Run.load(case["run"])
        self.translator = Translator(
            run.model(), run.tokenizer(), options(case["beam"], self.early_stopping)
        )

    def translate(self, texts: list[str]) -> list[str]:
        with fixed_length(self.case["max_tokens"]):  # when the graph is traced
            found = self.translator.translate(texts)
        return [translation.text for translation in found]


class Memory(InProcess):
    """The same, warmed up by one word: `run` then allocates all the memory that a case needs."""

    def prepare(self, case: Case) -> None:
        # Freed memory returns to the system at once, so that the peak is what the case needs.
        libc = ctypes.CDLL(None)
        for option, value in ((-3, 2**14), (-1, 0), (-8, 1)):  # mmap and trim threshold, arenas
            libc.mallopt(option, value)
        self.load(case)
        with fixed_length(case["max_tokens"]):
            self.translator.translate(self.texts[0].split()[:1])


class Fit:
    """Training as `train` does it: the loss, optimizer, metrics and batches."""

    def __init__(
        self, jit: bool = False, precision: str = "float32", num_micro_batches: int = 1
    ) -> None:
        self.jit, self.precision, self.num_micro_batches = jit, precision, num_micro_batches

    def make(self, case: Case) -> "keras.Model":
        """Returns the compiled model."""
        return training_model(sizes_of(case["size"]), self.jit, self.num_micro_batches)

    def prepare(self, case: Case) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(1)
        keras.config.set_dtype_policy(self.precision)
        batches = case["bucket_batches" if self.jit else "batches"]
        self.num_updates = len(batches)
        self.tokens = sum(int((labels != 0).sum()) for _, labels, _ in batches)
        parts = map(tf.data.Dataset.from_tensors, batches)
        dataset = functools.reduce(tf.data.Dataset.concatenate, parts).repeat().prefetch(2)
        self.iterator = iter(dataset)
        self.model = self.make(case)
        self.model.make_train_function()
        for _ in range(2):  # the first compiles
            self.run()
        if tf.config.list_logical_devices("GPU"):
            tf.config.experimental.reset_memory_stats("GPU:0")

    def run(self) -> None:
        for _ in range(self.num_updates):  # as the loop of Keras's `fit` does
            logs = self.model.train_function(self.iterator)
        float(logs["loss"])  # waits for the last update

    def count(self, output: None) -> dict[str, Any]:
        import tensorflow as tf

        if not tf.config.list_logical_devices("GPU"):
            return {"tokens": self.tokens}
        info = tf.config.experimental.get_memory_info("GPU:0")
        return {"tokens": self.tokens, "gpu_bytes": info["peak"]}


def training_model(
    sizes: "TransformerConfig", jit: bool = False, num_micro_batches: int = 1
) -> "keras.Model":
    """A Transformer, compiled as `train` does."""
    import keras_transformer as ours
    from keras_transformer.trainers.fitting.training_model import Adam, TrainingModel

    model = TrainingModel(ours.Transformer(sizes), 0.0, num_micro_batches, jit)
    model.compile(
        optimizer=Adam(ours.WarmupSchedule(sizes.d_model), beta_2=0.98, epsilon=1e-9),
        loss=ours.LabelSmoothedCrossEntropy(0.1, reduction="sum"),
        metrics=[ours.TokenLoss(), ours.Perplexity(), ours.TokenAccuracy()],
    )
    model.optimizer.build(model.trainable_variables)
    return model


class Pipeline:
    """Prepares text like WMT's, and reads batches in training order, without a model."""

    def prepare(self, case: Case) -> None:
        from bench.processes import memory
        from keras_transformer.trainers.data.batches import BatchPlan, make_dataset
        from keras_transformer.trainers.data.preparation import prepare
        from keras_transformer.trainers.data.prepared import open_prepared
        from keras_transformer.trainers.settings import TrainSettings

        self.folder = tempfile.TemporaryDirectory()
        write_text(Path(self.folder.name), case["pairs"])
        size = case["tokens_per_batch"]
        settings = TrainSettings(data=self.folder.name, vocab_size=16_000, tokens_per_batch=size)
        started = time.perf_counter()
        prepare(settings, Path(self.folder.name) / "corpus")
        self.found = {"pairs_per_second": case["pairs"] / (time.perf_counter() - started)}
        self.found["preparing_bytes"] = memory("VmHWM")
        pairs = open_prepared(Path(self.folder.name) / "corpus").training
        plan = BatchPlan(pairs.lengths, size, seed=1)
        self.found["padding"] = plan.padding_share
        self.batches = iter(make_dataset(pairs, plan, range(10**6)))
        next(self.batches)

    def run(self) -> int:
        batches = itertools.islice(self.batches, NUM_BATCHES)
        return sum(int((labels.numpy() != 0).sum()) for _, labels, _ in batches)

    def count(self, output: int) -> dict[str, Any]:
        del self.batches  # its thread would keep the process from ending
        return {"tokens": output, **self.found}
