"""The systems by name, what those that translate share, and the ceiling."""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np

from bench.cases import EXTRA_LENGTH, Case

THREADS = 2
SIDE, PRODUCTS = 2048, 4  # of the ceiling

CTRANSLATE2 = "peer_ctranslate2", "CTranslate2"
SPLIT, INT8 = {"num_batches": THREADS}, {"quantization": "int8"}

# Name: module, class, arguments, label on the page.
SYSTEMS: dict[str, tuple[str, str, dict[str, Any], str | None]] = {
    "session": ("ours", "Session", {}, "ours, SavedModel in a Session"),
    "session-bfloat16": ("ours", "Session", {"compute": "bfloat16"}, "ours, Session in bfloat16"),
    "process": ("ours", "InProcess", {}, "ours, in process"),
    "process-first": (
        "ours",
        "InProcess",
        {"early_stopping": "first"},
        "ours, in process, until K have ended",
    ),
    "memory": ("ours", "Memory", {}, None),
    "pipeline": ("ours", "Pipeline", {}, "ours"),
    "ctranslate2": (*CTRANSLATE2, {}, "CTranslate2 float32, 1 x 2 threads"),
    "ctranslate2-split": (*CTRANSLATE2, {**SPLIT}, "CTranslate2 float32, 2 x 1 threads"),
    "ctranslate2-int8": (*CTRANSLATE2, {**INT8}, "CTranslate2 int8, 1 x 2 threads"),
    "ctranslate2-int8-split": (*CTRANSLATE2, {**INT8, **SPLIT}, "CTranslate2 int8, 2 x 1 threads"),
    "marian": ("peer_marian", "Marian", {}, "MarianMT, generate"),
    "keras-hub": ("peer_kerashub", "KerasHubTranslator", {}, "KerasHub, XLA"),
    "fit": ("ours", "Fit", {}, "ours"),
    "fit-xla": ("ours", "Fit", {"jit": True}, "ours, XLA"),
    "keras-hub-fit": ("peer_kerashub", "KerasHubFit", {}, "KerasHub"),
    "keras-hub-fit-xla": ("peer_kerashub", "KerasHubFit", {"jit": True}, "KerasHub, XLA"),
    "torch-transformer": ("peer_torch", "TorchTransformer", {}, "torch nn.Transformer"),
    "marian-training": ("peer_marian", "MarianTraining", {}, "torch MarianMT"),
    "product-torch": ("systems", "Product", {"library": "torch"}, None),
    "product-tensorflow": ("systems", "Product", {"library": "tensorflow"}, None),
}
LABELS = {name: label for name, (*_, label) in SYSTEMS.items() if label}


def make_system(name: str, **options: Any) -> Any:
    """Imports and makes a system, with its arguments and further ones."""
    module, class_name, arguments, _ = SYSTEMS[name]
    return getattr(import_module(f"bench.{module}"), class_name)(**{**arguments, **options})


class Translating:
    """What systems that translate share."""

    imports: tuple[str, ...] = ()  # modules that `load` needs, to time their import apart
    stored = ""  # the folder that `load` reads, in the model's folder, for its size on disk
    clients: ThreadPoolExecutor | None = None  # of a case with clients

    def prepare(self, case: Case) -> None:
        self.load(case)
        self.latencies: list[float] = []
        if "clients" in case:
            self.clients = ThreadPoolExecutor(case["clients"])
        self.run()

    def load(self, case: Case) -> None:
        """Loads the tokenizer; a subclass also loads the model."""
        import sentencepiece

        self.case, self.texts = case, case["texts"]
        self.pieces = sentencepiece.SentencePieceProcessor(str(case["run"] / "tokenizer.model"))
        longest = max(len(pieces) for pieces in self.pieces.encode(self.texts))
        # For systems that have one maximum for all sources.
        self.max_tokens: int = case["max_tokens"] or longest + EXTRA_LENGTH

    def run(self) -> list[str]:
        """Translates the texts at once, or each as the request of one of several clients."""
        if self.clients is None:
            return self.translate(self.texts)
        self.latencies.clear()
        return list(self.clients.map(self._ask, self.texts))

    def _ask(self, text: str) -> str:
        started = time.perf_counter()
        (translation,) = self.translate([text])
        self.latencies.append(time.perf_counter() - started)
        return translation

    def translate(self, texts: list[str]) -> list[str]:
        raise NotImplementedError

    def count(self, output: list[str]) -> dict[str, Any]:
        """Counts pieces, and an end where a translation has one."""
        target = self.case["target"]
        lengths = [len(pieces) for pieces in self.pieces.encode(output)]
        if target is not None and set(lengths) != {target}:
            raise RuntimeError(f"Translations must be of {target} tokens. Received: {lengths}")
        ends = len(output) if target is None else 0
        counts = {"tokens": sum(lengths) + ends, "answers": output}
        if self.clients is not None:
            p50, p99 = np.percentile(1000 * np.array(self.latencies), [50, 99])
            counts |= {"p50": p50, "p99": p99}
        return counts


class Product:
    """Matrix products of `side` x `side` by "torch" or "tensorflow": the ceiling."""

    def __init__(self, library: str, side: int = SIDE, dtype: str = "float32") -> None:
        self.library, self.side, self.dtype = library, side, dtype

    def prepare(self, case: Case) -> None:
        library = import_module(self.library)
        self.multiply = library.matmul
        if self.library == "torch":
            library.set_num_threads(THREADS)
            self.matrix = library.rand(self.side, self.side)
        else:
            self.matrix = library.cast(library.random.uniform([self.side] * 2), self.dtype)
        self.run()

    def run(self) -> None:
        for _ in range(PRODUCTS):
            result = self.multiply(self.matrix, self.matrix)
        float(result[0, 0])  # waits for a GPU

    def count(self, output: None) -> dict[str, Any]:
        return {"flops": PRODUCTS * 2.0 * self.side**3}  # two for each multiplication
